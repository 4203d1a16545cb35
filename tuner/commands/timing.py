"""`tune time`: time one schedule, and say where the time goes."""

from typing import Annotated

import typer

from tuner.commands.options import (
    ArchName,
    AsJson,
    DeviceName,
    KernelName,
    Ptxas,
    Settings,
    Shape,
    Tensor,
    Weights,
)


def time(
    kernel: KernelName,
    shape: Shape = None,
    weights: Weights = None,
    tensor: Tensor = None,
    device: DeviceName = None,
    arch: ArchName = None,
    settings: Settings = None,
    explain: Annotated[bool, typer.Option("--explain", help="Also where the time goes.")] = False,
    ptxas: Ptxas = None,
    as_json: AsJson = False,
) -> None:
    """Prove one schedule and time it: predicted on sim, measured on cuda."""
    from tuner.commands.output import print_json, print_table
    from tuner.ptxas import Assembler
    from tuner.schedules import schedule_from
    from tuner.single import time_schedule
    from tuner.task import task_for

    task = task_for(kernel, shape, device, arch, weights=weights, tensor=tensor)
    try:
        schedule = schedule_from(task.kernel, task.space, settings or [])
        timed = time_schedule(task, schedule, Assembler(ptxas))
    finally:
        task.device.close()
    if as_json:
        print_json(timed.to_json())
        return
    time = timed.measurement
    typer.echo(
        f"{task.kernel.id} {task.problem} on {task.device.name}: {time.time_us:.2f} us {time.source.word}, "
        f"{timed.bound.rate(time.time_us)}, {100 * timed.bound.time_us / time.time_us:.0f} % of the bound of "
        f"{timed.bound.time_us:.2f} us ({timed.bound.of})"
    )
    for name, value in time.other_us.items():
        typer.echo(f"{name}: {value:.2f} us")
    if explain:
        rows = [
            (name, value, f"{100 * value / time.time_us:.0f} %") for name, value in time.breakdown_us.items()
        ]
        print_table(["part", "us", "of the time"], rows)
        print_table(["figure", "value"], list(timed.figures.items()))
