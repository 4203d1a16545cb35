import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from results.trial import Outcome
from tuner.devices.recorded import T1, RecordingError, read_recording, read_t1

REPLAY = Path(os.environ.get("REPLAY_SPACES", Path(__file__).parents[3] / "shared" / "replay"))


def entry(x: int, y: int, time: object, times: list[float] | None = None) -> dict[str, object]:
    return {"block_size_x": x, "tile": y, "time": time, "times": times or [], "GFLOP/s": 1.0}


def cache_text() -> str:
    """As Kernel Tuner 1.x writes it: one line an entry."""
    head = {
        "device_name": "NVIDIA A100",
        "kernel_name": "copy",
        "tune_params_keys": ["block_size_x", "tile"],
        "tune_params": {"block_size_x": [32, 64], "tile": [1, 2, 3]},
        "objective": "time",
    }
    entries = {
        "32,1": entry(32, 1, 2.0, [1.5, 2.5]),
        "32,3": entry(32, 3, "CompilationFailedConfig"),
        "64,1": entry(64, 1, "RuntimeFailedConfig"),
        "64,2": entry(64, 2, 0.5, [0.5]),
        "64,3": entry(64, 3, "InvalidConfig"),
    }
    lines = ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in entries.items())
    return json.dumps(head)[:-1] + ',\n"cache": {\n' + lines + "}\n}"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_kernel_tuner_cache_is_read(tmp_path: Path) -> None:
    recording = read_recording(written(tmp_path / "copy.json", cache_text()))
    assert (recording.kernel, recording.device) == ("copy", "NVIDIA A100")
    assert recording.names == ("block_size_x", "tile")
    assert recording.levels.tolist() == [[0, 0], [0, 2], [1, 0], [1, 1]]
    np.testing.assert_array_equal(recording.times_us, [2000, np.nan, np.nan, 500])
    np.testing.assert_array_equal(recording.raw_us[[0, 3]], [[1500, 2500], [500, np.nan]])
    assert recording.outcomes == (Outcome.OK, Outcome.ASSEMBLE, Outcome.CRASH, Outcome.OK)
    assert recording.messages == ("", "CompilationFailedConfig", "RuntimeFailedConfig", "")
    assert recording.complete


@pytest.mark.parametrize(("source", "kept"), [("model", "model"), ("Table 3", ""), ("model, Table 3", "")])
def test_of_sources_only_those_of_our_own_trials_are_kept(tmp_path: Path, source: str, kept: str) -> None:
    document = {**json.loads(cache_text()), "metadata": {"source": source}}
    assert read_recording(written(tmp_path / "copy.json", json.dumps(document))).source == kept


def test_a_cache_of_kernel_tuner_1_5_is_read(tmp_path: Path) -> None:
    """It has its objectives in a list, and a failure apart from the time, which is then missing."""
    document = json.loads(cache_text())
    document["objective"] = ["time"]
    for measured in document["cache"].values():
        if isinstance(measured["time"], str):
            measured["__error__"] = measured.pop("time")
    recording = read_recording(written(tmp_path / "copy.json", json.dumps(document)))
    same = read_recording(written(tmp_path / "old.json", cache_text()))
    np.testing.assert_array_equal(recording.times_us, same.times_us)
    assert (recording.outcomes, recording.messages) == (same.outcomes, same.messages)
    assert recording.levels.tolist() == same.levels.tolist()


def test_times_are_read_whatever_was_sought(tmp_path: Path) -> None:
    document = json.loads(cache_text())
    document["objective"] = ["GFLOP/s"]
    recording = read_recording(written(tmp_path / "copy.json", json.dumps(document)))
    np.testing.assert_array_equal(recording.times_us, [2000, np.nan, np.nan, 500])


def test_what_breaks_a_condition_is_no_schedule(tmp_path: Path) -> None:
    recording = read_recording(written(tmp_path / "copy.json", cache_text()))
    schedules = [recording.schedule(number) for number in range(len(recording))]
    assert {"block_size_x": 64, "tile": 3} not in schedules


@pytest.mark.parametrize(
    ("cut", "schedules"),
    [("}\n}", 4), ("\n}", 4), ('"GFLOP/s": 1.0}}\n}', 4), ('{"block_size_x": 64, "tile": 2', None)],
)
def test_a_cache_without_its_end_is_read_as_far_as_it_goes(
    tmp_path: Path, cut: str, schedules: int | None
) -> None:
    text = cache_text()
    text = text[: text.rindex(cut)]
    recording = read_recording(written(tmp_path / "copy.json", text))
    assert not recording.complete
    assert len(recording) == (3 if schedules is None else schedules)


def test_a_trailing_comma_is_no_obstacle(tmp_path: Path) -> None:
    recording = read_recording(written(tmp_path / "copy.json", cache_text()[:-3] + ",\n"))
    assert len(recording) == 4


def test_compressed_files_are_read_whole_or_cut(tmp_path: Path) -> None:
    packed = gzip.compress(cache_text().encode(), mtime=0)
    whole, cut = tmp_path / "whole.json.gz", tmp_path / "cut.json.gz"
    whole.write_bytes(packed)
    cut.write_bytes(packed[:-9])  # the trailer and a byte
    assert read_recording(whole).complete
    recording = read_recording(cut)
    assert not recording.complete
    assert len(recording) >= 3


def t4_text() -> str:
    def row(x: int, invalidity: str, value: object) -> dict[str, object]:
        return {
            "configuration": {"x": x, "mode": "fast"},
            "times": {"runtimes": [value] if invalidity == "correct" else []},
            "invalidity": invalidity,
            "measurements": [{"name": "time", "value": value, "unit": ""}],
            "objectives": ["time"],
        }

    rows = [row(8, "correct", 3.0), row(1, "runtime", "RuntimeFailedConfig"), row(4, "correctness", 1.0)]
    return json.dumps({"results": [*rows, row(2, "constraints", "")], "schema_version": "1.0.0"})


def test_t4_results_are_read(tmp_path: Path) -> None:
    recording = read_recording(written(tmp_path / "t4.json", t4_text()))
    assert recording.values == ((1, 2, 4, 8), ("fast",))
    assert recording.levels.tolist() == [[3, 0], [0, 0], [2, 0]]
    np.testing.assert_array_equal(recording.times_us, [3000, np.nan, np.nan])
    assert recording.outcomes == (Outcome.OK, Outcome.CRASH, Outcome.WRONG)


def t1_text(conditions: list[str]) -> str:
    parameters = [
        {"Name": "tile", "Type": "int", "Values": "[3, 2, 1]"},
        {"Name": "block_size_x", "Type": "int", "Values": [32, 64, 128]},
    ]
    return json.dumps(
        {
            "ConfigurationSpace": {
                "TuningParameters": parameters,
                "Conditions": [{"Expression": text, "Parameters": []} for text in conditions],
            },
            "KernelSpecification": {"KernelName": "copy", "LocalSize": {"X": "block_size_x", "Y": "2"}},
        }
    )


def test_t1_input_orders_levels(tmp_path: Path) -> None:
    t1 = read_t1(written(tmp_path / "t1.json", t1_text(["block_size_x * tile <= 512"])))
    assert t1.conditions == ("block_size_x * tile <= 512",)
    recording = read_recording(written(tmp_path / "copy.json", cache_text()), t1)
    assert recording.names == ("tile", "block_size_x")
    assert recording.levels.tolist() == [[2, 0], [0, 0], [2, 1], [1, 1]]
    assert recording.schedule(3) == {"tile": 2, "block_size_x": 64}


def test_t1_input_of_another_space_is_refused(tmp_path: Path) -> None:
    cache = written(tmp_path / "copy.json", cache_text())
    t1 = read_t1(written(tmp_path / "t1.json", t1_text(["block_size_x * tile <= 64"])))
    with pytest.raises(RecordingError, match=r"must keep 'block_size_x \* tile <= 64', got .*'tile': 3"):
        read_recording(cache, t1)
    with pytest.raises(RecordingError, match="these differ: stages, tile"):
        read_recording(cache, T1("copy", {"block_size_x": (32, 64), "stages": (1, 2)}))
    with pytest.raises(RecordingError, match=r"tile must be one of .* got 3"):
        read_recording(cache, T1("copy", {"block_size_x": (32, 64), "tile": (1, 2)}))


def test_other_files_are_refused_with_a_reason(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"must have `cache` .* got answer"):
        read_recording(written(tmp_path / "a.json", '{"answer": 42}'))
    with pytest.raises(RecordingError, match="is no JSON"):
        read_recording(written(tmp_path / "b.json", "block_size_x,time\n32,1.0\n"))
    with pytest.raises(RecordingError, match="must hold a JSON object, got list"):
        read_recording(written(tmp_path / "c.json", "[]"))
    with pytest.raises(RecordingError, match="is no T1 input"):
        read_t1(written(tmp_path / "d.json", cache_text()))


@pytest.mark.parametrize(
    "raw",
    [b"\xdb\x00\xff", b"\x1f\x8b" + bytes(30), gzip.compress(b"\xdb", mtime=0)],
    ids=["no text", "a broken gzip", "no text in a gzip"],
)
def test_files_of_other_bytes_are_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(raw)
    for read in (read_recording, read_t1):
        with pytest.raises(RecordingError, match=r"other\.json must be JSON text, gzip or not: "):
            read(path)


@pytest.mark.parametrize(
    "change",
    [
        {"cache": [1]},
        {"cache": {"32,1": 5}},
        {"cache": {"32,1": {"block_size_x": [32], "tile": 1, "time": 1.0}}},
        {"tune_params_keys": None},
        {"tune_params": {"tile": [1, 2]}},
        {"metadata": [1]},
    ],
)
def test_a_cache_of_another_form_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    text = json.dumps(json.loads(cache_text()) | change)
    with pytest.raises(RecordingError, match="has the head of a Kernel Tuner cache, but not its form: "):
        read_recording(written(tmp_path / "cache.json", text))


@pytest.mark.parametrize(
    "results", [{"a": 1}, [{}], [{"configuration": [1], "measurements": [], "objectives": [], "times": {}}]]
)
def test_t4_results_of_another_form_are_refused(tmp_path: Path, results: object) -> None:
    path = written(tmp_path / "t4.json", json.dumps({"results": results}))
    with pytest.raises(RecordingError, match="has the head of a T4 results file, but not its form: "):
        read_recording(path)


@pytest.mark.skipif(not REPLAY.is_dir(), reason=f"no recorded spaces at {REPLAY}; set REPLAY_SPACES")
class TestRealRecordings:
    """Against what the benchmark hub's own description of its files says."""

    def test_cache_and_t4_of_the_same_space_agree(self) -> None:
        t1 = read_t1(REPLAY / "convolution.t1.json")
        cache = read_recording(REPLAY / "convolution_A4000.json.gz", t1)
        t4 = read_recording(REPLAY / "convolution_A4000_T4.json.gz", t1)
        assert len(cache) == len(t4) == 4362
        ours, theirs = np.lexsort(cache.levels.T), np.lexsort(t4.levels.T)
        np.testing.assert_array_equal(cache.levels[ours], t4.levels[theirs])
        np.testing.assert_allclose(cache.times_us[ours], t4.times_us[theirs], rtol=1e-9)
        assert np.isnan(cache.times_us).sum() == 161

    @pytest.mark.parametrize(
        ("file", "schedules", "best_us"),
        [("convolution_A100", 4362, 553.6), ("gemm_RTX_3090", 17956, 5657.8)],
    )
    def test_sizes_and_optima(self, file: str, schedules: int, best_us: float) -> None:
        recording = read_recording(REPLAY / f"{file}.json.gz")
        assert len(recording) == schedules
        assert np.nanmin(recording.times_us) == pytest.approx(best_us, rel=1e-4)
