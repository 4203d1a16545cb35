"""`tune run`: tune one kernel for one problem."""

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from tuner.commands.options import (
    DEFAULT_OUT,
    ArchName,
    AsJson,
    DeviceName,
    Out,
    Ptxas,
    Shape,
    StudyName,
    Tensor,
    Weights,
    Workers,
)


def run(
    kernel: Annotated[
        str | None, typer.Option("--kernel", help="Id or alias; a recording has its own.")
    ] = None,
    trials: Annotated[
        int, typer.Option("--trials", help="Trials of the study in all; the same command resumes.")
    ] = 200,
    shape: Shape = None,
    weights: Weights = None,
    tensor: Tensor = None,
    device: DeviceName = None,
    arch: ArchName = None,
    t1: Annotated[
        Path | None, typer.Option("--t1", help="T1 input for the parameters of replay:FILE.")
    ] = None,
    until: Annotated[
        float | None, typer.Option("--until", help="End when so sure that the best is within 1 %, as 0.99.")
    ] = None,
    warm_start: Annotated[
        list[str] | None,
        typer.Option(
            "--warm-start",
            help="What a new study learns from: an OUT of earlier runs, a recording, or auto for the other "
            "studies of the kernel in this OUT. Repeatable.",
        ),
    ] = None,
    sampler: Annotated[str | None, typer.Option("--sampler", help="How schedules are chosen.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Repeats a run on sim and replay.")] = None,
    workers: Workers = None,
    look_ahead: Annotated[
        int | None, typer.Option("--look-ahead", help="Trials in flight. [made from the workers]")
    ] = None,
    out: Out = DEFAULT_OUT,
    study: StudyName = None,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds for a candidate at each stage.")
    ] = 120.0,
    objective: Annotated[
        str, typer.Option("--objective", help="What to make least: time, or energy on a GPU that counts it.")
    ] = "time",
    baseline: Annotated[
        bool, typer.Option("--baseline", help="Time cuBLAS, torch or CuPy as well, on the GPU.")
    ] = False,
    ptxas: Ptxas = None,
    as_json: AsJson = False,
) -> None:
    """Tune a kernel for a problem: propose, emit, assemble, prove, time; every trial is kept."""
    import optuna
    from rich.console import Console

    from results.analysis import time_of
    from tuner import closing
    from tuner.commands.output import cores, print_json
    from tuner.loop import Ending
    from tuner.progress import Progress
    from tuner.ptxas import Assembler
    from tuner.replaying import about_for, loop_for
    from tuner.samplers import DEFAULT_SAMPLER
    from tuner.summary import lines, summarise
    from tuner.task import Request

    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it reports on our progress line otherwise
    request = Request(
        trials=trials,
        out=out,
        assembler=Assembler(ptxas),
        study=study,
        sampler=sampler or DEFAULT_SAMPLER,
        seed=seed,
        workers=cores() if workers is None else workers,
        look_ahead=look_ahead,
        limit_s=timeout,
        until=until,
        warm_start=tuple(warm_start or ()),
    )
    task = about_for(kernel, shape, device, arch, objective, t1, weights, tensor)
    title = f"{task.key.kernel} {task.key.problem} on {task.key.device} ({task.key.arch})"
    console = Console(stderr=as_json)
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        if baseline:
            closing.check_baselines(task)
        with Progress(console, title, trials) as progress:
            tuning = loop_for(task, request, progress)
            ending = tuning.run()
            elapsed_s = progress.elapsed_s
        closed = closing.Closing()
        if ending is not Ending.INTERRUPTED:
            try:
                closed = closing.close_study(task, tuning.name, tuning.rows, request, baseline)
            except KeyboardInterrupt:
                ending = Ending.INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
        task.close()
    summary = summarise(task, tuning.name, tuning.rows, tuning.learned_from)
    if as_json:
        where = {"ending": ending, "out": str(Path(out).absolute())}
        print_json({**summary.to_json(), **closed.to_json(), **where})
    else:
        if ending is Ending.INTERRUPTED:
            console.print("interrupted: the same command goes on where this stopped", highlight=False)
        best_us = None if summary.best is None else time_of(summary.best)
        beside = closing.lines(closed, best_us)
        for line in lines(summary, title, elapsed_s, progress.finished_here, out, beside):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if ending is Ending.INTERRUPTED:
        raise typer.Exit(130)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
