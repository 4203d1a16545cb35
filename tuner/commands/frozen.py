"""`tune frozen`: list, verify and export pinned kernels."""

from pathlib import Path
from typing import Annotated

import typer

from tuner.commands.options import DEFAULT_OUT, AnyKernel, AsJson, Out, Ptxas

frozen = typer.Typer(
    help="List, verify and export pinned kernels.", rich_markup_mode=None, no_args_is_help=False
)


@frozen.command("list")
def list_entries(out: Out = DEFAULT_OUT, kernel: AnyKernel = None, as_json: AsJson = False) -> None:
    """List what is pinned; every hash is checked."""
    from tuner.commands.output import print_json, print_table
    from tuner.freezing import entries_in

    entries = entries_in(out, kernel)
    if as_json:
        print_json([entry.manifest for entry in entries])
        return
    rows = [
        (
            entry.kernel,
            entry.arch,
            entry.problem,
            entry.measurement.time_us,
            entry.measurement.source.word,
            entry.device,
            "-" if entry.margin is None else f"{100 * entry.margin:.2f} %",
            entry.created_at,
        )
        for entry in entries
    ]
    columns = ["kernel", "arch", "problem", "time_us", "is", "device", "margin", "pinned"]
    print_table(columns, rows)


@frozen.command()
def verify(
    out: Out = DEFAULT_OUT, kernel: AnyKernel = None, ptxas: Ptxas = None, as_json: AsJson = False
) -> None:
    """Check hashes, emit and assemble every pinned kernel again and compare, and prove it once more."""
    from results.errors import FrozenError
    from tuner.commands.output import print_json, print_table
    from tuner.freezing import verify_pinned
    from tuner.ptxas import Assembler

    findings = verify_pinned(out, kernel, Assembler(ptxas))
    if as_json:
        print_json([{"place": str(finding.place), "problem": finding.complaint} for finding in findings])
    else:
        print_table(["pinned", "verdict"], [(str(f.place), f.complaint or "right") for f in findings])
    changed = next((finding for finding in findings if finding.is_changed), None)
    if changed is not None:
        raise FrozenError(changed.complaint)
    if any(finding.complaint for finding in findings):
        raise typer.Exit(1)


@frozen.command()
def export(
    destination: Annotated[Path, typer.Argument(help="Directory or .zip to write; must not be there yet.")],
    out: Out = DEFAULT_OUT,
) -> None:
    """Copy all pinned kernels into one directory or archive that can be shipped."""
    from results.frozen import export as export_entries
    from results.frozen import places

    export_entries(places(out), destination)
    typer.echo(f"wrote {destination}")
