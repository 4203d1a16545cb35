"""Interleaving of tensor-core instructions with everything else that a main loop has to do.

ptxas keeps memory instructions and barriers in the order in which they are written, and moves what touches
registers only around them. The text says what is meant: loads of the next fragments one by one between the
mma's of the present ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fill:
    """Something to be written between mma's.

    Attributes:
        write: Emits it.
        ready: Number of mma's of this run that must come before it, because they still read a register that
            it overwrites.
    """

    write: Callable[[], None]
    ready: int = 0


def weave(mmas: Sequence[Callable[[], None]], fills: Sequence[Fill]) -> None:
    """Write all mma's in order, with the fills, in order, spread between them.

    At least one fill goes before each mma while there are any (an `ldmatrix` a `mma`, as the best int8
    kernels have it), more where there are more fills than mma's. A fill that is not ready holds back those
    behind it.
    """
    done = 0
    for number, mma in enumerate(mmas):
        due = max(number + 1, -(-len(fills) * (number + 1) // len(mmas)))
        while done < min(due, len(fills)) and fills[done].ready <= number:
            fills[done].write()
            done += 1
        mma()
    for fill in fills[done:]:
        fill.write()
