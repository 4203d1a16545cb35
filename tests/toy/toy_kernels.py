"""Two small kernels of an outside package: a sound one, and one whose schedules fail in every way there is.

Both compute ``y[i] = 3 * x[i] + 1`` through shared memory, which gives a missing barrier something to spoil.
They come in by the entry-point group, so worker processes and the command line see them as any other.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from emitters.kernel import (
    BufferSpec,
    Demand,
    EmitError,
    EmittedKernel,
    Expected,
    Inputs,
    Kernel,
    KernelSpec,
    Limit,
    Problem,
    schedule_values,
)
from emitters.target import Target
from results.plan import KernelStep, LaunchPlan
from search_spaces.space import Constraint, Parameter, Space


@dataclass(frozen=True)
class ToySchedule:
    """Threads a block, elements a thread, and what is only text."""

    threads: int
    per_thread: int
    padding: int
    label: str
    flaw: str = "none"


@dataclass(frozen=True)
class Plugin:
    """What the entry point names."""

    kernel: Kernel[ToySchedule]
    space: Callable[[Target], Space]


def _emit(kernel: str, schedule: ToySchedule, target: Target) -> EmittedKernel:
    flaw = schedule.flaw
    if flaw == "refused by the emitter":
        raise EmitError("flaw must be none, got refused by the emitter")
    if flaw == "defect":
        raise ZeroDivisionError("a defect of the emitter")
    if flaw == "dies":
        os._exit(3)
    if flaw == "hangs":
        time.sleep(3600)
    body = "\n".join(_element(schedule, number) for number in range(schedule.per_thread))
    block = schedule.threads * schedule.per_thread
    ptx = f"""// {kernel}: y[i] = 3 * x[i] + 1, {schedule.label}
.version {target.arch.ptx_version}
.target {target.arch.name}
.address_size 64
.visible .entry {kernel}(
    .param .u64 param_x,
    .param .u64 param_y,
    .param .u32 param_n
)
.maxntid {schedule.threads}, 1, 1
{{
    .reg .pred %p<8>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<8>;
    .shared .align 16 .b8 stage[{4 * schedule.threads + schedule.padding}];
    ld.param.u64 %rd1, [param_x];
    ld.param.u64 %rd2, [param_y];
    ld.param.u32 %r1, [param_n];
    mov.u32 %r2, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mad.lo.u32 %r4, %r3, {block}, %r2;
    mov.u32 %r5, stage;
    shl.b32 %r6, %r2, 2;
    add.u32 %r7, %r5, %r6;
    xor.b32 %r8, %r6, 4;
    add.u32 %r8, %r5, %r8;
{body}
    ret;
}}
"""
    step = KernelStep(
        kernel, (f"ceil_div(n, {block})", "1", "1"), (schedule.threads, 1, 1), 0, ("x", "y", "n")
    )
    return EmittedKernel(kernel, target.arch.name, schedule_values(schedule), ptx, LaunchPlan((step,)))


def _element(schedule: ToySchedule, number: int) -> str:
    """Loads element i to shared memory, takes its neighbour's from there, and stores that one's result."""
    limit = "setp.lt.u32 %p1, %r9, %r1;"
    if schedule.flaw == "out_of_bounds":
        limit = "setp.le.u32 %p1, %r9, %r1;"
    barrier = "" if schedule.flaw == "race" else "bar.sync 0;"
    constant = 2 if schedule.flaw == "wrong" and number == schedule.per_thread - 1 else 1
    spelling = "add.s33" if schedule.flaw == "refused by ptxas" else "add.s32"
    return f"""
    add.u32 %r9, %r4, {number * schedule.threads};
    {limit}
    mov.u32 %r10, 0;
    mul.wide.u32 %rd3, %r9, 4;
    add.s64 %rd4, %rd1, %rd3;
@%p1 ld.global.u32 %r10, [%rd4];
    bar.sync 0;
    st.shared.u32 [%r7], %r10;
    {barrier}
    ld.shared.u32 %r11, [%r8];
    mul.lo.s32 %r12, %r11, 3;
    {spelling} %r12, %r12, {constant};
    xor.b32 %r13, %r9, 1;
    setp.lt.u32 %p2, %r13, %r1;
    mul.wide.u32 %rd5, %r13, 4;
    add.s64 %rd6, %rd2, %rd5;
@%p2 st.global.u32 [%rd6], %r12;"""


def _inputs(problem: Problem, rng: np.random.Generator) -> Inputs:
    return Inputs({"x": rng.integers(-(2**31), 2**31, size=problem["n"], dtype=np.int32)})


def _reference(problem: Problem, inputs: Inputs, schedule: ToySchedule) -> Expected:
    wide = 3 * inputs.buffers["x"].astype(np.int64) + 1
    return Expected({"y": wide.astype(np.int32)})


def _kernel(name: str, baseline: ToySchedule) -> Kernel[ToySchedule]:
    spec = KernelSpec(
        id=name,
        version=1,
        computes="y[i] = 3 * x[i] + 1",
        buffers=(BufferSpec("x", "in", "int32", ("n",)), BufferSpec("y", "out", "int32", ("n",))),
        sizes=("n",),
        limits=(Limit("n", "n >= 2 and n % 2 == 0", "must be a multiple of 2"),),
    )
    return Kernel(
        spec=spec,
        schedule_type=ToySchedule,
        emit=lambda schedule, target: _emit(name, schedule, target),
        inputs=_inputs,
        reference=_reference,
        edge_problems=lambda schedule: (
            spec.problem(2),
            spec.problem(2 * schedule.threads * schedule.per_thread + 2),
        ),
        demand=lambda problem: Demand(2 * problem["n"], "fp32", 4 * problem["n"], 4 * problem["n"]),
        usual_problems=(spec.problem(1 << 20), spec.problem(1 << 16)),
        baseline=baseline,
        aliases=(f"{name}-alias".replace("-", "_"),),
    )


FLAWS = (
    "none",
    "refused by the emitter",
    "refused by ptxas",
    "wrong",
    "race",
    "out_of_bounds",
    "defect",
    "dies",
    "hangs",
)


def _space(name: str, flaws: tuple[str, ...], target: Target) -> Space:
    def fits(threads: int, per_thread: int, _: Target) -> bool:
        return threads * per_thread <= 2048

    return Space(
        kernel=name,
        parameters=(
            Parameter("threads", (32, 64, 128, 256, 512), "power", "threads a block"),
            Parameter("per_thread", (1, 2, 3, 4, 6, 8), "power", "elements a thread"),
            Parameter("padding", (0, 16, 32), "ordinal", "bytes of shared memory that nobody uses"),
            Parameter("label", ("left", "right"), "nominal", "a word in a comment: other text, same code"),
            Parameter("flaw", flaws, "nominal", "what is wrong with it"),
        ),
        constraints=(Constraint("block", ("threads", "per_thread"), fits, "a block does at most 2048"),),
        target=target,
    )


def _plugin(name: str, flaws: tuple[str, ...]) -> Plugin:
    baseline = ToySchedule(128, 1, 0, "left")
    return Plugin(_kernel(name, baseline), lambda target: _space(name, flaws, target))


TOY: Any = _plugin("toy", ("none",))
FLAWED: Any = _plugin("flawed", FLAWS)
