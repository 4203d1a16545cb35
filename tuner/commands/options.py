"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

KernelName = Annotated[str, typer.Option("--kernel", help="Id or alias, as `tune kernels` lists them.")]
AnyKernel = Annotated[str | None, typer.Option("--kernel", help="Only this one.")]
AnyProblem = Annotated[str | None, typer.Option("--shape", help="Only this problem, as 4096x3456x1280.")]
Shape = Annotated[str | None, typer.Option("--shape", help="Problem, as 4096x3456x1280. [kernel's default]")]
DeviceName = Annotated[
    str | None, typer.Option("--device", help="sim:GPU predicts, cuda measures, replay:FILE recalls.")
]
OnlyDevice = Annotated[
    str | None, typer.Option("--device", help="Only of this one, as `tune results` names it.")
]
ArchName = Annotated[str | None, typer.Option("--arch", help="As sm_89. [the device's]")]
Out = Annotated[Path, typer.Option("--out", help="Directory of rows, studies and pinned kernels.")]
StudyName = Annotated[str | None, typer.Option("--study", help="Study by name. [made from what it is about]")]
Ptxas = Annotated[Path | None, typer.Option("--ptxas", help="Another ptxas. [that of the NVIDIA wheel]")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on standard output, for programs.")]
Weights = Annotated[
    Path | None, typer.Option("--weights", help="GGUF file to take the weights from (extra gguf).")
]
Tensor = Annotated[str | None, typer.Option("--tensor", help="Its tensor; the problem is that of its shape.")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="name=value; the others are as hand-written. Repeatable.")
]
Workers = Annotated[int | None, typer.Option("--workers", help="Worker processes. [one a core]")]

DEFAULT_OUT = Path("tuning")
