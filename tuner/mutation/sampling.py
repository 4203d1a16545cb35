"""Which mutants are tried: a sample in which every operator has its share."""

import numpy as np

from emitters.kernel import EmittedKernel
from tuner.mutation.mutant import Mutant
from tuner.mutation.operators import all_mutants
from tuner.mutation.plan_operators import NAME, plan_mutants
from tuner.mutation.source import Source


def every_mutant(kernel: EmittedKernel) -> dict[str, list[Mutant]]:
    """All mutants of a kernel's text and plan by operator."""
    return {NAME: plan_mutants(kernel.plan), **all_mutants(Source.of(kernel.ptx))}


def sample(kernel: EmittedKernel, count: int, rng: np.random.Generator) -> list[Mutant]:
    """Mutants of a kernel, the operators taking turns, so that the rare ones are in it to the last.

    Args:
        kernel: As emitted.
        count: How many; fewer where there are no more.
        rng: Chooses among the mutants of an operator.
    """
    queues = [
        [mutants[i] for i in rng.permutation(len(mutants))] for mutants in every_mutant(kernel).values()
    ]
    chosen: list[Mutant] = []
    while len(chosen) < count and any(queues):
        for queue in queues:
            if queue and len(chosen) < count:
                chosen.append(queue.pop())
    return chosen
