"""`tune results` and `tune report`: read what was kept."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.commands.options import (
    DEFAULT_OUT,
    AnyKernel,
    AnyProblem,
    AsJson,
    OnlyDevice,
    Out,
    StudyName,
)

if TYPE_CHECKING:
    from results.trial import Trial


def results(
    out: Out = DEFAULT_OUT,
    kernel: AnyKernel = None,
    shape: AnyProblem = None,
    device: OnlyDevice = None,
    study: StudyName = None,
    failures: Annotated[
        bool, typer.Option("--failures", help="What failed, by kind, with a message.")
    ] = False,
    history: Annotated[bool, typer.Option("--history", help="Every trial of one --study, in order.")] = False,
    importance: Annotated[
        bool, typer.Option("--importance", help="Which parameters mattered, by the sampler's own model.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the best of every kernel, problem and device in a directory, or what failed there."""
    from results.analysis import best_table, failures_table, history_table
    from tuner.commands.options import check_either
    from tuner.commands.output import frame_records, print_frame, print_json
    from tuner.reading import trials_in
    from tuner.warm_start import learned_from

    check_either(("--failures", failures), ("--history", history), ("--importance", importance))
    trials = trials_in(out, kernel, study, shape, device=device, one_study=history)
    if importance:
        _show_importance(trials, as_json)
        return
    table = failures_table(trials) if failures else history_table(trials) if history else best_table(trials)
    if not (failures or history):
        told = [learned_from(out, study) for study in table["study"]]
        if any(told):
            table.insert(len(table.columns) - 1, "learned_from", told)  # the schedule is long, and last
    if as_json:
        print_json(frame_records(table))
    elif table.empty:
        typer.echo(f"{len(trials)} trials, none that {'failed' if failures else 'has a time'}")
    else:
        print_frame(table)


def _show_importance(trials: "list[Trial]", as_json: bool) -> None:
    from tuner.commands.output import print_json, print_table
    from tuner.importance import COLUMNS, importances, table_rows

    found = importances(trials)
    if as_json:
        print_json([one.to_json() for one in found])
        return
    if not found:
        typer.echo("0 trials, nothing to learn from")
    for one in found:
        typer.echo(one.title)
        if one.parameters:
            print_table(COLUMNS, table_rows(one))


def report(
    out: Out = DEFAULT_OUT,
    kernel: AnyKernel = None,
    shape: AnyProblem = None,
    device: OnlyDevice = None,
    study: StudyName = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="File. [standard output]")] = None,
) -> None:
    """Write a Markdown page about the trials in a directory."""
    from results.report import report as page_of
    from tuner.commands.output import write_whole
    from tuner.reading import trials_in

    page = page_of(trials_in(out, kernel, study, shape, device=device))
    if output is None:
        typer.echo(page, nl=False)
    else:
        write_whole(output, page)
