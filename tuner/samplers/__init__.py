"""Samplers by name. A new one is one file with a core, and one row here."""

from collections.abc import Callable
from dataclasses import dataclass

from tuner.names import hint
from tuner.samplers.auto import make_auto
from tuner.samplers.base import Core, Subject, ValidSetSampler
from tuner.samplers.random import make_random
from tuner.samplers.tpe import make_tpe


class UnknownSamplerError(ValueError):
    """A sampler that the table does not have."""


@dataclass(frozen=True, slots=True)
class SamplerEntry:
    """A row of the table.

    Attributes:
        make: Makes the core.
        summary: What it does, for a person.
        is_assuring: Whether the core can tell how sure it is.
        is_learning: Whether it learns from other studies.
    """

    make: Callable[[Subject], Core]
    summary: str
    is_assuring: bool = False
    is_learning: bool = False


SAMPLERS: dict[str, SamplerEntry] = {
    "auto": SamplerEntry(
        make_auto, "Gaussian process over the valid set", is_assuring=True, is_learning=True
    ),
    "random": SamplerEntry(make_random, "uniformly random, without repetition"),
    "tpe": SamplerEntry(make_tpe, "tree-structured Parzen estimator over the valid set"),
}
DEFAULT_SAMPLER = "auto"


def sampler_named(name: str, subject: Subject, seed: int, look_ahead: int = 1) -> ValidSetSampler:
    """The Optuna sampler of that name.

    Raises:
        UnknownSamplerError: With the nearest names.
    """
    check_sampler(name)
    return ValidSetSampler(name, SAMPLERS[name].make(subject), subject.space, seed, look_ahead)


def check_sampler(name: str) -> None:
    """Refuse a name that the table does not have, before anything is begun.

    Raises:
        UnknownSamplerError: With the nearest names.
    """
    if name not in SAMPLERS:
        raise UnknownSamplerError(f"unknown sampler {name!r}; {hint(name, SAMPLERS)}")
