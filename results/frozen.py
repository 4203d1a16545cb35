"""The frozen set: pinned kernels that other programs load, by name and problem.

    kernel = results.frozen.load("gemm", 4096, 3456, 1280, "sm_89")
    module = cupy.RawModule(code=kernel.cubin) ...; for step in kernel.launch().steps: ...

What is loaded was proven right, is byte for byte what was pinned, and says how its time was obtained.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from results.buckets import nearest
from results.entry import (
    MANIFEST,
    Contract,
    FrozenEntry,
    Limit,
    Operand,
    RunnerUp,
    contract_of,
    read_entry,
    read_manifest,
    sizes_of,
)
from results.errors import FrozenError, FrozenWarning
from results.launch import Launch, launch_for
from results.pinning import export, freeze, history
from results.plan import LaunchPlan
from results.trial import ParameterValue

__all__ = [
    "Contract",
    "FrozenEntry",
    "FrozenError",
    "FrozenKernel",
    "FrozenWarning",
    "Limit",
    "Operand",
    "RunnerUp",
    "entries",
    "export",
    "freeze",
    "history",
    "load",
    "places",
    "verify_entry",
]


@dataclass(frozen=True)
class FrozenKernel:
    """A pinned kernel, ready for one problem.

    Attributes:
        entry: Everything that is known of it.
        sizes: The problem that was asked for, by name.
        path: Where it was loaded from.
    """

    entry: FrozenEntry
    sizes: Mapping[str, int]
    path: Path

    @property
    def ptx(self) -> str:
        return self.entry.ptx

    @property
    def cubin(self) -> bytes:
        return self.entry.cubin

    @property
    def plan(self) -> LaunchPlan:
        return self.entry.plan

    @property
    def schedule(self) -> Mapping[str, ParameterValue]:
        return self.entry.schedule

    @property
    def manifest(self) -> dict[str, Any]:
        return self.entry.manifest

    @property
    def is_predicted(self) -> bool:
        """Whether its time was never measured."""
        return self.entry.is_predicted

    @property
    def is_exact(self) -> bool:
        """Whether it was tuned for this very problem."""
        return dict(self.sizes) == dict(self.entry.sizes)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Names in the order in which a call takes them, without a workspace."""
        return self.entry.contract.arguments

    def launch(self, *sizes: int) -> Launch:
        """The call for a problem, in the contract's order; without sizes for the one that was asked for.

        Raises:
            FrozenError: A limit of the kernel is broken, or the schedule cannot serve the problem.
        """
        contract = self.entry.contract
        problem = contract.problem(sizes) if sizes else self.sizes
        if not self.entry.is_valid(problem):
            raise FrozenError(_cannot_serve(self.entry.plan.valid, problem))
        operands = [*(buffer.name for buffer in contract.buffers), *contract.scalars]
        return launch_for(self.entry.plan, problem, operands)


def load(
    kernel: str,
    *sizes: int | str,
    arch: str | None = None,
    out: Path | str = "tuning",
    strict: bool = False,
) -> FrozenKernel:
    """The pinned kernel for a problem.

    Looked up are, in this order: the kernel pinned for exactly this problem; of those pinned for other
    problems whose schedule may serve this one, the nearest (`results.buckets`), which is said in a
    `FrozenWarning`; nothing, which is an error. Of kernels whose meaning was changed between pinnings only
    the latest meaning counts.

    Args:
        kernel: Id or alias; hyphens and underscores are the same.
        sizes: The problem in the kernel's order; the arch may follow as the last one.
        arch: As ``sm_89``.
        out: Directory of a tuning run, or of an export.
        strict: Whether only a kernel tuned for exactly this problem will do.

    Raises:
        FrozenError: A file has been changed; a limit of the kernel is broken; or there is no such kernel, and
            then the message lists what there is.
    """
    *numbers, last = sizes or ("",)
    if isinstance(last, str) and last:
        arch = last
    elif sizes:
        numbers.append(last)
    problem = tuple(_whole(size) for size in numbers)
    if arch is None:
        raise FrozenError(f"loading {kernel} takes an arch, as `load({kernel!r}, *sizes, arch='sm_89')`")
    home = _home(Path(out), kernel, arch)
    text = "x".join(map(str, problem))
    place = home / text
    if (place / MANIFEST).exists():
        entry = read_entry(place)
        return FrozenKernel(entry, entry.contract.problem(problem), place)
    place, named = _nearest(home, problem, strict)
    entry = read_entry(place)
    warnings.warn(
        FrozenWarning(
            f"no {entry.kernel} is pinned for {text} on {arch}; the nearest, {entry.problem}, is served; "
            f"tune it with `tune run --kernel {entry.kernel} --shape {text}`"
        ),
        stacklevel=2,
    )
    return FrozenKernel(entry, named, place)


def places(out: Path | str = "tuning") -> list[Path]:
    """Where kernels are pinned, ``OUT/frozen/<kernel>/<arch>/<problem>``, in order."""
    found = Path(out, "frozen").glob(f"*/*/*/{MANIFEST}")
    return sorted(path.parent for path in found if not path.parent.name.startswith(("_", ".")))


def entries(out: Path | str = "tuning") -> list[FrozenEntry]:
    """Every pinned kernel, checked.

    Raises:
        FrozenError: A file has been changed.
    """
    return [read_entry(place) for place in places(out)]


def verify_entry(place: Path) -> FrozenEntry:
    """An entry whose every hash and length was checked anew, and whose place is the one it names.

    Raises:
        FrozenError: A file is missing or has been changed, or the entry was moved.
    """
    entry = read_entry(place)
    expected = (entry.kernel, entry.arch, entry.problem)
    if (place.parent.parent.name, place.parent.name, place.name) != expected:
        raise FrozenError(f"{place} holds the kernel of {'/'.join(expected)}; move it there")
    return entry


def _home(out: Path, name: str, arch: str) -> Path:
    """Directory of a kernel's entries for an arch."""
    if not out.is_dir():
        raise FrozenError(f"there is no directory {out}; make one with `tune run` and `tune promote best`")
    known = places(out)
    homes: set[Path] = set()
    damaged: list[FrozenError] = []
    for place in known:
        try:
            if _answers(place, name):
                homes.add(place.parent)
        except FrozenError as error:
            damaged.append(error)
    for home in homes:
        if home.name == arch:
            return home
    if not known:
        raise FrozenError(f"nothing is pinned in {out}; pin kernels with `tune promote best`")
    if damaged and not homes:
        raise damaged[0]
    if not homes:
        listed = ", ".join(sorted({place.parent.parent.name for place in known}))
        raise FrozenError(f"no kernel {name!r} is pinned in {out}; there are {listed}")
    listed = ", ".join(sorted(home.name for home in homes))
    raise FrozenError(f"no {name} is pinned for {arch}; it is for {listed}; tune it for {arch}")


def _answers(place: Path, name: str) -> bool:
    if place.parent.parent.name == name.replace("-", "_"):
        return True
    return contract_of(read_manifest(place)).answers_to(name)


def _nearest(home: Path, problem: tuple[int, ...], strict: bool) -> tuple[Path, dict[str, int]]:
    manifests: dict[Path, dict[str, Any]] = {}
    for place in sorted(home.iterdir()):
        if place.name.startswith(("_", ".")):
            continue
        try:
            manifests[place] = read_manifest(place)
        except FrozenError as error:
            warnings.warn(FrozenWarning(f"{error}; it is left out"), stacklevel=3)
    if not manifests:
        raise FrozenError(f"nothing in {home} can be read; promote its kernels again")
    newest = max(manifest["version"] for manifest in manifests.values())
    kept = {place: value for place, value in manifests.items() if value["version"] == newest}
    contract = contract_of(next(iter(kept.values())))
    named = contract.problem(problem)
    plans = {place: LaunchPlan.from_json(value["plan"]) for place, value in kept.items()}
    serving = [(place, sizes_of(kept[place])) for place, plan in plans.items() if plan.is_valid(named)]
    found = None if strict else nearest(named, serving)
    if found is None:
        text = "x".join(map(str, problem))
        listed = "; ".join(
            place.name if plan.is_valid(named) else f"{place.name} (only where {plan.valid})"
            for place, plan in plans.items()
        )
        none = "no kernel is pinned for exactly" if strict else "no pinned kernel may serve"
        raise FrozenError(f"{none} {contract.kernel} {text} on {home.name}; there are {listed}")
    return found, named


def _whole(size: int | str) -> int:
    if isinstance(size, str):
        raise FrozenError(f"a size must be a whole number, got {size!r}")
    return int(size)


def _cannot_serve(valid: str, problem: Mapping[str, int]) -> str:
    text = "x".join(map(str, problem.values()))
    return f"this schedule serves problems with {valid}, got {text}; load a kernel for that problem"
