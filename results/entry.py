"""One pinned kernel: everything that is known of it, as a manifest beside its two files.

An entry is self-contained. Loading and launching it needs no emitter, no search space and no tuner.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from blake3 import blake3

from results.errors import FrozenError
from results.expression import evaluate
from results.plan import LaunchPlan
from results.trial import Measurement, ParameterValue, Resources, Source, Verdict

FORMAT = 1
PTX, CUBIN, MANIFEST = "kernel.ptx", "kernel.cubin", "manifest.json"


@dataclass(frozen=True, slots=True)
class Operand:
    """One buffer: name, ``in`` or ``out``, NumPy dtype, shape as formulas over the sizes, C-contiguous."""

    name: str
    role: str
    dtype: str
    shape: tuple[str, ...]
    layout: str = ""

    def shape_for(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(evaluate(axis, sizes) for axis in self.shape)


@dataclass(frozen=True, slots=True)
class Limit:
    """A rule that every problem keeps: the size it is about, as a formula, and in words."""

    size: str
    formula: str
    rule: str


@dataclass(frozen=True, slots=True)
class Contract:
    """What the kernel computes and how it is called, whatever the schedule.

    Attributes:
        kernel: Id.
        aliases: Other names that it is found by.
        version: Raised when the meaning of the same call changes.
        computes: The formula, for a person.
        semantic_hash: blake3 of all this as the emitter states it.
        buffers: Operands in the order of the entry's pointers.
        sizes: Names of the sizes, in the order of the entry's u32 parameters and of a problem's text.
        scalars: Names of the f32 parameters that follow.
        limits: Rules that every problem keeps.
    """

    kernel: str
    aliases: tuple[str, ...]
    version: int
    computes: str
    semantic_hash: str
    buffers: tuple[Operand, ...]
    sizes: tuple[str, ...]
    scalars: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names in the order in which the entry takes them, without a workspace."""
        return (*(buffer.name for buffer in self.buffers), *self.sizes, *self.scalars)

    def answers_to(self, name: str) -> bool:
        """Whether the kernel is meant by a name; hyphens and underscores are the same."""
        return name.replace("-", "_") in {n.replace("-", "_") for n in (self.kernel, *self.aliases)}

    def problem(self, sizes: tuple[int, ...]) -> dict[str, int]:
        """Sizes by name.

        Raises:
            FrozenError: Their number is wrong, or a limit is broken.
        """
        if len(sizes) != len(self.sizes):
            raise FrozenError(
                f"a problem of {self.kernel} is {'x'.join(self.sizes)} ({len(self.sizes)} sizes), "
                f"got {'x'.join(map(str, sizes))}"
            )
        named = dict(zip(self.sizes, sizes, strict=True))
        for limit in self.limits:
            if not evaluate(limit.formula, named):
                raise FrozenError(f"{limit.size} {limit.rule}, got {named[limit.size]}")
        return named


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The best trial but one, of the same problem, device and policy."""

    study: str
    number: int
    schedule: Mapping[str, ParameterValue]
    time_us: float


@dataclass(frozen=True)
class FrozenEntry:
    """One pinned kernel.

    Attributes:
        contract: What it computes and how it is called.
        arch, device: What it was emitted for, and what judged and timed it.
        sizes: The problem it was tuned for, in the contract's order.
        schedule: Every parameter by name.
        ptx, cubin: The kernel.
        plan: What one call does; its `valid` says which problems the schedule may serve.
        source_hash, code_hash: As on the trial's row.
        resources, verdict, measurement: Of the verification that went before pinning.
        study, number: The trial it comes from.
        versions: Of this package, ptxas and the rest.
        created_at: When it was pinned, UTC, ISO 8601.
        runner_up: None where there was no other.
        prepack: Name of the host function that brings weights into the order this schedule loads them in;
            None where it takes them as the contract says.
        replaces: The version of this entry before, None for the first.
    """

    contract: Contract
    arch: str
    device: str
    sizes: Mapping[str, int]
    schedule: Mapping[str, ParameterValue]
    ptx: str = field(repr=False)
    cubin: bytes = field(repr=False)
    plan: LaunchPlan
    source_hash: str
    code_hash: str
    resources: Resources
    verdict: Verdict
    measurement: Measurement
    study: str
    number: int
    created_at: str
    versions: Mapping[str, str] = field(default_factory=dict)
    runner_up: RunnerUp | None = None
    prepack: str | None = None
    replaces: str | None = None

    def __post_init__(self) -> None:
        if tuple(self.sizes) != self.contract.sizes:
            raise FrozenError(f"sizes must be {', '.join(self.contract.sizes)}, got {', '.join(self.sizes)}")

    @property
    def kernel(self) -> str:
        return self.contract.kernel

    @property
    def problem(self) -> str:
        """As in ``--shape``."""
        return "x".join(map(str, self.sizes.values()))

    @property
    def is_predicted(self) -> bool:
        """Whether its time was never measured."""
        return not self.measurement.source.is_measured

    @property
    def margin(self) -> float | None:
        """How much slower the runner-up is: 0.02 for two percent, 0 for a tie; None without one.

        Below 0 where it was the faster one alone, and lost or was tied in the final.
        """
        return self.runner_up.time_us / self.measurement.time_us - 1 if self.runner_up else None

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The manifest as a JSON value; its ``hash`` covers everything else in it, and so both files."""
        value: dict[str, Any] = {
            "format": FORMAT,
            **asdict(self.contract),
            "arguments": self.contract.arguments,
            **{name: getattr(self, name) for name in _PLAIN},
            "problem": self.problem,
            "plan": self.plan.to_json(),
            "resources": asdict(self.resources),
            "verdict": asdict(self.verdict),
            "measurement": asdict(self.measurement),
            "time_is": self.measurement.source.word,
            "runner_up": asdict(self.runner_up) if self.runner_up else None,
            "margin": self.margin,
            "files": {name: _fingerprint(content) for name, content in self.contents.items()},
        }
        plain: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
        return {**plain, "hash": _hash_of(plain)}

    @property
    def contents(self) -> dict[str, bytes]:
        """The two files by name."""
        return {PTX: self.ptx.encode(), CUBIN: self.cubin}

    def is_valid(self, sizes: Mapping[str, int]) -> bool:
        """Whether this schedule may serve a problem that keeps the contract's limits."""
        return self.plan.is_valid(sizes)


_PLAIN = (
    "arch",
    "device",
    "schedule",
    "source_hash",
    "code_hash",
    "study",
    "number",
    "created_at",
    "versions",
    "prepack",
    "replaces",
)


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest of an entry, as it was written.

    Raises:
        FrozenError: There is none, or it has been changed.
    """
    path = directory / MANIFEST
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        claimed = value.pop("hash")
        form = value["format"]
    except OSError as error:
        raise FrozenError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise FrozenError(f"{path} is no manifest ({error}); promote the kernel again") from None
    if form != FORMAT:
        raise FrozenError(f"{path} has format {form}, this version reads {FORMAT}; promote the kernel again")
    _compare(path, _hash_of(value), claimed)
    return {**value, "hash": claimed}


def read_entry(directory: Path) -> FrozenEntry:
    """An entry with both files, every hash and length checked.

    Raises:
        FrozenError: A file is missing or has been changed; the message has both hashes.
    """
    # The link is followed once: the entry may be replaced while its files are read, a version never changes.
    directory = directory.resolve()
    manifest = read_manifest(directory)
    contents: dict[str, bytes] = {}
    for name in (PTX, CUBIN):
        path = directory / name
        try:
            contents[name] = path.read_bytes()
        except OSError as error:
            raise FrozenError(f"cannot read {path}: {error.strerror}; promote the kernel again") from None
        found, expected = _fingerprint(contents[name]), manifest["files"][name]
        _compare(path, found["blake3"], expected["blake3"])
    return _entry_of(manifest, contents[PTX].decode(), contents[CUBIN])


def contract_of(manifest: Mapping[str, Any]) -> Contract:
    """The contract in a manifest."""
    values = {column.name: manifest[column.name] for column in fields(Contract)}
    values["buffers"] = tuple(Operand(**{**b, "shape": tuple(b["shape"])}) for b in manifest["buffers"])
    values["limits"] = tuple(Limit(**limit) for limit in manifest["limits"])
    for name in ("aliases", "sizes", "scalars"):
        values[name] = tuple(values[name])
    return Contract(**values)


def sizes_of(manifest: Mapping[str, Any]) -> dict[str, int]:
    """The problem in a manifest."""
    return dict(zip(manifest["sizes"], map(int, manifest["problem"].split("x")), strict=True))


def _entry_of(manifest: Mapping[str, Any], ptx: str, cubin: bytes) -> FrozenEntry:
    verdict, measurement = manifest["verdict"], manifest["measurement"]
    return FrozenEntry(
        contract=contract_of(manifest),
        sizes=sizes_of(manifest),
        ptx=ptx,
        cubin=cubin,
        plan=LaunchPlan.from_json(manifest["plan"]),
        resources=Resources(**manifest["resources"]),
        verdict=Verdict(**{**verdict, "problems": tuple(verdict["problems"])}),
        measurement=Measurement(
            **{
                **measurement,
                "source": Source(measurement["source"]),
                "times_us": tuple(measurement["times_us"]),
            }
        ),
        runner_up=RunnerUp(**manifest["runner_up"]) if manifest["runner_up"] else None,
        **{name: manifest[name] for name in _PLAIN},
    )


def _fingerprint(content: bytes) -> dict[str, Any]:
    return {"bytes": len(content), "blake3": blake3(content).hexdigest()}


def _hash_of(value: Any) -> str:
    return blake3(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _compare(path: Path, found: str, expected: str) -> None:
    if found != expected:
        raise FrozenError(
            f"{path} has been changed: its blake3 is {found}, the manifest says {expected}; "
            "promote the kernel again"
        )
