"""Candidates with the same code and the same launch plan: the second one need not be evaluated."""

from collections.abc import Callable, Iterable

from blake3 import blake3

from emitters.kernel import EmittedKernel, canonical_json
from results.trial import Trial


class Twins:
    """First trial of each (code, plan).

    Args:
        rows: Finished trials of earlier runs. A row names the code but not the plan, so where the code agrees
            its schedule is emitted again; it counts only if the text is what the row's was.
        emit: Emits the schedule of such a row.
    """

    def __init__(self, rows: Iterable[Trial], emit: Callable[[Trial], EmittedKernel]) -> None:
        self._emit = emit
        self._first: dict[str, int] = {}
        self._earlier: dict[str, list[Trial]] = {}
        for row in rows:
            if row.code_hash is not None and row.duplicate_of is None:
                self._earlier.setdefault(row.code_hash, []).append(row)

    def first(self, number: int, code_hash: str, emitted: EmittedKernel) -> int | None:
        """The trial that was first with this code and plan; None if it is this one, which is then noted."""
        self._recall(code_hash)
        first = self._first.setdefault(_key(code_hash, emitted), number)
        return None if first == number else first

    def _recall(self, code_hash: str) -> None:
        for row in self._earlier.pop(code_hash, []):
            emitted = self._emit(row)
            if emitted.source_hash == row.source_hash:
                self._first.setdefault(_key(code_hash, emitted), row.number)


def _key(code_hash: str, emitted: EmittedKernel) -> str:
    return blake3(f"{code_hash}\n{canonical_json(emitted.plan.to_json())}".encode()).hexdigest()
