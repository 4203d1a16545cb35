"""How an entry gets into the frozen set: written aside, swapped in by one rename, what was there is kept.

``OUT/frozen/<kernel>/<arch>/<problem>`` is a link to ``_versions/<problem>/<number>`` beside it. A version is
never changed once it has its name, so a reader that follows the link once sees one whole entry.
"""

import json
import os
import re
import secrets
import shutil
import zipfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from results.entry import CUBIN, MANIFEST, PTX, FrozenEntry, read_entry, read_manifest
from results.errors import FrozenError, StoreError
from results.rowlog import locked, sync_directory
from results.trial import Source

VERSIONS = "_versions"
_NUMBER = re.compile(r"\d{4,}")


def freeze(out: Path | str, entry: FrozenEntry) -> Path:
    """Pin a kernel, in place of what is pinned for its kernel, arch and problem.

    Killed at any moment, the set holds either the old entry or the new one.

    Returns:
        The entry's path, ``OUT/frozen/<kernel>/<arch>/<problem>``.

    Raises:
        FrozenError: It was not proven right, cannot serve its own problem, or is a prediction and what is
            pinned was measured.
        StoreError: The directory cannot be written.
    """
    _check(entry)
    root = Path(out) / "frozen"
    home = root / entry.kernel / entry.arch
    versions = home / VERSIONS / entry.problem
    try:
        versions.mkdir(parents=True, exist_ok=True)
        with locked(root / ".lock"):
            return _swap_in(entry, home, versions)
    except OSError as error:
        raise StoreError(f"cannot write in {home}: {error.strerror}; name another directory") from None


def history(place: Path) -> list[FrozenEntry]:
    """What was pinned in a place, newest first, the current entry included.

    Raises:
        FrozenError: A file of it has been changed.
    """
    found = [read_entry(place)]
    versions = place.parent / VERSIONS / place.name
    while (before := found[-1].replaces) is not None and (versions / before).is_dir():
        found.append(read_entry(versions / before))
    return found


def export(places: Iterable[Path], destination: Path) -> None:
    """Copy entries, each checked, into one directory or ``.zip`` that can be shipped.

    The directory, or the unpacked archive, is an ``out`` for `results.frozen.load`. It has no history.

    Raises:
        FrozenError: The destination is there already, an entry has been changed, or there is none.
    """
    if destination.exists():
        raise FrozenError(f"{destination} is there already; name another destination")
    entries = [read_entry(place) for place in places]
    if not entries:
        raise FrozenError("there is nothing to export; pin a kernel with `tune promote best`")
    aside = destination.with_name(f".{destination.name}-{secrets.token_hex(4)}")
    try:
        if destination.suffix == ".zip":
            with zipfile.ZipFile(aside, "x", zipfile.ZIP_DEFLATED) as archive:
                for entry in entries:
                    for name, content in _files(entry).items():
                        # A fixed date: the same entries give the same archive.
                        archive.writestr(zipfile.ZipInfo(f"{_place(entry)}/{name}"), content)
        else:
            for entry in entries:
                directory = aside / _place(entry)
                directory.mkdir(parents=True)
                for name, content in _files(entry).items():
                    (directory / name).write_bytes(content)
        os.rename(aside, destination)
    except OSError as error:
        raise FrozenError(f"cannot write {destination}: {error.strerror}; name another destination") from None
    finally:
        _discard(aside)


def _check(entry: FrozenEntry) -> None:
    if not entry.verdict.is_right:
        raise FrozenError(
            f"only a kernel that was proven right is pinned; trial {entry.number} of {entry.study} has "
            f"{entry.verdict.mismatches} mismatches, fault {entry.verdict.fault or 'none'}, "
            f"on {len(entry.verdict.problems)} problems; check it again"
        )
    entry.contract.problem(tuple(entry.sizes.values()))
    if not entry.is_valid(entry.sizes):
        raise FrozenError(
            f"the schedule serves problems with {entry.plan.valid}, not its own {entry.problem}"
        )


def _swap_in(entry: FrozenEntry, home: Path, versions: Path) -> Path:
    place = home / entry.problem
    if place.is_dir() and not place.is_symlink():
        raise FrozenError(f"{place} is a plain directory, as of an export; move it away and promote again")
    if place.is_symlink():
        _may_replace(entry, place)
        entry = replace(entry, replaces=place.readlink().name)
    for abandoned in versions.glob(".*"):  # of a process that was killed while it wrote
        _discard(abandoned)
    numbers = [int(path.name) for path in versions.iterdir() if _NUMBER.fullmatch(path.name)]
    name = f"{max(numbers, default=0) + 1:04}"
    files = _files(entry)
    aside = versions / f".{name}"
    aside.mkdir()
    for file, content in files.items():
        _write(aside / file, content)
    sync_directory(aside)
    os.rename(aside, versions / name)
    sync_directory(versions)
    link = versions / ".link"
    link.symlink_to(Path(VERSIONS, entry.problem, name))
    os.replace(link, place)
    sync_directory(home)
    return place


def _may_replace(entry: FrozenEntry, place: Path) -> None:
    source = Source(read_manifest(place.resolve())["measurement"]["source"])
    if entry.is_predicted and source.is_measured:
        raise FrozenError(
            f"a predicted kernel never replaces a measured one; {place} was measured ({source}); "
            "measure the candidate, or move that entry away"
        )


def _files(entry: FrozenEntry) -> dict[str, bytes]:
    try:
        text = json.dumps(entry.manifest, indent=2, sort_keys=True, allow_nan=False)
    except ValueError as error:
        raise FrozenError(f"a manifest holds finite numbers only: {error}") from None
    return {PTX: entry.contents[PTX], CUBIN: entry.contents[CUBIN], MANIFEST: f"{text}\n".encode()}


def _place(entry: FrozenEntry) -> str:
    return f"frozen/{entry.kernel}/{entry.arch}/{entry.problem}"


def _write(path: Path, content: bytes) -> None:
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
