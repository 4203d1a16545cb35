"""Which elements of C a lane of a warp holds, and in what runs it can store them."""

from dataclasses import dataclass

Element = tuple[int, int]
"""A fragment along n, and which of its two neighbouring accumulators of one row."""


@dataclass(frozen=True)
class LanePart:
    """The part of the warp's C that a lane (= 4 * group + member) holds.

    Attributes:
        rows_apart: Rows between two neighbouring groups. 1: the halves of a fragment are eight rows apart;
            2: they alternate, row by row.
        columns_apart: Columns between the first columns of two neighbouring members.
        runs: Neighbouring columns of a row: distance from the lane's first column, and where they are held.
        exchange: Whether pairs of runs are exchanged with the neighbouring lane before they are stored.
    """

    rows_apart: int
    columns_apart: int
    runs: tuple[tuple[int, tuple[Element, ...]], ...]
    exchange: bool = False

    def row(self, number: int) -> int:
        """Row, from the lane's first, of the accumulators of half `number % 2` of fragment `number // 2`."""
        return 8 * number if self.rows_apart == 1 else 16 * (number // 2) + number % 2


def natural(fragments: int) -> LanePart:
    """As the ISA has it: two neighbouring columns of each fragment."""
    return LanePart(1, 2, tuple((8 * number, ((number, 0), (number, 1))) for number in range(fragments)))


def pair_ordered(fragments: int) -> LanePart:
    """Columns in the order of `emitters.fragments.pair_order`: four neighbours in each pair of fragments."""
    return LanePart(
        1,
        4,
        tuple(
            (8 * first, ((first, 0), (first, 1), (first + 1, 0), (first + 1, 1)))
            for first in range(0, fragments, 2)
        ),
    )


def grouped(fragments: int, exchange: bool) -> LanePart:
    """Column g of fragment j is column J * g + j of the warp, of J fragments."""
    held = [(fragment, element) for element in (0, 1) for fragment in range(fragments)]
    runs = tuple((first, tuple(held[first : first + 4])) for first in range(0, 2 * fragments, 4))
    return LanePart(1, 2 * fragments, runs, exchange)


def alternating(fragments: int) -> LanePart:
    """Rows and columns in the order of `emitters.fragments.transposed`: halves of a fragment alternate row by
    row, two fragments column by column."""
    return LanePart(
        2,
        4,
        tuple(
            (8 * first, ((first, 0), (first + 1, 0), (first, 1), (first + 1, 1)))
            for first in range(0, fragments, 2)
        ),
    )
