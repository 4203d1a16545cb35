"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer


def _directory(given: str | Path) -> Path:
    """An empty name is no request for the directory that we are in."""
    if not str(given):
        raise typer.BadParameter("a directory must have a name, got ''; . is the one that you are in")
    return Path(given)


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
Out = Annotated[
    Path,
    typer.Option(
        "--out", parser=_directory, metavar="PATH", help="Directory of rows, studies and pinned kernels."
    ),
]
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


def check_least(least: int, **options: int | None) -> None:
    """Refuse an option that is given and too small.

    Raises:
        RequestError: The first of them.
    """
    from tuner.task import RequestError

    for name, value in options.items():
        if value is not None and value < least:
            raise RequestError(f"--{name} must be at least {least}, got {value}")


def check_either(*options: tuple[str, object]) -> None:
    """Refuse options that ask for different things, of which only one could be done.

    Raises:
        RequestError: More than one is given.
    """
    from tuner.task import RequestError

    given = [name for name, value in options if value]
    if len(given) > 1:
        raise RequestError(f"{' and '.join(given)} ask for different things; use one of them")
