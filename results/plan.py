"""The launch plan: what one call of a kernel does, step by step, for any valid problem.

The whole plan is simulated, verified, timed, modelled and pinned. Grids and sizes are formulas
(`results.expression`) over the problem's sizes, so a frozen entry needs no emitter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from results.expression import evaluate


@dataclass(frozen=True, slots=True)
class MemsetStep:
    """Fill the first `nbytes` bytes of a buffer with one byte value.

    Attributes:
        buffer: Name of an output or of ``workspace``.
        byte: 0..255.
        nbytes: Formula over the sizes.
    """

    buffer: str
    byte: int
    nbytes: str

    def __post_init__(self) -> None:
        if not 0 <= self.byte <= 255:
            raise ValueError(f"byte must be within 0..255, got {self.byte}")


@dataclass(frozen=True, slots=True)
class KernelStep:
    """Launch one entry point.

    Attributes:
        entry: Name of the ``.entry``.
        grid: Formulas over the sizes, x, y, z.
        block: Threads, x, y, z.
        shared_bytes: Dynamic shared memory.
        arguments: In the order of the entry's parameters: the name of a buffer (``workspace`` included), of a
            size or of a scalar, or else a formula over the sizes (passed as u32).
    """

    entry: str
    grid: tuple[str, str, str]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[str, ...]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    def grid_for(self, sizes: Mapping[str, int]) -> tuple[int, int, int]:
        """Blocks in x, y, z for a problem."""
        x, y, z = (evaluate(axis, sizes) for axis in self.grid)
        return x, y, z


T = TypeVar("T")
Step = MemsetStep | KernelStep


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """The ordered steps of one call.

    Attributes:
        steps: In order, one stream, each after the end of the one before it.
        workspace_bytes: Formula over the sizes: bytes of the scratch buffer ``workspace``; "0" for none. It
            holds anything before the plan runs.
        valid: Formula over the sizes: non-zero where this plan may be used. It holds what the *schedule*
            demands on top of the kernel's own limits (an alignment for wide copies, say).
    """

    steps: tuple[Step, ...]
    workspace_bytes: str = "0"
    valid: str = "1"

    @property
    def kernel_steps(self) -> tuple[KernelStep, ...]:
        return tuple(step for step in self.steps if isinstance(step, KernelStep))

    def is_valid(self, sizes: Mapping[str, int]) -> bool:
        """Whether the schedule behind this plan may serve a problem of these sizes."""
        return bool(evaluate(self.valid, sizes))

    def workspace_for(self, sizes: Mapping[str, int]) -> int:
        """Bytes of workspace for a problem."""
        return evaluate(self.workspace_bytes, sizes)

    def to_json(self) -> dict[str, Any]:
        """A JSON value that `from_json` reads back; its canonical text is part of a kernel's source hash."""
        steps = [
            {"kind": "memset" if isinstance(step, MemsetStep) else "kernel", **asdict(step)}
            for step in self.steps
        ]
        return {"steps": steps, "workspace_bytes": self.workspace_bytes, "valid": self.valid}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "LaunchPlan":
        """The plan that `to_json` wrote.

        Raises:
            ValueError: A step is of no known kind.
        """
        return cls(
            steps=tuple(_step_from_json(step) for step in value["steps"]),
            workspace_bytes=value["workspace_bytes"],
            valid=value["valid"],
        )


def _step_from_json(value: Mapping[str, Any]) -> Step:
    match value["kind"]:
        case "memset":
            return MemsetStep(value["buffer"], value["byte"], value["nbytes"])
        case "kernel":
            return KernelStep(
                entry=value["entry"],
                grid=_three(value["grid"]),
                block=_three(value["block"]),
                shared_bytes=value["shared_bytes"],
                arguments=tuple(value["arguments"]),
            )
        case kind:
            raise ValueError(f"a step is a memset or a kernel, got {kind!r}")


def _three(values: Sequence[T]) -> tuple[T, T, T]:
    x, y, z = values
    return x, y, z
