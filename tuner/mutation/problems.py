"""Problems beyond the edge problems: what a mutant that the gate lets through is tried on."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from emitters import kernel_named
from emitters.kernel import Kernel, Problem, ProblemError
from tuner.devices.device import Candidate

MORE_PROBLEMS = 100
_DRAWS = 20_000


def more_problems(candidate: Candidate, rng: np.random.Generator) -> Sequence[Problem]:
    """`MORE_PROBLEMS` problems drawn at random, fewer where there are no more, none of them an edge problem.

    In turns: every size evenly up to a little more than the largest of the edge problems; evenly in its
    logarithm; an edge problem of which one size is moved a little or taken from another. None takes more
    operations than the largest edge problem.
    """
    kernel = kernel_named(candidate.kernel)
    edges = kernel.edge_problems(kernel.schedule(candidate.schedule))
    most_operations = max(kernel.demand(edge).operations for edge in edges)
    draw = _Draw(kernel, edges, rng)
    found: dict[Problem, None] = {}
    ways = (draw.even, draw.logarithmic, draw.near)
    for number in range(_DRAWS):
        try:
            problem = kernel.spec.problem(*ways[number % len(ways)]())
        except ProblemError:
            continue
        if kernel.demand(problem).operations > most_operations or problem in edges:
            continue
        if candidate.emitted.plan.is_valid(problem.sizes):
            found[problem] = None
        if len(found) == MORE_PROBLEMS:
            break
    return tuple(found)


class _Draw:
    """Ways to draw the sizes of a problem around edge problems."""

    def __init__(self, kernel: Kernel[Any], edges: Sequence[Problem], rng: np.random.Generator) -> None:
        self.names = kernel.spec.sizes
        self.edges, self.rng = edges, rng
        self.steps = {name: int(np.gcd.reduce([edge[name] for edge in edges])) for name in self.names}
        self.most = {name: max(edge[name] for edge in edges) // self.steps[name] + 1 for name in self.names}

    def even(self) -> list[int]:
        return [int(self.rng.integers(1, self.most[name] + 1)) * self.steps[name] for name in self.names]

    def logarithmic(self) -> list[int]:
        return [
            int(np.exp(self.rng.uniform(0.0, np.log(self.most[name] + 0.99)))) * self.steps[name]
            for name in self.names
        ]

    def near(self) -> list[int]:
        one, other = (self.edges[int(i)] for i in self.rng.integers(len(self.edges), size=2))
        sizes = dict(one.sizes)
        name = self.names[int(self.rng.integers(len(self.names)))]
        sizes[name] = other[name] + int(self.rng.integers(-2, 3)) * self.steps[name]
        return [max(size, 1) for size in sizes.values()]
