"""Plants one fault in the text or the plan of an emitted kernel, and says how the gate finds it."""

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from emitters.gemm import GEMM_S8, TERNARY_GEMM_S8
from emitters.kernel import EmittedKernel, schedule_values
from emitters.target import Target
from results.plan import KernelStep, LaunchPlan
from tuner.cubin import Binary
from tuner.devices.device import Candidate
from tuner.gate import prove

TARGET = Target.of("sm_89")
STEP_BUDGET = 20_000  # three times what the longest edge problem of these schedules takes
UNASSEMBLED = Binary(b"", 0, 0, 0, "", "")
"""The gate looks at text and plan only."""

_SMALL = {"tile_m": 32, "tile_n": 32, "tile_k": 32, "warps_m": 1, "warps_n": 2}
SCHEDULES = {
    "ring": (GEMM_S8, {**_SMALL, "tile_k": 64, "stages": 3}),
    "synchronous": (GEMM_S8, {**_SMALL, "warps_m": 2, "warps_n": 1}),
    "swizzled": (
        GEMM_S8,
        {**_SMALL, "tile_k": 64, "stages": 2, "stride_pad": 0, "swizzle": True, "fragment_load": "ld.shared"},
    ),
    "split": (GEMM_S8, {**_SMALL, "stages": 2, "split_k": 2}),
    "raster": (GEMM_S8, {**_SMALL, "stages": 2, "raster": 2}),
    "decoded": (
        TERNARY_GEMM_S8,
        {**_SMALL, "tile_k": 64, "stages": 2, "copy_bytes": 8, "decode": "shared"},
    ),
    "packed": (
        TERNARY_GEMM_S8,
        {**_SMALL, "tile_n": 64, "stages": 3, "copy_bytes": 4, "decode": "register"},
    ),
    "records": (
        TERNARY_GEMM_S8,
        {
            **_SMALL,
            "tile_n": 64,
            "stages": 3,
            "copy_bytes": 16,
            "decode": "register",
            "weight_layout": "fragment",
        },
    ),
}


@dataclass(frozen=True)
class Fault:
    """A fault in the text.

    Attributes:
        name: What is wrong, for a person.
        schedule: Key of `SCHEDULES`.
        phase: Start of the phase comment under which the statement stands.
        pattern: Expression that matches whole lines, one or several, stripped.
        planted: Template of `re.Match.expand` for what stands there instead; empty to delete it.
        found_as: How the gate must find it.
        of: How many places of the phase match; asserted, so that a fault never goes astray.
        number: Which of them is changed.
    """

    name: str
    schedule: str
    phase: str
    pattern: str
    planted: str
    found_as: str
    of: int = 1
    number: int = 0

    def __str__(self) -> str:
        return f"{self.name} ({self.schedule}): {self.found_as}"


@cache
def emitted(schedule: str) -> EmittedKernel:
    kernel, change = SCHEDULES[schedule]
    return kernel.emit(dataclasses.replace(kernel.baseline, **change), TARGET)


def plant(ptx: str, fault: Fault) -> str:
    """The text with the fault in it."""
    text = "\n".join(line.strip() for line in ptx.split("\n"))
    heads = list(re.finditer(r"^// --- (.*) ---$", text, re.MULTILINE))
    starting = [number for number, head in enumerate(heads) if head[1].startswith(fault.phase)]
    assert len(starting) == 1, f"{len(starting)} phases start with {fault.phase!r}"
    start = heads[starting[0]].end()
    end = heads[starting[0] + 1].start() if starting[0] + 1 < len(heads) else len(text)
    pattern = re.compile(f"^(?:{fault.pattern})$", re.MULTILINE)
    found = list(pattern.finditer(text, start, end))
    assert len(found) == fault.of, f"{len(found)} places match {fault.pattern!r}, expected {fault.of}"
    match = found[fault.number]
    new = match.expand(fault.planted)
    assert new != match[0], "nothing was changed"
    return text[: match.start()] + new + text[match.end() :]


def planted(fault: Fault) -> EmittedKernel:
    """The kernel with the fault in its text."""
    whole = emitted(fault.schedule)
    return dataclasses.replace(whole, ptx=plant(whole.ptx, fault))


def planted_in_plan(schedule: str, change: Callable[[LaunchPlan], LaunchPlan]) -> EmittedKernel:
    """The kernel with a changed plan."""
    whole = emitted(schedule)
    plan = change(whole.plan)
    assert plan != whole.plan, "nothing was changed"
    return dataclasses.replace(whole, plan=plan)


def with_kernel(plan: LaunchPlan, **changes: object) -> LaunchPlan:
    """The plan with another last step."""
    *before, last = plan.steps
    assert isinstance(last, KernelStep)
    return dataclasses.replace(plan, steps=(*before, dataclasses.replace(last, **changes)))  # type: ignore[arg-type]


def found_as(schedule: str, kernel: EmittedKernel) -> str:
    """How the gate finds fault with a kernel: a kind of fault, ``mismatch``, or ``clean``."""
    owner, change = SCHEDULES[schedule]
    values = schedule_values(dataclasses.replace(owner.baseline, **change))
    verdict = prove(Candidate(owner.id, values, kernel, UNASSEMBLED), seed=0, step_budget=STEP_BUDGET)
    return verdict.fault or ("mismatch" if verdict.mismatches else "clean")
