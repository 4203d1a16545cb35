"""`saxpy_f32` for ptx-tuner: what it computes, its schedules, its text, its reference, its space. One file
is enough."""

from collections.abc import Callable
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
from emitters.ptx import at, negated
from emitters.rounding import fma_f32
from emitters.target import Target
from results.plan import KernelStep, LaunchPlan
from search_spaces.space import Constraint, Parameter, Space

# 1. What is computed. Its hash names the meaning, so raise `version` when the meaning changes.
SPEC = KernelSpec(
    id="saxpy_f32",
    version=1,
    computes="out[i] = fma(a, x[i], y[i])",
    buffers=(
        BufferSpec("x", "in", "float32", ("n",)),
        BufferSpec("y", "in", "float32", ("n",)),
        BufferSpec("out", "out", "float32", ("n",)),
    ),
    sizes=("n",),
    scalars=("a",),
    limits=(
        Limit("n", "n >= 4 and n % 4 == 0", "must be a positive multiple of 4"),
        Limit("n", "n <= 2000000000", "must be at most 2000000000, so that element numbers fit 32 bits"),
    ),
)


# 2. How: one frozen class of int, str and bool fields.
@dataclass(frozen=True, slots=True)
class SaxpySchedule:
    """How `saxpy_f32` shares its work.

    Attributes:
        threads: Of a block.
        vector: Elements of one load or store: 1, 2 or 4.
        unroll: Vectors of a thread.
    """

    threads: int
    vector: int
    unroll: int

    @property
    def elements_per_block(self) -> int:
        return self.threads * self.vector * self.unroll


# 3. Text and plan.
def emit(schedule: SaxpySchedule, target: Target) -> EmittedKernel:
    """Text and plan of one schedule."""
    module = open_module(SPEC, schedule, target)
    ptx = module.entry(SPEC.id, parameters(SPEC, SPEC.arguments), schedule.threads)
    ptx.phase("who am I")
    n, a = ptx.size("n"), ptx.scalar("a")
    block = ptx.r("mul.lo.u32", ptx.r("mov.u32", "%ctaid.x"), schedule.elements_per_block)
    first = ptx.r("mad.lo.u32", ptx.r("mov.u32", "%tid.x"), schedule.vector, block)
    x, y, out = (ptx.pointer(name) for name in ("x", "y", "out"))
    done = ptx.new_label("done")
    for i in range(schedule.unroll):
        ptx.phase(f"vector {i}")
        element = ptx.r("add.u32", first, i * schedule.threads * schedule.vector)
        inside = ptx.p("setp.lt.u32", element, n)
        ptx.branch(done, guard=negated(inside))
        from_x, from_y, to = (at(ptx.rd("mad.wide.u32", element, 4, base)) for base in (x, y, out))
        xs = load_floats(ptx, "ld.global.nc", from_x, schedule.vector)
        ys = load_floats(ptx, "ld.global.nc", from_y, schedule.vector)
        sums = [ptx.f("fma.rn.f32", a, one, other) for one, other in zip(xs, ys, strict=True)]
        store_floats(ptx, "st.global", to, sums)
    ptx.place(done)
    ptx.op("ret")
    grid = (f"ceil_div(n, {schedule.elements_per_block})", "1", "1")
    step = KernelStep(SPEC.id, grid, (schedule.threads, 1, 1), 0, SPEC.arguments)
    return EmittedKernel(
        SPEC.id, target.arch.name, schedule_values(schedule), module.text(), LaunchPlan((step,))
    )


# 4. What must come out. No bound here: fma is exact to the bit. A kernel that sums returns bounds as well.
def reference(problem: Problem, inputs: Inputs, _schedule: SaxpySchedule) -> Expected:
    """The correctly rounded fma."""
    x, y = inputs.buffers["x"], inputs.buffers["y"]
    return Expected({"out": fma_f32(np.full_like(x, inputs.scalars["a"]), x, y)})


def inputs(problem: Problem, rng: np.random.Generator) -> Inputs:
    """Gaussian vectors, with zeros, a subnormal and large values among them."""
    x, y = (rng.standard_normal(problem["n"], dtype=np.float32) for _ in range(2))
    x[::5] = rng.choice(np.array([0.0, -0.0, 1e-42, 1e30], np.float32), len(x[::5]))
    return Inputs({"x": x, "y": y}, {"a": 1.5})


# 5. Small problems that reach every guard of a schedule.
def edge_problems(schedule: SaxpySchedule) -> tuple[Problem, ...]:
    """The smallest; a block less four elements, and four more."""
    block = schedule.elements_per_block
    sizes = {4, max(4, block - 4), block + 4}
    return tuple(SPEC.problem(n) for n in sorted(sizes))


# 6. What any implementation has to do: the physical bound follows from it.
def demand(problem: Problem) -> Demand:
    """A multiplication and an addition an element; x, y and out once."""
    n = problem["n"]
    return Demand(operations=2 * n, unit="fp32", read_bytes=8 * n, write_bytes=4 * n)


# 7. Which schedules are worth trying, and why the others are not.
def space(target: Target) -> Space:
    """Every valid schedule on a target."""
    return Space(
        kernel=SPEC.id,
        parameters=(
            Parameter("threads", (32, 64, 128, 256, 512, 1024), "power", "threads of a block"),
            Parameter("vector", (1, 2, 4), "power", "elements of one load or store"),
            Parameter("unroll", (1, 2, 4, 8), "power", "vectors of a thread"),
        ),
        constraints=(
            Constraint(
                "share",
                ("threads", "vector", "unroll"),
                lambda *values: SaxpySchedule(*values[:-1]).elements_per_block <= 8192,
                "a block of more than 8192 elements leaves SMs idle at the usual lengths",
            ),
        ),
        target=target,
    )


# 8. What the entry point names: an object with these two attributes.
@dataclass(frozen=True)
class Plugin:
    """A kernel and its space."""

    kernel: Kernel[SaxpySchedule]
    space: Callable[[Target], Space]


SAXPY = Plugin(
    Kernel(
        spec=SPEC,
        schedule_type=SaxpySchedule,
        emit=emit,
        inputs=inputs,
        reference=reference,
        edge_problems=edge_problems,
        demand=demand,
        usual_problems=(SPEC.problem(1 << 22), SPEC.problem(1 << 16)),
        baseline=SaxpySchedule(threads=256, vector=1, unroll=1),
        aliases=("saxpy",),
    ),
    space,
)
