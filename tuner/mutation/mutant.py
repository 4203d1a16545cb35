"""One mutant: a kernel with one small change, and how the change is told to a person."""

from dataclasses import dataclass, replace

from emitters.kernel import EmittedKernel
from results.plan import LaunchPlan
from tuner.mutation.source import Source

PLAN_LINE = 0


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a kernel.

    Attributes:
        operator: What kind of change.
        line: Of the PTX, 1-based; `PLAN_LINE` for a change of the plan.
        before, after: What stood there and what stands there now, for a person.
        changes: New statements by line; empty for a change of the plan.
        plan: The changed plan; None for a change of the text.
    """

    operator: str
    line: int
    before: str
    after: str
    changes: tuple[tuple[int, tuple[str, ...]], ...] = ()
    plan: LaunchPlan | None = None

    def __str__(self) -> str:
        where = f"line {self.line}" if self.line else "plan"
        return f"{self.operator}, {where}: `{self.before}` -> `{self.after}`"

    def ptx(self, source: Source) -> str:
        """The text of the mutant, from that of the kernel."""
        return source.with_lines(dict(self.changes))

    def of(self, kernel: EmittedKernel) -> EmittedKernel:
        """The mutated kernel."""
        if self.plan is not None:
            return replace(kernel, plan=self.plan)
        return replace(kernel, ptx=self.ptx(Source.of(kernel.ptx)))
