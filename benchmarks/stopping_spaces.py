"""Spaces for `benchmarks/stopping.py`: kernels of ours with predicted times, and made-up ones."""

import gzip
import itertools
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from seeding import wrong_seed

from emitters import kernel_named
from emitters.kernel import EmitError, Kernel, ParameterValue, schedule_values
from results.trial import Outcome
from search_spaces import space_for
from tuner.devices.device import Candidate
from tuner.devices.errors import CandidateFaultError
from tuner.devices.recorded import Recording
from tuner.devices.simulated import SimulatedDevice
from tuner.ptxas import AssembleError, Assembler
from tuner.samplers.auto import AutoCore
from tuner.samplers.seeding import outlined_us

MADE_UP = "made-up"
SIZES = (8, 16, 32, 64, 128)


def record(
    kernel_name: str, gpu: str, hold: Sequence[str], closed_forms: bool, family: str | None, out: Path
) -> Path:
    """A Kernel Tuner cache of the predicted time of every schedule of a kernel for its default problem.

    Args:
        kernel_name: Id or alias.
        gpu: As ``rtx4090``.
        hold: Parameters that keep their hand-written level.
        closed_forms: Whether the space's closed forms are asked, which takes no time, rather than what ptxas
            makes of each schedule.
        family: First part of the file's name; None takes the kernel.
        out: Directory.
    """
    kernel, device = kernel_named(kernel_name), SimulatedDevice(gpu)
    problem = kernel.default_problem
    space = space_for(kernel.id, device.target).serving(problem.sizes)
    baseline = schedule_values(kernel.baseline)
    held = {space.names.index(name): baseline[name] for name in hold}
    kept = np.ones(len(space), dtype=np.bool_)
    for column, value in held.items():
        kept &= space.levels[:, column] == space.parameters[column].values.index(value)
    numbers = np.flatnonzero(kept).tolist()
    if closed_forms:
        if space.outliner is None:
            raise SystemExit(f"{kernel.id} has no closed forms; leave --closed-forms out")
        outlined = outlined_us(space.outliner(space.columns, problem.sizes), device.target)
        times = ((number, float(outlined[number])) for number in numbers)
    else:
        times = ((number, _predicted_us(kernel, device, space.values(number))) for number in numbers)
    cache = {}
    for number, time_us in times:
        schedule = space.values(number)
        time = "CompilationFailedConfig" if np.isnan(time_us) else time_us / 1000
        cache[",".join(map(str, schedule.values()))] = {**schedule, "time": time}
        if not closed_forms and len(cache) % 100 == 0:
            print(f"{kernel.id}: {len(cache)} of {len(numbers)}", file=sys.stderr, flush=True)
    named = kernel.id.replace("_", "-")
    head = {
        "device_name": f"{device.name} (predicted)",
        "kernel_name": kernel.id,
        "metadata": {"problem": str(problem), "arch": device.target.arch.name, "source": "model"},
    }
    levels = {parameter.name: parameter.values for parameter in space.parameters}
    return _written(out / f"{family or named}_{named}_{gpu}.json.gz", levels, cache, head)


def made_up(columns: int, seed: int, out: Path) -> Path:
    """A Kernel Tuner cache of made-up times: what each parameter and each pair of neighbours does, by chance.

    Unkind, since interactions have no structure at all; so these calibrate, and are not judged as a kernel.
    """
    rng = np.random.default_rng(seed)
    levels = np.array(list(itertools.product(range(len(SIZES)), repeat=columns)))
    logs = sum(0.3 * rng.normal(size=len(SIZES)).cumsum()[levels[:, d]] for d in range(columns))
    for d in range(columns - 1):
        logs = logs + 0.2 * rng.normal(size=(len(SIZES), len(SIZES)))[levels[:, d], levels[:, d + 1]]
    names = "abcdefgh"[:columns]
    cache = {}
    for row, time in zip(levels.tolist(), np.exp(logs).tolist(), strict=True):
        schedule = {name: SIZES[level] for name, level in zip(names, row, strict=True)}
        cache[",".join(map(str, schedule.values()))] = {**schedule, "time": time}
    file = out / f"{MADE_UP}_{len(levels)}_{seed}.json.gz"
    return _written(file, dict.fromkeys(names, SIZES), cache, {"kernel_name": "made_up"})


def seeded(kernel_name: str, gpu: str, draw: int) -> tuple[Recording, AutoCore]:
    """All of a kernel's space by its closed forms, and a core that the cost model seeds, being wrong.

    Every constant of the seeding model is off by a random factor of 0.5 to 2, as in `benchmarks/seeding.py`.

    Args:
        kernel_name: Id or alias of a kernel with closed forms.
        gpu: As ``rtx4090``.
        draw: Of the factors.
    """
    kernel, device = kernel_named(kernel_name), SimulatedDevice(gpu)
    problem = kernel.default_problem
    space = space_for(kernel.id, device.target).serving(problem.sizes)
    if space.outliner is None:
        raise SystemExit(f"{kernel.id} has no closed forms to seed a search with")
    times_us = outlined_us(space.outliner(space.columns, problem.sizes), device.target)
    recording = Recording(
        kernel=kernel.id,
        device=device.name,
        names=space.names,
        values=tuple(parameter.values for parameter in space.parameters),
        levels=space.levels,
        times_us=times_us,
        raw_us=times_us[:, None],
        outcomes=tuple(Outcome.CRASH if failed else Outcome.OK for failed in np.isnan(times_us)),
        messages=("",) * len(space),
    )
    seed = wrong_seed(SimpleNamespace(space=space, problem=problem), draw)  # type: ignore[arg-type]
    return recording, AutoCore(space, None, seed.hints, seed.first.tolist())


def _written(
    file: Path,
    levels: Mapping[str, Sequence[ParameterValue]],
    cache: Mapping[str, Mapping[str, object]],
    head: Mapping[str, object],
) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    space = {"tune_params_keys": list(levels), "tune_params": levels}
    document = {"device_name": "", **head, **space, "cache": cache}
    file.write_bytes(gzip.compress(json.dumps(document).encode(), mtime=0))
    return file


def _predicted_us(kernel: Kernel[Any], device: SimulatedDevice, schedule: dict[str, ParameterValue]) -> float:
    """Of an emitted and assembled schedule; NaN where it cannot be."""
    try:
        emitted = kernel.emit(kernel.schedule(schedule), device.target)
        binary = Assembler().assemble(emitted.ptx, device.target.arch.name)
        candidate = Candidate(kernel.id, schedule, emitted, binary)
        return device.measure(candidate, kernel.default_problem, None).time_us
    except (EmitError, AssembleError, CandidateFaultError):
        return float("nan")
