"""`affine_f32`: out[i] = fma(in[i], scale, bias), one rounding, bit for bit.

A thread takes `unroll` vectors a turn, neighbouring threads neighbouring vectors, and a block `turns` turns
of them. The last vector of an array that does not fill it is done element by element.
"""

from dataclasses import dataclass

import numpy as np

from emitters.fragments.loads import load_floats, store_floats
from emitters.fragments.opening import open_module, parameters
from emitters.kernel import (
    BufferSpec,
    Demand,
    EmittedKernel,
    Expected,
    Inputs,
    Kernel,
    KernelSpec,
    Limit,
    Problem,
    schedule_values,
)
from emitters.ptx import F32, R32, R64, Entry, Label, at
from emitters.rounding import fma_f32
from emitters.target import Target
from results.plan import KernelStep, LaunchPlan

MOST = 2**31 - 1 - 2**16
REFERENCE_PART = 1 << 17  # elements whose float64 work fits a CPU's cache

SPEC = KernelSpec(
    id="affine_f32",
    version=1,
    computes="out[i] = fma(in[i], scale, bias)",
    buffers=(BufferSpec("in", "in", "float32", ("n",)), BufferSpec("out", "out", "float32", ("n",))),
    sizes=("n",),
    scalars=("scale", "bias"),
    limits=(
        Limit("n", "n >= 1", "must be at least 1"),
        Limit(
            "n", f"n <= {MOST}", f"must be at most {MOST}, so that 32-bit element numbers hold a block more"
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class AffineSchedule:
    """How `affine_f32` shares its work.

    Attributes:
        threads: Of a block.
        vector: Elements of one load or store: 1, 2 or 4.
        unroll: Vectors that a thread has in flight.
        turns: How often a block does that; 1 has no loop.
        load: Cache operator of the loads: ``nc`` (read-only path), ``cs`` (streaming) or ``ca`` (all levels).
        store: Cache operator of the stores: ``wb`` (write back) or ``cs`` (streaming).
    """

    threads: int
    vector: int
    unroll: int
    turns: int
    load: str
    store: str

    @property
    def elements_per_turn(self) -> int:
        return self.threads * self.vector * self.unroll

    @property
    def elements_per_block(self) -> int:
        return self.elements_per_turn * self.turns


def reference(problem: Problem, inputs: Inputs, _schedule: AffineSchedule) -> Expected:
    """The correctly rounded fma; no bound, since it must be equal bit for bit."""
    scale, bias = (np.array([inputs.scalars[name]], np.float32) for name in SPEC.scalars)
    parts = np.array_split(inputs.buffers["in"], problem["n"] // REFERENCE_PART + 1)
    return Expected({"out": np.concatenate([fma_f32(part, scale, bias) for part in parts])})


def inputs(problem: Problem, rng: np.random.Generator) -> Inputs:
    """Gaussian values with every kind of f32 among them, and scalars for which two roundings differ from one.

    in = 2^-12 (1 + 2^-23), scale = 2^-12 (1 - 2^-23), bias = 1 + 2^-23: the product is just below a half
    spacing of bias, so that an fma in float64 rounded to f32 afterwards is one bit too high.
    """
    x = rng.standard_normal(problem["n"], dtype=np.float32)
    kinds = np.array([2.0**-12 * (1 + 2.0**-23), -0.0, 1e-45, -1e-39, 3.4e38, -3.4e38, 1.0], np.float32)
    chosen = rng.random(x.shape) < 0.25
    chosen[0] = True
    x[chosen] = rng.choice(kinds, int(chosen.sum()))
    x[0] = kinds[0]
    return Inputs({"in": x}, {"scale": 2.0**-12 * (1 - 2.0**-23), "bias": 1 + 2.0**-23})


def edge_problems(schedule: AffineSchedule) -> tuple[Problem, ...]:
    """One element; a block less one, one more, and one with a turn half empty; two blocks.

    And ends at each element of the second thread's vectors in a turn, each of which has a guard of its own.
    """
    s, block, turn = schedule, schedule.elements_per_block, schedule.elements_per_turn
    own = [
        number * s.threads * s.vector + element for number in range(s.unroll) for element in range(s.vector)
    ]
    sizes = (
        1,
        *(s.vector + end for end in own),
        max(1, block - 1),
        block + 1,
        block + turn // 2 + 3,
        2 * block,
    )
    return tuple(SPEC.problem(n) for n in dict.fromkeys(sizes))


def demand(problem: Problem) -> Demand:
    """A multiplication and an addition an element; every element read and written once."""
    n = problem["n"]
    return Demand(operations=2 * n, unit="fp32", read_bytes=4 * n, write_bytes=4 * n)


def emit(schedule: AffineSchedule, target: Target) -> EmittedKernel:
    """Text and plan of one schedule."""
    module = open_module(SPEC, schedule, target)
    step = KernelStep(
        entry=SPEC.id,
        grid=(f"ceil_div(n, {schedule.elements_per_block})", "1", "1"),
        block=(schedule.threads, 1, 1),
        shared_bytes=0,
        arguments=SPEC.arguments,
    )
    _write(module.entry(SPEC.id, parameters(SPEC, SPEC.arguments), schedule.threads), schedule)
    plan = LaunchPlan((step,))
    return EmittedKernel(SPEC.id, target.arch.name, schedule_values(schedule), module.text(), plan)


def _write(ptx: Entry, schedule: AffineSchedule) -> None:
    ptx.phase(
        "who am I",
        f"a turn is {schedule.elements_per_turn} elements, {schedule.vector} side by side a thread",
    )
    n = ptx.size("n")
    scale, bias = ptx.scalar("scale"), ptx.scalar("bias")
    thread = ptx.r("mov.u32", "%tid.x")
    block = ptx.r("mov.u32", "%ctaid.x")
    start = ptx.r("mul.lo.u32", block, schedule.elements_per_block)
    first = ptx.r("mad.lo.u32", thread, schedule.vector, start)
    source = ptx.rd("mad.wide.u32", first, 4, ptx.pointer("in"))
    target = ptx.rd("mad.wide.u32", first, 4, ptx.pointer("out"))
    left = ptx.r("sub.u32", n, first)
    ptx.comment("elements from here to the end, negative for threads past it")
    done = ptx.new_label("done")
    if schedule.turns == 1:
        _turn(ptx, schedule, source, target, left, scale, bias, done)
    else:
        turn = ptx.r("mov.u32", schedule.turns)
        loop = ptx.new_label("turn")
        ptx.place(loop)
        _turn(ptx, schedule, source, target, left, scale, bias, done)
        ptx.op("sub.s32", left, left, schedule.elements_per_turn)
        ptx.op("add.u64", source, source, 4 * schedule.elements_per_turn)
        ptx.op("add.u64", target, target, 4 * schedule.elements_per_turn)
        ptx.op("sub.u32", turn, turn, 1)
        ptx.branch(loop, guard=ptx.p("setp.ne.u32", turn, 0))
    ptx.place(done)
    ptx.op("ret")


def _turn(
    ptx: Entry,
    schedule: AffineSchedule,
    source: R64,
    target: R64,
    left: R32,
    scale: F32,
    bias: F32,
    done: Label,
) -> None:
    """All vectors of this thread's turn where they exist; else one by one."""
    stride = schedule.threads * schedule.vector
    reach = (schedule.unroll - 1) * stride + schedule.vector
    load, store = _load_opcode(schedule), f"st.global.{schedule.store}"
    ragged, after = ptx.new_label("ragged"), ptx.new_label("after")
    ptx.phase("whole vectors")
    ptx.branch(ragged, guard=ptx.p("setp.lt.s32", left, reach))
    vectors = [
        load_floats(ptx, load, at(source, 4 * i * stride), schedule.vector) for i in range(schedule.unroll)
    ]
    for i, values in enumerate(vectors):
        results = [ptx.f("fma.rn.f32", value, scale, bias) for value in values]
        store_floats(ptx, store, at(target, 4 * i * stride), results)
    ptx.op("bra", after)
    ptx.phase("the end of the array, element by element")
    ptx.place(ragged)
    if reach > 1:
        ptx.branch(done, guard=ptx.p("setp.le.s32", left, 0))
    else:
        ptx.op("bra", done)
    # The first element exists and the last does not: a thread with all of them took whole vectors.
    offsets = [i * stride + element for i in range(schedule.unroll) for element in range(schedule.vector)]
    for offset in offsets[:-1]:
        inside = ptx.p("setp.gt.s32", left, offset) if offset else None
        value = ptx.f(f"{load}.f32", at(source, 4 * offset), guard=inside)
        result = ptx.f("fma.rn.f32", value, scale, bias)
        ptx.op(f"{store}.f32", at(target, 4 * offset), result, guard=inside)
    ptx.place(after)


def _load_opcode(schedule: AffineSchedule) -> str:
    return "ld.global.nc" if schedule.load == "nc" else f"ld.global.{schedule.load}"


AFFINE_F32 = Kernel(
    spec=SPEC,
    schedule_type=AffineSchedule,
    emit=emit,
    inputs=inputs,
    reference=reference,
    edge_problems=edge_problems,
    demand=demand,
    usual_problems=tuple(SPEC.problem(n) for n in (1 << 22, 1 << 20, 1 << 24, 4096, 100_000_000)),
    baseline=AffineSchedule(threads=256, vector=1, unroll=1, turns=1, load="ca", store="wb"),
    aliases=("affine",),
)
