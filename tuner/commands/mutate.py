"""`tune mutate`: does the gate find small faults in an emitted kernel, each of hundreds?"""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.commands.options import AsJson, KernelName, Ptxas, Settings, Workers

if TYPE_CHECKING:
    from tuner.mutation import Judged, Mutated


def mutate(
    kernel: KernelName,
    arch: Annotated[str, typer.Option("--arch", help="As sm_89.")] = "sm_89",
    settings: Settings = None,
    sample: Annotated[
        int | None, typer.Option("--sample", help="So many random schedules instead of one.")
    ] = None,
    mutants: Annotated[int, typer.Option("--mutants", help="Of each schedule.")] = 300,
    seed: Annotated[int, typer.Option("--seed", help="Of the schedules and the mutants.")] = 0,
    workers: Workers = None,
    ptxas: Ptxas = None,
    as_json: AsJson = False,
) -> None:
    """Plant faults in the text and the plan of a kernel, one at a time, and say which the gate finds."""
    from emitters import kernel_named
    from emitters.target import Target
    from search_spaces import space_for
    from tuner.checking import sample as drawn
    from tuner.commands.options import check_least
    from tuner.commands.output import cores, print_json
    from tuner.mutation import Fate
    from tuner.mutation import mutate as mutated
    from tuner.ptxas import Assembler
    from tuner.schedules import schedule_from
    from tuner.task import RequestError

    if sample is not None and settings:
        raise RequestError("--sample draws schedules, --set gives one; use either")
    check_least(1, sample=sample, mutants=mutants, workers=workers)
    check_least(0, seed=seed)
    entry, target = kernel_named(kernel), Target.of(arch)
    space = space_for(entry.id, target)
    schedules = (
        [schedule_from(entry, space, settings or [])] if sample is None else drawn(space, sample, seed)
    )
    assembler = Assembler(ptxas)
    found = []
    for schedule in schedules:
        one = mutated(entry.id, schedule, target, mutants, seed, assembler, workers or cores())
        found.append(one)
        if not as_json:
            _print(one)
    if as_json:
        print_json([_record(one) for one in found])
    elif len(found) > 1:
        _print_sum(found)
    if any(one.count(fate) for one in found for fate in (Fate.MISSED, Fate.ALIVE)):
        raise typer.Exit(1)


def _print(one: "Mutated") -> None:
    from tuner.commands.output import print_table
    from tuner.mutation import Fate
    from tuner.schedules import schedule_text

    rows = [
        [fate.value, why, count]
        for fate in Fate
        for why, count in sorted(one.reasons(fate).items(), key=_by_count)
    ]
    print_table(
        ["fate", "how or why", "mutants"],
        rows,
        f"{schedule_text(one.schedule)}\n{len(one.judged)} of {one.possible} mutants",
    )
    for judged in (*one.of(Fate.MISSED), *one.of(Fate.ALIVE)):
        typer.echo(f"{judged.fate}: {judged.mutant}: {judged.why}: {judged.detail}")
    typer.echo()


def _print_sum(found: "list[Mutated]") -> None:
    from tuner.commands.output import print_table
    from tuner.mutation import Fate

    rows = []
    for fate in Fate:
        reasons = sum((one.reasons(fate) for one in found), start=type(found[0].reasons(fate))())
        rows += [[fate.value, why, count] for why, count in sorted(reasons.items(), key=_by_count)]
    total = sum(len(one.judged) for one in found)
    print_table(["fate", "how or why", "mutants"], rows, f"{len(found)} schedules, {total} mutants")


def _by_count(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]


def _record(one: "Mutated") -> dict[str, Any]:
    return {
        "schedule": dict(one.schedule),
        "possible": one.possible,
        "mutants": [_mutant_record(judged) for judged in one.judged],
    }


def _mutant_record(judged: "Judged") -> dict[str, Any]:
    mutant = judged.mutant
    return {
        "operator": mutant.operator,
        "line": mutant.line or None,
        "before": mutant.before,
        "after": mutant.after,
        "fate": judged.fate.value,
        "why": judged.why,
        "detail": judged.detail,
    }
