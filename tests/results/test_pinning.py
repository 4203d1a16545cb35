"""How entries get into the frozen set: what may replace what, and what an interruption leaves."""

import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_entries import CONTRACT, entry, measured, plan, predicted

from results.errors import StoreError
from results.frozen import FrozenError, freeze, history, load, places
from results.trial import Source, Verdict


def current(out: Path) -> Any:
    return load("gemm", 4096, 3456, 1280, "sm_89", out=out).entry


@pytest.mark.parametrize("source", [Source.CUDA_EVENTS, Source.REPLAY])
def test_prediction_never_replaces_a_measurement(tmp_path: Path, source: Source) -> None:
    freeze(tmp_path, entry(measurement=measured(100.0, source)))
    with pytest.raises(
        FrozenError,
        match=r"a predicted kernel never replaces a measured one; .*4096x3456x1280 was measured \(",
    ):
        freeze(tmp_path, entry(measurement=predicted(1.0)))
    assert current(tmp_path).measurement.time_us == 100.0
    assert len(history(places(tmp_path)[0])) == 1


def test_everything_else_replaces_and_the_history_is_kept(tmp_path: Path) -> None:
    for measurement in (predicted(90.0), predicted(95.0), measured(100.0), measured(101.0)):
        place = freeze(tmp_path, entry(measurement=measurement, ptx=f"// {measurement.time_us}"))
    found = history(place)
    assert [old.measurement.time_us for old in found] == [101.0, 100.0, 95.0, 90.0]
    assert [old.ptx for old in found] == ["// 101.0", "// 100.0", "// 95.0", "// 90.0"]
    assert [old.replaces for old in found] == ["0003", "0002", "0001", None]


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(1, ("1x16x16",)),
        Verdict(0, ("1x16x16",), fault="race"),
        Verdict(0, ()),
    ],
)
def test_only_what_was_proven_right_is_pinned(tmp_path: Path, verdict: Verdict) -> None:
    with pytest.raises(
        FrozenError, match=r"only a kernel that was proven right is pinned; trial 12 of .* has"
    ):
        freeze(tmp_path, entry(verdict=verdict))
    assert places(tmp_path) == []


def test_kernel_that_cannot_serve_its_own_problem_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        FrozenError, match=r"the schedule serves problems with n % 64 == 0, not its own 1x16x16"
    ):
        freeze(tmp_path, entry(1, 16, 16, plan=plan("n % 64 == 0")))
    with pytest.raises(FrozenError, match=r"n must be a multiple of 16, got 17"):
        freeze(tmp_path, entry(1, 17, 16))
    with pytest.raises(FrozenError, match=r"sizes must be m, n, k, got n, m, k"):
        entry(sizes={"n": 16, "m": 1, "k": 16})


CALLS = ("mkdir", "rename", "replace", "symlink", "fsync", "open")


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_failure_at_any_step_leaves_the_old_entry_or_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, existing: bool
) -> None:
    """Of the calls that change the disk the first fails, then the second, ... until none is left."""
    real = getattr(os, call)
    left = 0

    def failing(*arguments: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise OSError(5, "Input/output error")
        return real(*arguments, **named)

    for step in range(1, 40):
        out = tmp_path / str(step)
        if existing:
            freeze(out, entry(measurement=predicted(90.0)))
        left = step
        with monkeypatch.context() as patched, suppress(StoreError):
            patched.setattr(os, call, failing)
            freeze(out, entry(measurement=predicted(80.0)))
        if existing:
            assert current(out).measurement.time_us in (80.0, 90.0)
        elif places(out):
            assert current(out).measurement.time_us == 80.0
        freeze(out, entry(measurement=predicted(70.0)))  # and the next attempt is not held up
        assert current(out).measurement.time_us == 70.0
        times = [old.measurement.time_us for old in history(places(out)[0])]
        assert times in ([70.0], [70.0, 80.0], [70.0, 90.0], [70.0, 80.0, 90.0])
        assert not [*out.rglob(".link"), *out.rglob(".0*")]
        if left > 0:
            assert step > 1, f"os.{call} is never called; nothing was tested"
            return
    pytest.fail("it never came to an end")


KILLED = """
import os, signal, sys
sys.path.insert(0, sys.argv[3])
from sample_entries import entry, predicted
from results.frozen import freeze
steps = int(sys.argv[2])
def counted(real):
    def call(*arguments, **named):
        global steps
        steps -= 1
        if steps < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **named)
    return call
for name in ("mkdir", "rename", "replace", "symlink", "fsync", "open"):
    setattr(os, name, counted(getattr(os, name)))
freeze(sys.argv[1], entry(measurement=predicted(80.0)))
"""


def test_killed_at_any_step_leaves_the_old_entry_or_the_new(tmp_path: Path) -> None:
    seen = []
    for step in range(60):
        out = tmp_path / str(step)
        freeze(out, entry(measurement=predicted(90.0)))
        command = [sys.executable, "-c", KILLED, str(out), str(step), str(Path(__file__).parent)]
        code = subprocess.run(command, check=False).returncode
        assert code in (0, -9)
        seen.append(current(out).measurement.time_us)
        freeze(out, entry(measurement=predicted(70.0)))
        assert current(out).measurement.time_us == 70.0
        if code == 0:
            break
    assert seen == sorted(seen, reverse=True)
    assert {90.0, 80.0} == set(seen)
    assert len(seen) > 8


def test_reader_that_began_before_a_swap_reads_the_old_entry_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze(tmp_path, entry(ptx="// old", measurement=predicted(90.0)))
    read_bytes = Path.read_bytes
    swapped = []

    def swap_first(self: Path) -> bytes:
        if not swapped:
            swapped.append(freeze(tmp_path, entry(ptx="// new", measurement=predicted(80.0))))
        return read_bytes(self)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", swap_first)
        kernel = current(tmp_path)
    assert (kernel.ptx, kernel.measurement.time_us) == ("// old", 90.0)
    assert current(tmp_path).ptx == "// new"


def test_plain_directory_in_the_place_is_not_overwritten(tmp_path: Path) -> None:
    place = tmp_path / "frozen" / CONTRACT.kernel / "sm_89" / "4096x3456x1280"
    place.mkdir(parents=True)
    with pytest.raises(
        FrozenError, match=r"is a plain directory, as of an export; move it away and promote again"
    ):
        freeze(tmp_path, entry())


def test_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", Path("/proc")):
        with pytest.raises(StoreError, match=r"cannot write in .*; name another directory"):
            freeze(out, entry())


def test_figure_that_is_no_number_is_refused(tmp_path: Path) -> None:
    strange = replace(predicted(), details={"waves": float("nan")})
    with pytest.raises(FrozenError, match="not JSON compliant"):
        freeze(tmp_path, entry(measurement=strange))
    assert places(tmp_path) == []


def test_two_writers_at_once_lose_no_version(tmp_path: Path) -> None:
    def pin(first: int) -> None:
        for number in range(first, first + 8):
            freeze(tmp_path, entry(number=number))

    threads = [threading.Thread(target=pin, args=(first,)) for first in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = [old.number for old in history(places(tmp_path)[0])]
    assert sorted(numbers) == [*range(8), *range(100, 108)]
