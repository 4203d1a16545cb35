"""`tune check`: is a schedule, or a sample of a space, right?"""

from typing import Annotated

import typer

from tuner.commands.options import AsJson, KernelName, Ptxas, Settings, Shape, Tensor, Weights, Workers

_SHOWN = 20


def check(
    kernel: KernelName,
    arch: Annotated[
        str, typer.Option("--arch", help="As sm_89, several joined by commas, or all.")
    ] = "sm_89",
    settings: Settings = None,
    sample: Annotated[int | None, typer.Option("--sample", help="Check so many random schedules.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the sample and of the data.")] = 0,
    shape: Shape = None,
    weights: Weights = None,
    tensor: Tensor = None,
    blocks: Annotated[
        int | None, typer.Option("--blocks", help="With --shape: only so many blocks, evenly spread.")
    ] = None,
    workers: Workers = None,
    ptxas: Ptxas = None,
    as_json: AsJson = False,
) -> None:
    """Assemble without a warning, simulate, compare: edge problems, or all of --shape or of --weights."""
    from emitters import kernel_named
    from emitters.target import ARCHS, Target
    from search_spaces import space_for
    from tuner.checking import Extent, absent_levels, check_schedules
    from tuner.checking import sample as drawn
    from tuner.commands.options import check_least
    from tuner.commands.output import cores, print_json, print_table
    from tuner.ptxas import Assembler
    from tuner.schedules import schedule_from, schedule_text
    from tuner.task import RequestError, problem_for

    if sample is not None and settings:
        raise RequestError("--sample draws schedules, --set gives one; use either")
    real = weights is not None or tensor is not None
    if blocks is not None and ((shape is None and not real) or blocks < 2):
        raise RequestError(f"--blocks needs --shape or --weights and must be at least 2, got {blocks}")
    check_least(1, sample=sample, workers=workers)
    check_least(0, seed=seed)
    entry = kernel_named(kernel)
    problem = problem_for(entry, shape, weights, tensor) if shape is not None or real else None
    extent = Extent(problem, blocks, seed)
    assembler = Assembler(ptxas)
    archs = list(ARCHS) if arch == "all" else arch.split(",")
    targets = [Target.of(name) for name in archs]
    rows: list[list[object]] = []
    failed = []
    for target in targets:
        space = space_for(entry.id, target)
        if sample is None:
            schedules = [schedule_from(entry, space, settings or [])]
        else:
            schedules = drawn(space, sample, seed)
        checked = list(check_schedules(entry.id, target, schedules, extent, assembler, workers or cores()))
        wrong = [one for one in checked if one.failure is not None]
        failed += wrong
        problems = sum(len(one.problems) for one in checked)
        absent = absent_levels(space, schedules) if sample is not None else []
        seconds = sum(one.seconds for one in checked)
        rows.append(
            [target.arch.name, len(checked), problems, len(checked) - len(wrong), len(wrong), seconds,
             ", ".join(absent) or "none"]
        )  # fmt: skip
    columns = ["arch", "schedules", "problems", "right", "failed", "seconds", "levels not drawn"]
    if as_json:
        failures = [
            {"arch": one.arch, "outcome": one.failure.outcome, "message": one.failure.message,
             "schedule": dict(one.schedule)}
            for one in failed if one.failure is not None
        ]  # fmt: skip
        print_json({"archs": [dict(zip(columns, row, strict=True)) for row in rows], "failures": failures})
    else:
        print_table(columns, rows)
        for one in failed[:_SHOWN]:
            assert one.failure is not None
            typer.echo(f"{one.arch} {one.failure.outcome}: {one.failure.message}")
            typer.echo(f"  {schedule_text(one.schedule)}")
        if len(failed) > _SHOWN:
            typer.echo(f"and {len(failed) - _SHOWN} more; --json has them all")
    if failed:
        raise typer.Exit(1)
