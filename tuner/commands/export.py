"""`tune export`: trials as files that other tuners read."""

from pathlib import Path
from typing import Annotated

import typer

from tuner.commands.options import (
    DEFAULT_OUT,
    AnyKernel,
    AnyProblem,
    ArchName,
    OnlyDevice,
    Out,
    StudyName,
)


def export(
    file_format: Annotated[
        str, typer.Option("--format", help="t4 (results), or kernel-tuner (cache for its simulation mode).")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File that is not there yet. [standard output]")
    ] = None,
    out: Out = DEFAULT_OUT,
    kernel: AnyKernel = None,
    shape: AnyProblem = None,
    arch: ArchName = None,
    device: OnlyDevice = None,
    study: StudyName = None,
) -> None:
    """Write the trials of one kernel, problem and device as a file that other tuners read."""
    from tuner.commands.output import write_whole
    from tuner.exporting import check_output, exported

    check_output(output, file_format)
    text = exported(out, file_format, kernel, shape, arch, device, study)
    if output is None:
        typer.echo(text)
    else:
        write_whole(output, text)
