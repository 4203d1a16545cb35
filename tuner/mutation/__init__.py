"""Mutation: makes small faults in emitted kernels by the hundred, and asks whether the gate finds each."""

from tuner.mutation.campaign import Mutated, MutationError, mutate
from tuner.mutation.judging import Fate, Judged
from tuner.mutation.mutant import Mutant

__all__ = ["Fate", "Judged", "Mutant", "Mutated", "MutationError", "mutate"]
