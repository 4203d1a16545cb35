"""Which tuned problem serves one that was not tuned: the one such rule, for tuning and for loading."""

import math
from collections.abc import Iterable, Mapping
from typing import TypeVar

T = TypeVar("T")


def distance(asked: Mapping[str, int], tuned: Mapping[str, int]) -> float:
    """How unlike two problems of one kernel are: the factors between their sizes, as a sum of |log2|.

    512x512 is as far from 1024x512 as from 256x512, one doubling; the order of the sizes does not matter.
    """
    return sum(abs(math.log2(max(asked[name], 1) / max(tuned[name], 1))) for name in asked)


def nearest(asked: Mapping[str, int], candidates: Iterable[tuple[T, Mapping[str, int]]]) -> T | None:
    """The candidate whose sizes are nearest; of equally near ones the first, and None of none."""
    ranked = [(distance(asked, sizes), order, value) for order, (value, sizes) in enumerate(candidates)]
    return min(ranked, key=lambda candidate: candidate[:2])[2] if ranked else None
