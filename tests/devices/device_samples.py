"""Candidates for a stand-in GPU: emitted ones, emitted ones with planted faults, and hand-written PTX."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from cuda_standin import tagged

from emitters import kernel_named
from emitters.kernel import EmittedKernel, Kernel, Problem, schedule_values
from emitters.target import Target, arch_named
from results.plan import KernelStep, LaunchPlan, Step
from results.trial import Measurement, Verdict
from tuner.devices.cuda import CudaDevice
from tuner.devices.device import Candidate
from tuner.devices.jobs import Finalists
from tuner.ptxas import Assembler

ARCH = "sm_90"
GEMM = kernel_named("gemm")
SMALL = GEMM.spec.problem(33, 48, 96)


@cache
def _assembler() -> Assembler:
    return Assembler()


def assembled(kernel: str, emitted: EmittedKernel, schedule: dict[str, Any]) -> Candidate:
    """Assemble and tag."""
    return tagged(Candidate(kernel, schedule, emitted, _assembler().assemble(emitted.ptx, emitted.arch)))


def emitted(kernel: Kernel[Any] = GEMM, schedule: Any = None, arch: str = ARCH) -> Candidate:
    """A schedule of a kernel, the baseline unless given."""
    schedule = kernel.baseline if schedule is None else schedule
    return assembled(kernel.id, kernel.emit(schedule, Target.of(arch)), schedule_values(schedule))


def with_plan(candidate: Candidate, *steps: Step) -> Candidate:
    """The same code under other steps."""
    plan = replace(candidate.emitted.plan, steps=steps)
    return replace(candidate, emitted=replace(candidate.emitted, plan=plan))


def main_step(candidate: Candidate) -> KernelStep:
    return candidate.emitted.plan.kernel_steps[-1]


def with_step(candidate: Candidate, **changes: Any) -> Candidate:
    """The same code with its launch changed."""
    return with_plan(candidate, replace(main_step(candidate), **changes))


_TEMPLATE = """.version {version}
.target {arch}
.address_size 64
.visible .entry written(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u32 pm, .param .u32 pn,
                        .param .u32 pk)
{{
    .reg .u64 %a, %b, %c, %end;
    .reg .u32 %m, %n, %k, %x, %y;
    .reg .pred %p;
    {shared}
    ld.param.u64 %a, [pa];
    ld.param.u64 %b, [pb];
    ld.param.u64 %c, [pc];
    ld.param.u32 %m, [pm];
    ld.param.u32 %n, [pn];
    ld.param.u32 %k, [pk];
    mul.lo.u32 %x, %m, %n;
    mul.wide.u32 %end, %x, 4;
    add.u64 %end, %c, %end;
    mov.u32 %x, 0;
    {body}
    ret;
}}
"""


def written(
    body: str = "", shared: str = "", shared_bytes: int = 0, threads: int = 1, arch: str = ARCH
) -> Candidate:
    """A hand-written "GEMM" of one block: %a, %b, %c are its buffers, %end is just behind C, %x is 0."""
    ptx = _TEMPLATE.format(arch=arch, version=arch_named(arch).ptx_version, body=body, shared=shared)
    plan = LaunchPlan(
        (
            KernelStep(
                "written", ("1", "1", "1"), (threads, 1, 1), shared_bytes, ("A", "codes", "C", "m", "n", "k")
            ),
        )
    )
    schedule = schedule_values(GEMM.baseline)
    return assembled(GEMM.id, EmittedKernel(GEMM.id, arch, schedule, ptx, plan), schedule)


ILLEGAL = (
    "st.global.u32 [%c + -64], %x;"  # the zone before C is not the kernel's, and unmapped in the stand-in
)
MISALIGNED = "st.global.u32 [%c + 2], %x;"
BEHIND = "st.global.u32 [%end], %x;"
ON_INPUT = "ld.global.u8 %x, [%a + 5]; xor.b32 %x, %x, 1; st.global.u8 [%a + 5], %x;"
ENDLESS = "again: add.u32 %x, %x, 1; bra again;"
PROBLEMS: tuple[Problem, ...] = GEMM.edge_problems(GEMM.baseline)


class TaggingDevice(CudaDevice):
    """Gives candidates their PTX, which the stand-in needs and a GPU does not."""

    def verify(self, candidate: Candidate, problem: Problem, seed: int) -> Verdict:
        return super().verify(tagged(candidate), problem, seed)

    def measure(self, candidate: Candidate, problem: Problem, best_us: float | None) -> Measurement:
        return super().measure(tagged(candidate), problem, best_us)

    def compare(
        self, candidates: Sequence[Candidate], problem: Problem, seed: int, rounds: int = 40
    ) -> Finalists:
        return super().compare([tagged(candidate) for candidate in candidates], problem, seed, rounds)
