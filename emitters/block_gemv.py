"""What the matrix-vector products over rows of 256-weight blocks share: operands, limits, demand, plan and
text frame."""

from collections.abc import Callable
from typing import Any

from emitters.fragments.opening import open_module, parameters
from emitters.gemv import RowWalk, emit_combine
from emitters.kernel import (
    BufferSpec,
    Demand,
    EmitError,
    EmittedKernel,
    KernelSpec,
    Limit,
    Problem,
    schedule_values,
)
from emitters.ptx import Entry
from emitters.quants import BLOCK
from emitters.target import Target


def block_gemv_spec(kernel: str, block_bytes: int, layout: str, computes: str) -> KernelSpec:
    """y (n_out) = deq(W) @ x, W rows of blocks, x and y f32."""
    return KernelSpec(
        id=kernel,
        version=1,
        computes=computes,
        buffers=(
            BufferSpec("W", "in", "uint8", ("n_out", f"n_in // {BLOCK} * {block_bytes}"), layout),
            BufferSpec("x", "in", "float32", ("n_in",)),
            BufferSpec("y", "out", "float32", ("n_out",)),
        ),
        sizes=("n_out", "n_in"),
        limits=(
            Limit("n_out", "n_out >= 1", "must be at least 1"),
            Limit(
                "n_in", f"n_in >= {BLOCK} and n_in % {BLOCK} == 0", f"must be a positive multiple of {BLOCK}"
            ),
        ),
    )


def block_gemv_problems(spec: KernelSpec) -> tuple[Problem, ...]:
    """Layers of a 7-8 B model: attention, up, down, one key or value projection."""
    return tuple(spec.problem(*shape) for shape in ((4096, 4096), (14336, 4096), (4096, 14336), (1024, 4096)))


def block_gemv_demand(block_bytes: int, unit: str) -> Callable[[Problem], Demand]:
    """A multiplication and an addition a weight; every block, x and y once."""

    def demand(problem: Problem) -> Demand:
        weights = problem["n_out"] * problem["n_in"]
        return Demand(
            operations=2 * weights,
            unit=unit,
            read_bytes=weights // BLOCK * block_bytes + 4 * problem["n_in"],
            write_bytes=4 * problem["n_out"],
        )

    return demand


def check_walk(walk: RowWalk, shared_bytes: int, target: Target) -> None:
    """Refuse warps that belong to no group of rows, and a ring beyond shared memory.

    Raises:
        EmitError: With the rule.
    """
    if walk.warps % walk.warps_per_row:
        raise EmitError(f"warps must be a multiple of warps_per_row ({walk.warps_per_row}), got {walk.warps}")
    if shared_bytes > target.arch.shared_per_block:
        raise EmitError(
            f"shared memory must fit {target.arch.shared_per_block} bytes on {target.arch.name}, "
            f"got {shared_bytes}; take fewer stages, warps or rows_per_warp"
        )


def emit_walk(
    spec: KernelSpec,
    schedule: Any,
    walk: RowWalk,
    shared_bytes: int,
    target: Target,
    write: Callable[[Entry], None],
    valid: str = "1",
) -> EmittedKernel:
    """Text and plan of a walk over rows.

    The main entry has the body that `write` emits; a combine follows where there are splits.
    """
    check_walk(walk, shared_bytes, target)
    module = open_module(spec, schedule, target)
    plan = walk.plan(spec, shared_bytes, valid)
    write(module.entry(spec.id, parameters(spec, plan.kernel_steps[0].arguments), walk.threads))
    if walk.splits > 1:
        emit_combine(module, spec, walk)
    return EmittedKernel(spec.id, target.arch.name, schedule_values(schedule), module.text(), plan)
