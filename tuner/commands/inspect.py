"""`tune kernels`, `tune space`, `tune emit`: look at what there is to tune, and at one schedule."""

from pathlib import Path
from typing import Annotated

import typer

from tuner.commands.options import (
    DEFAULT_OUT,
    AnyProblem,
    ArchName,
    AsJson,
    KernelName,
    OnlyDevice,
    Out,
    Settings,
    Shape,
    StudyName,
)

DEFAULT_ARCH = "sm_89"


def kernels(arch: ArchName = None, as_json: AsJson = False) -> None:
    """List the kernels: what they compute, what they are usually tuned for, and how many schedules are valid.

    The first problem of a kernel is its default.
    """
    from emitters import KERNELS
    from emitters.target import Target
    from search_spaces import space_for
    from tuner.commands.output import print_json, print_table

    target = Target.of(arch or DEFAULT_ARCH)
    listed = [
        {
            "kernel": kernel.id,
            "aliases": list(kernel.aliases),
            "computes": kernel.spec.computes,
            "sizes": "x".join(kernel.spec.sizes),
            "default": str(kernel.default_problem),
            "usual problems": [str(problem) for problem in kernel.usual_problems],
            f"schedules on {target.arch.name}": len(space_for(kernel.id, target)),
        }
        for kernel in KERNELS.values()
    ]
    if as_json:
        print_json(listed)
    else:
        columns = [name for name in listed[0] if name != "default"]  # the first of the usual ones
        print_table(columns, [[_joined(row[name]) for name in columns] for row in listed])


def space(
    kernel: KernelName,
    arch: ArchName = None,
    constraints: Annotated[
        bool, typer.Option("--constraints", help="Also every rule and its reason.")
    ] = False,
    settings: Settings = None,
    coverage: Annotated[
        bool, typer.Option("--coverage", help="What the trials in --out did not look at.")
    ] = False,
    out: Out = DEFAULT_OUT,
    shape: AnyProblem = None,
    device: OnlyDevice = None,
    study: StudyName = None,
    as_json: AsJson = False,
) -> None:
    """Show a kernel's parameters and rules; with --set, say whether a schedule is valid, and why not.

    With --coverage, show which levels, pairs of levels and regions no trial in a directory has looked at;
    --shape, --device and --study are for that.
    """
    from emitters import kernel_named
    from emitters.target import Target
    from search_spaces import space_for
    from tuner.commands.options import check_either
    from tuner.commands.output import print_json, print_table
    from tuner.schedules import level_text, schedule_from, schedule_text
    from tuner.task import RequestError

    check_either(("--coverage", coverage), ("--set", settings), ("--constraints", constraints))
    given = [name for name, value in (("--shape", shape), ("--device", device), ("--study", study)) if value]
    if given and not coverage:
        raise RequestError(f"{given[0]} chooses trials for --coverage; add that, or leave {given[0]} out")
    if coverage:
        _show_coverage(out, kernel, shape, arch, device, study, as_json)
        return
    entry = kernel_named(kernel)
    searched = space_for(entry.id, Target.of(arch or DEFAULT_ARCH))
    if settings:
        schedule = schedule_from(entry, searched, settings)
        number = searched.index(schedule)
        if as_json:
            print_json({"kernel": entry.id, "number": number, "schedule": schedule})
        else:
            typer.echo(f"valid, number {number} of {len(searched)}: {schedule_text(schedule)}")
        return
    if as_json:
        print_json(
            {
                "kernel": entry.id,
                "arch": searched.target.arch.name,
                "valid": len(searched),
                "hash": searched.hash,
                "parameters": [
                    {"name": p.name, "values": p.values, "kind": p.kind} for p in searched.parameters
                ],
                "constraints": [{"name": c.name, "reason": c.reason} for c in searched.constraints],
            }
        )
        return
    typer.echo(f"{entry.id} on {searched.target.arch.name}: {len(searched)} valid schedules")
    rows = [(p.name, " ".join(map(level_text, p.values)), p.kind, p.meaning) for p in searched.parameters]
    print_table(["parameter", "levels", "kind", "meaning"], rows)
    if constraints:
        rules = [(c.name, ", ".join(c.parameters), c.reason) for c in searched.constraints]
        print_table(["constraint", "looks at", "reason"], rules)


def _show_coverage(
    out: Path,
    kernel: str,
    shape: str | None,
    arch: str | None,
    device: str | None,
    study: str | None,
    as_json: bool,
) -> None:
    from emitters import kernel_named
    from tuner.commands.output import print_json, print_table
    from tuner.coverage import coverages, level_rows, pair_rows, text_lines
    from tuner.reading import trials_in

    found = coverages(trials_in(out, kernel_named(kernel).id, study, shape, arch, device))
    if as_json:
        print_json([one.to_json() for one in found])
        return
    if not found:
        typer.echo(f"no trials of {kernel} in {out} that were asked for")
    for one in found:
        for line in text_lines(one):
            typer.echo(line)
        print_table(["parameter", "trials with each level", "never tried"], level_rows(one))
        typer.echo(f"pairs of levels: {one.pairs}, of which {len(one.untried_pairs)} were never together")
        if one.untried_pairs:
            print_table(["never together", "valid schedules"], pair_rows(one))


def emit(
    kernel: KernelName,
    arch: ArchName = None,
    settings: Settings = None,
    shape: Shape = None,
    plan: Annotated[bool, typer.Option("--plan", help="The launch plan as JSON instead of the PTX.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. [standard output]")
    ] = None,
) -> None:
    """Print or write the PTX of one schedule."""
    from emitters import kernel_named
    from emitters.target import Target
    from search_spaces import space_for
    from tuner.commands.output import json_text, write_whole
    from tuner.pipeline import check_serves
    from tuner.schedules import schedule_from

    entry = kernel_named(kernel)
    target = Target.of(arch or DEFAULT_ARCH)
    schedule = schedule_from(entry, space_for(entry.id, target), settings or [])
    emitted = entry.emit(entry.schedule(schedule), target)
    if shape is not None:
        check_serves(emitted, entry.spec.parse_problem(shape))
    text = json_text(emitted.plan.to_json()) + "\n" if plan else emitted.ptx
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_whole(output, text)


def _joined(cell: object) -> object:
    return ", ".join(map(str, cell)) if isinstance(cell, list) else cell
