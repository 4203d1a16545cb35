"""Trials in the formats of other tuners: T4 results, and cache files of Kernel Tuner.

T4 is that of the Benchmark suite for Auto-Tuners (https://github.com/odgaard/TuningSchema); a cache file is
what `kernel_tuner.tune_kernel(cache=...)` reads. Both have few words for failures and none for predictions,
so what they cannot say stands beside it under names of our own, which other programs pass over:

* ``metadata``: kernel, problem, arch, device, policy, how times were obtained (``source``, ``times_are``);
* of each schedule: ``outcome``, ``message``, ``source``, ``duplicate_of``.

A device whose times are predicted is called ``DEVICE (predicted)``.
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from results.comparable import RecordedSpace, source_recorded
from results.errors import ExportError
from results.trial import Outcome, ParameterValue, Source, Trial

US_PER_MS = 1000.0
MS_PER_S = 1000.0
PREDICTED = " (predicted)"
OUTCOME, MESSAGE, DUPLICATE_OF = "outcome", "message", "duplicate_of"
"""What a schedule has beside the words of a format: the kind of a failure, its message, and the key of the
schedule whose code and plan it has."""

# T4 has compile, runtime, correctness, timeout (and constraints, for what is no valid schedule).
_T4_WORDS = {
    Outcome.EMIT: "compile",
    Outcome.ASSEMBLE: "compile",
    Outcome.WRONG: "correctness",
    Outcome.FAULT: "runtime",
    Outcome.REFUSED: "correctness",
    Outcome.TIMEOUT: "timeout",
    Outcome.CRASH: "runtime",
}
_COMPILE_PARTS = ("emit", "assemble")
_VERIFY_PARTS = ("gate", "simulate", "verify")
_ENTRY_NAMES = {
    *("time", "times", "timestamp", "__error__", "grid_size_x", "grid_size_y", "grid_size_z"),
    *("compile_time", "verification_time", "benchmark_time", "strategy_time", "framework_time"),
    *("energy_j", OUTCOME, MESSAGE, "source", DUPLICATE_OF),
}


def t4_text(space: RecordedSpace) -> str:
    """A T4 results file, a line a schedule."""
    head = {"schema_version": "1.0.0", "metadata": {"timeunit": "milliseconds", **_metadata(space)}}
    rows = [json.dumps(_t4_result(space, number), allow_nan=False) for number in range(len(space.trials))]
    return json.dumps(head)[:-1] + ',\n"results": [\n' + ",\n".join(rows) + "\n]\n}\n"


def kernel_tuner_text(space: RecordedSpace) -> str:
    """A Kernel Tuner cache file, closed, a line a schedule as Kernel Tuner writes it.

    Raises:
        ExportError: A parameter has a name that such a file has for something else.
    """
    taken = sorted(_ENTRY_NAMES.intersection(space.names))
    if taken:
        raise ExportError(
            f"a Kernel Tuner cache has {taken[0]} for something else than a parameter; export --format t4"
        )
    key = space.trials[0].key
    head = {
        "device_name": _device(space),
        "kernel_name": key.kernel,
        "problem_size": _sizes(key.problem),
        "tune_params_keys": list(space.names),
        "tune_params": dict(zip(space.names, space.values, strict=True)),
        "objective": "time",
        "metadata": _metadata(space),
    }
    rows = [
        f"{json.dumps(_key(space, number))}: {json.dumps(_cache_entry(space, number), allow_nan=False)}"
        for number in range(len(space.trials))
    ]
    # Kernel Tuner knows a closed file by its last three characters.
    return json.dumps(head)[:-1] + ',\n"cache": {\n' + ",\n".join(rows) + "}\n}"


FORMATS: dict[str, Callable[[RecordedSpace], str]] = {"t4": t4_text, "kernel-tuner": kernel_tuner_text}
"""What writes a format, by its name on the command line."""


def schedule_key(schedule: Mapping[str, ParameterValue]) -> str:
    """A schedule as a key of a Kernel Tuner cache."""
    return ",".join(map(str, schedule.values()))


def _sizes(problem: str) -> list[int]:
    """Of a problem in the order in which `--shape` has them; empty where a recording named none."""
    parts = problem.split("x")
    return [int(part) for part in parts] if all(part.isdecimal() for part in parts) else []


def _metadata(space: RecordedSpace) -> dict[str, str]:
    key = space.trials[0].key
    return {
        "kernel": key.kernel,
        "problem": key.problem,
        "arch": key.arch,
        "device": _device(space),
        "policy": key.policy,
        "semantic_hash": key.semantic_hash,
        "source": space.source,
        "times_are": _word(space),
        "ptx-tuner": next((t.versions["ptx-tuner"] for t in space.trials if "ptx-tuner" in t.versions), ""),
    }


def _word(space: RecordedSpace) -> str:
    """Predicted, where one time is; recorded by whoever, measured, or empty where no trial has a time."""
    words = {Source(source).word for source in space.source.split(", ") if source}
    return next((word for word in ("predicted", "recorded", "measured") if word in words), "")


def _device(space: RecordedSpace) -> str:
    name = space.trials[0].key.device
    return name + PREDICTED if space.is_predicted and not name.endswith(PREDICTED) else name


def _t4_result(space: RecordedSpace, number: int) -> dict[str, Any]:
    trial = space.trials[number]
    noted = _noted(space, number)
    time: object = noted.pop("time")
    measurements = [{"name": "time", "value": time, "unit": "ms"}]
    if "energy_j" in noted:
        measurements.append({"name": "energy_j", "value": noted.pop("energy_j"), "unit": "J"})
    measurements += [{"name": name, "value": value, "unit": ""} for name, value in noted.items()]
    right = trial.outcome.has_time
    return {
        "timestamp": _timestamp(trial),
        "configuration": _schedule(space, number),
        "times": {
            "compilation": _spent_ms(trial, _COMPILE_PARTS),
            "benchmark": _spent_ms(trial, ("measure",)),
            "framework": 0.0,
            "search_algorithm": 0.0,
            "validation": _spent_ms(trial, _VERIFY_PARTS),
            "runtimes": _times_ms(trial),
        },
        "invalidity": "correct" if right else _T4_WORDS[trial.outcome],
        "correctness": 1 if right else 0,
        "measurements": measurements,
        "objectives": ["time"],
    }


def _cache_entry(space: RecordedSpace, number: int) -> dict[str, Any]:
    trial = space.trials[number]
    noted = _noted(space, number)
    error = {} if trial.outcome.has_time else {"__error__": noted["time"]}
    return {
        **_schedule(space, number),
        **noted,
        **error,
        "times": _times_ms(trial),
        "compile_time": _spent_ms(trial, _COMPILE_PARTS),
        "verification_time": _spent_ms(trial, _VERIFY_PARTS),
        "benchmark_time": _spent_ms(trial, ("measure",)),
        "strategy_time": 0.0,
        "framework_time": 0.0,
        "timestamp": _timestamp(trial),
    }


def _noted(space: RecordedSpace, number: int) -> dict[str, Any]:
    """The time in milliseconds, or Kernel Tuner's word for a failure, and what the formats do not know."""
    trial = space.trials[number]
    noted: dict[str, Any] = {}
    if trial.outcome.has_time:
        assert trial.measurement is not None
        noted["time"] = trial.measurement.time_us / US_PER_MS
        if trial.measurement.energy_j is not None:
            noted["energy_j"] = trial.measurement.energy_j
        noted[OUTCOME] = str(Outcome.OK)
        noted["source"] = source_recorded(trial)
    else:
        compiles = _T4_WORDS[trial.outcome] == "compile"
        noted["time"] = "CompilationFailedConfig" if compiles else "RuntimeFailedConfig"
        noted[OUTCOME] = str(trial.outcome)
        noted[MESSAGE] = space.message(number)
    if space.originals[number] != number:
        noted[DUPLICATE_OF] = _key(space, space.originals[number])
    return noted


def _schedule(space: RecordedSpace, number: int) -> Mapping[str, ParameterValue]:
    schedule = space.trials[number].schedule
    return {name: schedule[name] for name in space.names}


def _key(space: RecordedSpace, number: int) -> str:
    return schedule_key(_schedule(space, number))


def _times_ms(trial: Trial) -> list[float]:
    if trial.measurement is None or not trial.outcome.has_time:
        return []
    return [time_us / US_PER_MS for time_us in trial.measurement.times_us]


def _spent_ms(trial: Trial, parts: tuple[str, ...]) -> float:
    return MS_PER_S * sum(trial.seconds.get(part, 0.0) for part in parts)


def _timestamp(trial: Trial) -> str:
    return str(datetime.fromtimestamp(trial.finished_at or trial.started_at, UTC))
