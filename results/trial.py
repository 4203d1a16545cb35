"""The values that travel through a tuning run: outcome, verdict, measurement, trial."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

ParameterValue = int | str | bool

OBJECTIVES = ("time", "energy")
"""What a study makes least: `Measurement.time_us` or `Measurement.energy_j`."""


class Outcome(StrEnum):
    """What became of a candidate. Everything but `OK` and `DUPLICATE` is a failure with a message."""

    OK = "ok"
    DUPLICATE = "duplicate"
    EMIT = "emit"
    ASSEMBLE = "assemble"
    WRONG = "wrong"
    FAULT = "fault"
    REFUSED = "refused"
    TIMEOUT = "timeout"
    CRASH = "crash"
    STARTED = "started"

    @property
    def counts(self) -> bool:
        """Whether a trial with this outcome counts towards ``--trials``."""
        return self not in (Outcome.DUPLICATE, Outcome.STARTED)

    @property
    def has_time(self) -> bool:
        """Whether a trial with this outcome carries a time that may win."""
        return self in (Outcome.OK, Outcome.DUPLICATE)


class Source(StrEnum):
    """How a time was obtained. A measured time always outranks a predicted one, however fast that is."""

    MODEL = "model"
    REPLAY = "replay"
    CUDA_EVENTS = "cuda_events"

    @property
    def is_measured(self) -> bool:
        return self is not Source.MODEL

    @property
    def word(self) -> str:
        """What a person reads beside the figure."""
        return {"model": "predicted", "replay": "recorded"}.get(self, "measured")


def recorded_word(source: str) -> str:
    """What a person reads beside a figure that a recording gave.

    Args:
        source: How the recording's times were obtained: values of `Source` joined by commas, empty where
            nothing tells.
    """
    return "recorded prediction" if Source.MODEL in source.split(", ") else Source.REPLAY.word


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a candidate computed the right thing, and on what that was tried.

    Attributes:
        mismatches: Elements outside their bound, over all problems (NaN and unwritten elements included).
        problems: The problems it was run on, written as in ``--shape``.
        first_bad: For a person: the first wrong elements, with index, value and expected value.
        fault: None, or the kind of the first fault: race, out_of_bounds, misaligned, uninitialised,
            divergence, endless.
        fault_message: For a person: where, who, and the other party.
        where: ``simulator`` or ``device``.
    """

    mismatches: int
    problems: tuple[str, ...]
    first_bad: str = ""
    fault: str | None = None
    fault_message: str = ""
    where: str = "simulator"

    @property
    def is_right(self) -> bool:
        return self.mismatches == 0 and self.fault is None and bool(self.problems)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One time, and how it was obtained.

    Attributes:
        time_us: The objective: median over repeats of the whole plan, microseconds.
        source: How it was obtained.
        times_us: Every raw time behind it (one value for a prediction).
        policy: The timing policy by name, e.g. ``model`` or ``cold-l2``.
        other_us: Other figures by name, microseconds (``warm``: the same with a warm L2).
        bound_us: The physical bound of the plan on that GPU: no time can lie below it.
        breakdown_us: Parts of a prediction by name, for reading; they need not add up.
        clock_mhz: Streaming-multiprocessor clock that was used or sampled.
        memory_clock_mhz, temperature_c, driver, energy_j: Of the device; None where there is none.
        details: Anything else worth a column, by name.
    """

    time_us: float
    source: Source
    times_us: tuple[float, ...]
    policy: str
    other_us: Mapping[str, float] = field(default_factory=dict)
    bound_us: float | None = None
    breakdown_us: Mapping[str, float] = field(default_factory=dict)
    clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    driver: str | None = None
    energy_j: float | None = None
    details: Mapping[str, float | str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.time_us > 0:
            raise ValueError(f"a time must be above 0 us, got {self.time_us}")

    @property
    def word(self) -> str:
        """What a person reads beside the time; a prediction that was recorded is called one."""
        if self.source is not Source.REPLAY:
            return self.source.word
        return recorded_word(str(self.details.get("recorded", "")))


@dataclass(frozen=True, slots=True)
class Resources:
    """What the assembler gave a candidate.

    Attributes:
        registers: Registers a thread.
        shared_bytes: Static and dynamic shared memory a block.
        spill_bytes: Bytes of spill stores and loads a thread.
        threads: Threads a block.
    """

    registers: int
    shared_bytes: int
    spill_bytes: int
    threads: int


@dataclass(frozen=True, slots=True)
class StudyKey:
    """What has to agree for two trials to be comparable. Its text form is a study's default name.

    Attributes:
        kernel: Kernel id.
        semantic_hash: Hash of what the kernel computes.
        problem: As in ``--shape``.
        arch: ``sm_89``.
        device: ``sim:rtx4090``, ``cuda:NVIDIA H200``, ``replay:FILE``.
        policy: Timing policy.
        objective: One of `OBJECTIVES`.
        space_hash: Hash of the search space.
        data_hash: Hash of the problem's real data; empty where they are made up.
    """

    kernel: str
    semantic_hash: str
    problem: str
    arch: str
    device: str
    policy: str
    objective: str
    space_hash: str
    data_hash: str = ""

    @property
    def name(self) -> str:
        """Default name of the study: readable, and different whenever any part differs."""
        hashes = f"{self.semantic_hash[:6]}{self.space_hash[:6]}{self.data_hash[:6]}"
        return "-".join(
            [self.kernel, self.problem, self.arch, self.device, self.policy, self.objective, hashes]
        )


@dataclass(frozen=True, slots=True)
class Trial:
    """One evaluated schedule, whatever became of it: a row of the store.

    Attributes:
        study: The study's name.
        number: Optuna's trial number within it.
        key: What has to agree for another trial to be comparable.
        schedule: Every schedule parameter by name.
        outcome: What became of it.
        message: For a failure: the rule, the value, the way out. Empty otherwise.
        sizes: The problem's sizes by name.
        weights: Of real data by name: ``file``, ``tensor``, ``hash``; empty where they are made up.
        source_hash: Of the PTX text and plan.
        code_hash: Of the code that ptxas made of it.
        duplicate_of: Number of the trial whose result this one was told.
        resources, verdict, measurement: None where the candidate did not come that far.
        bound_us: The physical bound of the problem on this device, microseconds.
        seconds: Wall time of each part of the candidate's way by name (``emit``, ``assemble``, ``gate``,
            ``measure``).
        versions: Of this package, ptxas, optuna, numpy and python.
        sampler, seed: How it was proposed.
        host, process: Where it ran: host name, process id.
        started_at, finished_at: Seconds since the epoch, UTC.
    """

    study: str
    number: int
    key: StudyKey
    schedule: Mapping[str, ParameterValue]
    outcome: Outcome
    message: str = ""
    sizes: Mapping[str, int] = field(default_factory=dict)
    weights: Mapping[str, str] = field(default_factory=dict)
    source_hash: str | None = None
    code_hash: str | None = None
    duplicate_of: int | None = None
    resources: Resources | None = None
    verdict: Verdict | None = None
    measurement: Measurement | None = None
    bound_us: float | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    sampler: str = ""
    seed: int | None = None
    host: str = ""
    process: int = 0
    started_at: float = 0.0
    finished_at: float | None = None

    @property
    def figure(self) -> float | None:
        """What its study makes least: microseconds or joules; None where there is none."""
        if self.measurement is None or not self.outcome.has_time:
            return None
        return self.measurement.energy_j if self.key.objective == "energy" else self.measurement.time_us
