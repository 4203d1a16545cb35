"""`tune sanitize`: any PTX file on the simulator, and the faults it has."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.commands.options import AsJson

if TYPE_CHECKING:
    from tuner.sanitize import Sanitized

_ARGUMENT_HELP = (
    "One for each parameter, in order. A buffer: in:FILE.npy, out:TYPE:SHAPE (undefined until written), "
    "zeros:TYPE:SHAPE, random:TYPE:SHAPE[:SEED], same:NAME (an earlier one). A scalar: a number as the "
    "parameter types it, or TYPE:NUMBER. A struct: bytes:FILE.npy. A tensor map: "
    "map:BUFFER,box=SHAPE[,swizzle=BYTES]. TYPE is u8 s8 .. s64 f16 bf16 f32 f64, SHAPE as 64x32. NAME=... "
    "before a buffer names it. Repeatable."
)


def sanitize(
    file: Annotated[Path, typer.Argument(help="PTX, of any compiler.", metavar="FILE.ptx")],
    grid: Annotated[str, typer.Option("--grid", help="Blocks, as X[,Y[,Z]].")],
    block: Annotated[str, typer.Option("--block", help="Threads of a block, as X[,Y[,Z]].")],
    entry: Annotated[str | None, typer.Option("--entry", help="By name. [the only one]")] = None,
    shared: Annotated[int, typer.Option("--shared", help="Dynamic shared bytes of a block.")] = 0,
    arguments: Annotated[list[str] | None, typer.Option("--arg", help=_ARGUMENT_HELP)] = None,
    save: Annotated[
        list[str] | None, typer.Option("--save", help="NAME=FILE.npy: write a buffer. Repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the choices that the ISA leaves open.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Run a PTX kernel without a GPU: races, stray accesses, undefined reads, and its traffic.

    Exit code 0 for a clean run, 1 where there are faults, 2 for what cannot be run.
    """
    from tuner.arguments import ArgumentError
    from tuner.commands.output import print_json
    from tuner.sanitize import read_ptx, saves_of, sizes_of
    from tuner.sanitize import sanitize as sanitized
    from tuner.sanitize import save as saved
    from tuner.simulator import PtxError
    from tuner.task import RequestError

    try:
        files = saves_of(save or [])
        found = sanitized(
            read_ptx(file),
            arguments or [],
            grid=sizes_of(grid, "--grid"),
            block=sizes_of(block, "--block"),
            entry=entry,
            shared_bytes=shared,
            seed=seed,
        )
        saved(found, files)
    except (ArgumentError, PtxError) as error:
        raise RequestError(str(error)) from None
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)
    if not found.report.clean:
        raise typer.Exit(1)


def _print(found: "Sanitized") -> None:
    from tuner.commands.output import print_table
    from tuner.sanitize import fault_lines

    report, counters = found.report, found.counters
    for fault in report.faults:
        typer.echo("\n".join(fault_lines(fault)))
    for note in report.notes:
        typer.echo(f"note: {note}")
    for name, missing in report.unwritten.items():
        first = ", ".join(map(str, missing.first))
        typer.echo(f"never written: {missing.count} elements of {name}, the first {first}")
    kinds = len(report.faults)
    says = "no fault" if kinds == 0 else f"{kinds} fault{'s' if kinds > 1 else ''}"
    grid, block = (",".join(map(str, sizes)) for sizes in (found.launch.grid, found.launch.block))
    typer.echo(f"{found.launch.entry} ({found.target}), grid {grid}, block {block}: {says}")
    typer.echo()
    rows = [[name, count] for name, count in counters.instructions.most_common()]
    print_table(["warp instructions", "count"], [*rows, ["all", counters.total_instructions]])
    if found.traffic:
        typer.echo()
        print_table(["traffic", "bytes", "", "", "ideal"], _traffic_rows(found))


def _traffic_rows(found: "Sanitized") -> list[list[object]]:
    rows: list[list[object]] = []
    for name, traffic in found.traffic.items():
        nbytes, count, ideal = traffic.values()
        unit = next(key for key in traffic if key in ("sectors", "wavefronts"))
        rows.append([name.replace("_", " "), nbytes, count, unit, ideal])
    return rows
