"""The frozen set looked at again: hashes, the same text from today's emitter, the same code, and right."""

from dataclasses import dataclass
from pathlib import Path

from emitters import kernel_named
from emitters.target import Target
from results.entry import read_entry
from results.errors import FrozenError
from results.frozen import FrozenEntry, places, verify_entry
from tuner.fresh import Fresh
from tuner.pipeline import Failure
from tuner.promote import SEED
from tuner.ptxas import Assembler
from tuner.task import RequestError


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a pinned kernel; nothing where `complaint` is empty.

    Attributes:
        is_changed: Its files are not the ones that were pinned; nothing further was looked at.
    """

    place: Path
    complaint: str
    is_changed: bool = False


def entries_in(out: Path, kernel: str | None = None) -> list[FrozenEntry]:
    """Every pinned kernel, checked.

    Raises:
        RequestError: There is no such directory.
        FrozenError: A file has been changed.
    """
    return [read_entry(place) for place in _places(out, kernel)]


def verify_pinned(out: Path, kernel: str | None, assembler: Assembler) -> list[Finding]:
    """Verify every pinned kernel.

    Its files are what was pinned, the emitter of today writes the same text, ptxas makes the same code of it,
    and it is right on its edge problems.

    Raises:
        RequestError: There is no such directory.
    """
    with Fresh(assembler) as fresh:
        return [_finding(place, fresh, assembler) for place in _places(out, kernel)]


def _finding(place: Path, fresh: Fresh, assembler: Assembler) -> Finding:
    try:
        entry = verify_entry(place)
    except FrozenError as error:
        return Finding(place, str(error), is_changed=True)
    return Finding(place, _complaint(entry, fresh, assembler))


def _complaint(entry: FrozenEntry, fresh: Fresh, assembler: Assembler) -> str:
    kernel = kernel_named(entry.kernel)
    if kernel.spec.semantic_hash != entry.contract.semantic_hash:
        return f"{entry.kernel} means something else now; tune and promote it again"
    problem = kernel.spec.problem(*entry.sizes.values())
    candidate = fresh.build(entry.kernel, dict(entry.schedule), Target.of(entry.arch), problem)
    if isinstance(candidate, Failure):
        return candidate.message
    if candidate.emitted.source_hash != entry.source_hash:
        return "the emitter writes another text for this schedule now; tune and promote it again"
    pinned_by = entry.versions.get("ptxas")
    if candidate.binary.code_hash != entry.code_hash and pinned_by == assembler.version:
        return f"ptxas {assembler.version} makes other code of the same text"
    edges = fresh.prove_edges(candidate, problem, SEED)
    return edges.message if isinstance(edges, Failure) else ""


def _places(out: Path, kernel: str | None) -> list[Path]:
    if not out.is_dir():
        raise RequestError(f"there is no directory {out}; `tune run --out {out}` makes it")
    wanted = None if kernel is None else kernel_named(kernel).id
    return [place for place in places(out) if wanted in (None, place.parent.parent.name)]
