"""The frozen set as another program sees it: what is loaded is what was pinned, or there is an error."""

import json
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sample_entries import CONTRACT, entry, measured, plan

import results
from results.buckets import distance, nearest
from results.frozen import (
    FrozenError,
    FrozenWarning,
    entries,
    export,
    freeze,
    load,
    places,
    verify_entry,
)
from results.launch import KernelLaunch, Memset


def test_pinned_kernel_is_loaded_by_alias_and_problem(tmp_path: Path) -> None:
    pinned = entry()
    place = freeze(tmp_path, pinned)
    assert place == tmp_path / "frozen" / "ternary_gemm_s8" / "sm_89" / "4096x3456x1280"
    kernel = results.frozen.load("gemm", 4096, 3456, 1280, "sm_89", out=tmp_path)
    assert kernel.entry == pinned
    assert (kernel.ptx, kernel.cubin, kernel.plan) == (pinned.ptx, pinned.cubin, pinned.plan)
    assert kernel.schedule == pinned.schedule
    assert kernel.is_exact
    assert kernel.is_predicted
    assert kernel.arguments == ("a", "w", "c", "m", "n", "k")
    for name in ("ternary_gemm_s8", "ternary-gemm-s8"):
        assert load(name, 4096, 3456, 1280, arch="sm_89", out=tmp_path).entry == pinned


def test_files_are_where_the_readme_says(tmp_path: Path) -> None:
    place = freeze(tmp_path, entry())
    assert sorted(path.name for path in place.iterdir()) == ["kernel.cubin", "kernel.ptx", "manifest.json"]
    assert (place / "kernel.ptx").read_text() == entry().ptx
    manifest = json.loads((place / "manifest.json").read_text())
    assert manifest["time_is"] == "predicted"
    assert manifest["files"]["kernel.cubin"]["bytes"] == len(entry().cubin)
    assert manifest["margin"] == pytest.approx(63.0 / 61.5 - 1)
    assert manifest["arguments"] == ["a", "w", "c", "m", "n", "k"]


def test_launch_is_concrete(tmp_path: Path) -> None:
    freeze(tmp_path, entry())
    kernel = load("gemm", 4096, 3456, 1280, "sm_89", out=tmp_path)
    memset, step = kernel.launch().steps
    assert memset == Memset("c", 0, 4 * 4096 * 3456)
    assert step == KernelLaunch(
        "ternary_gemm_s8", (27, 32, 1), (256, 1, 1), 50176, ("a", "w", "c", 4096, 3456, 1280)
    )
    assert kernel.launch(1, 16, 16).steps[1].grid == (1, 1, 1)  # type: ignore[union-attr]
    with pytest.raises(FrozenError, match=r"n must be a multiple of 16, got 100"):
        kernel.launch(128, 100, 32)


def test_nearest_that_may_serve_is_loaded_and_said_aloud(tmp_path: Path) -> None:
    freeze(tmp_path, entry(4096, 3456, 1280))
    freeze(tmp_path, entry(256, 256, 256))
    freeze(tmp_path, entry(128, 128, 128, plan=plan("n % 64 == 0")))
    with pytest.warns(
        FrozenWarning, match=r"no ternary_gemm_s8 is pinned for 96x144x128 on sm_89; the nearest, 2"
    ):
        kernel = load("gemm", 96, 144, 128, "sm_89", out=tmp_path)
    assert kernel.entry.problem == "256x256x256"  # 128x128x128 is nearer, and 144 no multiple of 64
    assert kernel.sizes == {"m": 96, "n": 144, "k": 128}
    assert not kernel.is_exact
    assert kernel.launch().steps[1].arguments[3:] == (96, 144, 128)  # type: ignore[union-attr]
    with pytest.raises(
        FrozenError, match=r"exactly ternary_gemm_s8 96x144x128 on sm_89; there are 128x128x128 \("
    ):
        load("gemm", 96, 144, 128, "sm_89", out=tmp_path, strict=True)
    with pytest.raises(FrozenError, match=r"this schedule serves problems with n % 64 == 0, got 1x16x16"):
        load("gemm", 128, 128, 128, "sm_89", out=tmp_path).launch(1, 16, 16)


def test_where_nothing_may_serve_there_is_an_error_that_lists_what_there_is(tmp_path: Path) -> None:
    freeze(tmp_path, entry(128, 128, 128, plan=plan("n % 64 == 0")))
    with pytest.raises(
        FrozenError,
        match=r"no pinned kernel may serve ternary_gemm_s8 96x144x128 on sm_89; "
        r"there are 128x128x128 \(only where n % 64 == 0\)",
    ):
        load("gemm", 96, 144, 128, "sm_89", out=tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gemn", 1, 16, 16, "sm_89"), r"no kernel 'gemn' is pinned in .*; there are ternary_gemm_s8"),
        (("gemm", 1, 16, 16, "sm_90"), r"no gemm is pinned for sm_90; it is for sm_89; tune it for sm_90"),
        (("gemm", 1, 16, "sm_89"), r"a problem of ternary_gemm_s8 is mxnxk \(3 sizes\), got 1x16"),
        (("gemm", 128, 100, 32, "sm_89"), r"n must be a multiple of 16, got 100"),
        (("gemm", 0, 16, 16, "sm_89"), r"m must be at least 1, got 0"),
        (("gemm", 1, 16, 16), r"loading gemm takes an arch, as `load\('gemm', \*sizes, arch='sm_89'\)`"),
        (("gemm",), r"loading gemm takes an arch"),
        (("gemm", "one", 16, 16, "sm_89"), r"a size must be a whole number, got 'one'"),
    ],
)
def test_mistaken_load_says_what_is_wrong(tmp_path: Path, arguments: tuple[Any, ...], message: str) -> None:
    freeze(tmp_path, entry())
    with pytest.raises(FrozenError, match=message):
        load(*arguments, out=tmp_path)


def test_empty_or_missing_directory_says_how_to_fill_it(tmp_path: Path) -> None:
    with pytest.raises(FrozenError, match=r"nothing is pinned in .*; pin kernels with `tune promote best`"):
        load("gemm", 1, 16, 16, "sm_89", out=tmp_path)
    with pytest.raises(FrozenError, match=r"there is no directory .*none; make one with `tune run`"):
        load("gemm", 1, 16, 16, "sm_89", out=tmp_path / "none")


@pytest.mark.parametrize("file", ["kernel.ptx", "kernel.cubin"])
def test_tampered_kernel_is_refused_with_both_hashes(tmp_path: Path, file: str) -> None:
    place = freeze(tmp_path, entry())
    expected = json.loads((place / "manifest.json").read_text())["files"][file]["blake3"]
    path = (place / file).resolve()
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    message = rf"{file} has been changed: its blake3 is [0-9a-f]{{64}}, the manifest says {expected}; promote"
    for check in (lambda: load("gemm", 4096, 3456, 1280, "sm_89", out=tmp_path), lambda: verify_entry(place)):
        with pytest.raises(FrozenError, match=message):
            check()
    path.unlink()
    with pytest.raises(FrozenError, match=rf"cannot read .*{file}: No such file or directory"):
        verify_entry(place)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"time_us": 61.5', '"time_us": 31.5'),
        ("ceil_div(m, 128)", "ceil_div(m, 256)"),
        ('"source": "model"', '"source": "cuda_events"'),
        ('"mismatches": 0', '"mismatches": 1'),
    ],
)
def test_tampered_manifest_is_refused(tmp_path: Path, old: str, new: str) -> None:
    place = freeze(tmp_path, entry())
    path = place / "manifest.json"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(
        FrozenError, match=r"manifest.json has been changed: its blake3 is \w+, the manifest says"
    ):
        load("gemm", 4096, 3456, 1280, "sm_89", out=tmp_path)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"hash": "x"}', '"text"', "7"])
def test_broken_manifest_is_refused(tmp_path: Path, text: str) -> None:
    place = freeze(tmp_path, entry())
    (place / "manifest.json").write_text(text)
    with pytest.raises(FrozenError, match=r"manifest.json is no manifest \(.*\); promote the kernel again"):
        verify_entry(place)


def test_manifest_of_another_format_is_refused(tmp_path: Path) -> None:
    place = freeze(tmp_path, entry())
    (place / "manifest.json").write_text('{"format": 2, "hash": ""}')
    with pytest.raises(FrozenError, match="has format 2, this version reads 1"):
        verify_entry(place)


def test_tampered_kernel_does_not_hide_the_others(tmp_path: Path) -> None:
    freeze(tmp_path, entry(256, 256, 256))
    broken = freeze(tmp_path, entry(128, 128, 128))
    (broken / "manifest.json").write_text("{}")
    with pytest.warns(FrozenWarning) as caught:
        kernel = load("gemm", 128, 128, 144, "sm_89", out=tmp_path)
    assert kernel.entry.problem == "256x256x256"
    assert "is no manifest" in str(caught[0].message)
    assert "it is left out" in str(caught[0].message)
    with pytest.raises(FrozenError, match="is no manifest"):  # and never something else in its place
        load("gemm", 128, 128, 128, "sm_89", out=tmp_path)


def test_only_the_latest_meaning_of_a_kernel_serves_other_problems(tmp_path: Path) -> None:
    freeze(tmp_path, entry(128, 128, 128))
    changed = replace(CONTRACT, version=2, semantic_hash="77" * 32)
    freeze(tmp_path, entry(4096, 4096, 4096, contract=changed))
    with pytest.warns(FrozenWarning, match="the nearest, 4096x4096x4096, is served"):
        assert load("gemm", 128, 128, 144, "sm_89", out=tmp_path).entry.contract.version == 2


def test_entries_and_places_are_listed_in_order(tmp_path: Path) -> None:
    assert places(tmp_path) == entries(tmp_path) == []
    for problem in ((256, 256, 256), (128, 128, 128)):
        for arch in ("sm_90", "sm_89"):
            freeze(tmp_path, entry(*problem, arch=arch))
            freeze(tmp_path, entry(*problem, arch=arch))  # an older version is no entry
    listed = [(place.parent.name, place.name) for place in places(tmp_path)]
    assert listed == [
        ("sm_89", "128x128x128"),
        ("sm_89", "256x256x256"),
        ("sm_90", "128x128x128"),
        ("sm_90", "256x256x256"),
    ]
    assert [(e.arch, e.problem) for e in entries(tmp_path)] == listed


def test_moved_entry_is_found_out(tmp_path: Path) -> None:
    place = freeze(tmp_path, entry())
    moved = place.with_name("1x16x16")
    place.rename(moved)
    with pytest.raises(
        FrozenError, match=r"holds the kernel of ternary_gemm_s8/sm_89/4096x3456x1280; move it"
    ):
        verify_entry(moved)


@pytest.mark.parametrize("name", ["shipped", "shipped.zip"])
def test_export_is_loaded_like_the_set_itself(tmp_path: Path, name: str) -> None:
    freeze(tmp_path, entry(measurement=measured()))
    freeze(tmp_path, entry(128, 128, 128))
    destination = tmp_path / name
    export(places(tmp_path), destination)
    if destination.suffix:
        with zipfile.ZipFile(destination) as archive:
            archive.extractall(tmp_path / "unpacked")
        destination = tmp_path / "unpacked"
    assert not any(path.is_symlink() for path in destination.rglob("*"))
    assert [e.problem for e in map(verify_entry, places(destination))] == ["128x128x128", "4096x3456x1280"]
    assert not load("gemm", 4096, 3456, 1280, "sm_89", out=destination).is_predicted
    with pytest.raises(FrozenError, match="is there already; name another destination"):
        export(places(tmp_path), tmp_path / name)
    assert not list(tmp_path.glob(".*"))


def test_export_checks_what_it_ships(tmp_path: Path) -> None:
    place = freeze(tmp_path, entry())
    (place / "kernel.ptx").write_text("other")
    with pytest.raises(FrozenError, match="has been changed"):
        export(places(tmp_path), tmp_path / "shipped")
    assert not (tmp_path / "shipped").exists()
    with pytest.raises(FrozenError, match="there is nothing to export"):
        export([], tmp_path / "shipped")
    freeze(tmp_path / "good", entry())
    with pytest.raises(FrozenError, match=r"cannot write /proc/shipped: .*; name another destination"):
        export(places(tmp_path / "good"), Path("/proc/shipped"))


def test_same_set_gives_the_same_archive(tmp_path: Path) -> None:
    freeze(tmp_path, entry())
    for name in ("a.zip", "b.zip"):
        export(places(tmp_path), tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_loading_needs_neither_emitters_nor_pandas(tmp_path: Path) -> None:
    freeze(tmp_path, entry())
    code = (
        "import results, sys\n"
        "results.frozen.load('gemm', 4096, 3456, 1280, 'sm_89', out=sys.argv[1])\n"
        "heavy = {'emitters', 'search_spaces', 'tuner', 'pandas', 'pyarrow', 'numpy', 'optuna'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_distance_counts_doublings() -> None:
    asked = {"m": 512, "n": 512}
    assert distance(asked, {"m": 1024, "n": 512}) == distance(asked, {"m": 512, "n": 256}) == 1
    assert distance(asked, {"m": 64, "n": 1024}) == 4
    assert distance(asked, asked) == 0


def test_nearest_takes_the_first_of_equals_and_nothing_of_nothing() -> None:
    assert nearest({"n": 512}, [("far", {"n": 4}), ("up", {"n": 1024}), ("down", {"n": 256})]) == "up"
    assert nearest({"n": 512}, []) is None
