"""A launch plan for one problem, every formula replaced by its number: what a host program has to do."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from results.expression import evaluate
from results.plan import LaunchPlan, MemsetStep, Step

WORKSPACE = "workspace"


@dataclass(frozen=True, slots=True)
class Memset:
    """Fill the first `nbytes` bytes of a buffer with one byte value."""

    buffer: str
    byte: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """Launch one entry point.

    Attributes:
        entry: Its name in the module.
        grid: Blocks in x, y, z.
        block: Threads in x, y, z.
        shared_bytes: Dynamic shared memory; above 48 KiB a device wants it allowed for the function first.
        arguments: In the entry's order: the name of a buffer (a device pointer, u64; ``workspace`` too) or of
            a scalar (f32), or the value of a size (u32).
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    arguments: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Launch:
    """One call: its steps in order on one stream, and the bytes of scratch memory it wants."""

    steps: tuple[Memset | KernelLaunch, ...]
    workspace_bytes: int


def launch_for(plan: LaunchPlan, sizes: Mapping[str, int], operands: Collection[str]) -> Launch:
    """The call that a plan makes for a problem.

    Args:
        plan: Formulas.
        sizes: The problem's sizes by name.
        operands: Names of the buffers and scalars, which stay names.
    """
    names = {*operands, WORKSPACE}
    return Launch(tuple(_step(step, sizes, names) for step in plan.steps), plan.workspace_for(sizes))


def _step(step: Step, sizes: Mapping[str, int], names: set[str]) -> Memset | KernelLaunch:
    if isinstance(step, MemsetStep):
        return Memset(step.buffer, step.byte, evaluate(step.nbytes, sizes))
    arguments = tuple(name if name in names else evaluate(name, sizes) for name in step.arguments)
    return KernelLaunch(step.entry, step.grid_for(sizes), step.block, step.shared_bytes, arguments)
