"""Trials for the tests of `results`, as the pipeline makes them."""

from dataclasses import replace
from typing import Any

from results.trial import Measurement, Outcome, Resources, Source, StudyKey, Trial, Verdict

KEY = StudyKey(
    kernel="ternary_gemm_s8",
    semantic_hash="5e" * 32,
    problem="4096x3456x1280",
    arch="sm_89",
    device="sim:rtx4090",
    policy="model",
    objective="time",
    space_hash="0b" * 32,
)
SCHEDULE = {"tile_m": 128, "tile_n": 128, "stages": 3, "swizzle": True, "decode": "register"}
OTHER = replace(KEY, kernel="rmsnorm", problem="4096x1024")


def ended(number: int, **changes: Any) -> Trial:
    """A trial that was proven and timed."""
    trial = Trial(
        study=KEY.name,
        number=number,
        key=KEY,
        schedule={**SCHEDULE, "tile_m": 16 << number % 4},
        outcome=Outcome.OK,
        sizes={"m": 4096, "n": 3456, "k": 1280},
        source_hash=f"{number:064x}",
        code_hash=f"{number + 1:064x}",
        resources=Resources(registers=168, shared_bytes=49152, spill_bytes=0, threads=256),
        verdict=Verdict(mismatches=0, problems=("1x16x16", "300x272x96")),
        measurement=Measurement(
            time_us=60.0 + number,
            source=Source.MODEL,
            times_us=(60.0 + number,),
            policy="model",
            other_us={"warm": 55.5},
            bound_us=44.1,
            breakdown_us={"tensor": 50.0, "dram": 10.25},
            clock_mhz=2520.0,
            details={"waves": 1.5, "limiter": "tensor"},
        ),
        bound_us=44.1,
        seconds={"emit": 0.01, "assemble": 0.2},
        versions={"ptxas": "13.0.88", "python": "3.11.9"},
        sampler="tpe",
        seed=7,
        host="here",
        process=4242,
        started_at=1_760_000_000.25,
        finished_at=1_760_000_001.5,
    )
    return replace(trial, **changes)


def failed(number: int, outcome: Outcome = Outcome.ASSEMBLE, **changes: Any) -> Trial:
    """A trial that did not come as far as a time."""
    nothing: dict[str, Any] = {"resources": None, "verdict": None, "measurement": None, "code_hash": None}
    message = "ptxas gave up: too many registers, raise warps_m"
    return ended(number, **{**nothing, "outcome": outcome, "message": message, **changes})


def started(number: int, **changes: Any) -> Trial:
    """The mark of a trial that is about to touch a device."""
    return failed(number, **{"outcome": Outcome.STARTED, "message": "", "finished_at": None, **changes})


def other(number: int, **changes: object) -> Trial:
    """A trial of another kernel, with parameters of its own."""
    trial = ended(number, study=OTHER.name, key=OTHER, sizes={"rows": 4096, "n": 1024})
    return replace(trial, **{"schedule": {"warps": 4, "vector": 8}, **changes})
