"""What all batches of one launch share."""

from __future__ import annotations

from dataclasses import dataclass, field

from tuner.simulator.counters import Counters
from tuner.simulator.global_races import GlobalOrder
from tuner.simulator.memory import GlobalMemory
from tuner.simulator.program import Program
from tuner.simulator.report import Findings
from tuner.simulator.tensor_maps import TensorMap


@dataclass(slots=True)
class Context:
    """What all batches of one launch share; `tensor_maps` by their place among the parameters."""

    program: Program
    step: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    parameters: bytes
    memory: GlobalMemory
    findings: Findings
    counters: Counters
    races: bool
    count: bool
    step_budget: int
    seed: int
    tensor_maps: dict[int, TensorMap]
    block_warps: list[int] = field(default_factory=list)
    order: GlobalOrder = field(default_factory=GlobalOrder)

    def __post_init__(self) -> None:
        self.block_warps = [0] * len(self.program.blocks)

    @property
    def clocks(self) -> bool:
        """Whether races on shared memory need vector clocks: threads are ordered by more than whole-block
        barriers.
        """
        return self.races and (
            self.program.finer_order or any(count != self.threads for count in self.program.barrier_counts)
        )

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]
