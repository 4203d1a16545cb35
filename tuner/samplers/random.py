"""Uniformly random schedules of the valid set, without repetition."""

import numpy as np

from search_spaces.space import Space
from tuner.samplers.base import Past, Subject


class RandomCore:
    """Every free schedule is as likely as any other."""

    def propose(self, past: Past, space: Space, rng: np.random.Generator) -> int:
        return int(rng.choice(past.free(space)))


def make_random(subject: Subject) -> RandomCore:
    """The core, which needs to know nothing about its subject."""
    return RandomCore()
