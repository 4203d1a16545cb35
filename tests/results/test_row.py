"""Trials as rows and back: nothing is lost, and what has no place is refused by name."""

import json
from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_trials import KEY, ended, failed, started

from results.errors import StoreError
from results.row import row_of, trial_of
from results.schema import COLUMNS, FAMILIES, Kind
from results.tables import rows_of, table_of, union
from results.trial import Measurement, Outcome, Resources, Source, StudyKey, Trial, Verdict

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
counts = st.integers(0, 2**40)
floats = st.floats(allow_nan=False, width=64)
times = st.floats(1e-3, 1e9)
names = st.text("abcdefghijklmnopqrstuvwxyz_0123456789", min_size=1, max_size=6)
moments = st.integers(0, 4_000_000_000_000_000).map(lambda micros: micros / 1e6)
values = st.one_of(st.integers(-(2**63), 2**63 - 1), texts, st.booleans())


def named(value: st.SearchStrategy[object]) -> st.SearchStrategy[dict[str, object]]:
    return st.dictionaries(names, value, max_size=4)


measurements = st.builds(
    Measurement,
    time_us=times,
    source=st.sampled_from(Source),
    times_us=st.lists(times, max_size=5).map(tuple),
    policy=texts,
    other_us=named(floats),
    bound_us=st.none() | floats,
    breakdown_us=named(floats),
    clock_mhz=st.none() | floats,
    memory_clock_mhz=st.none() | floats,
    temperature_c=st.none() | floats,
    driver=st.none() | texts,
    energy_j=st.none() | floats,
    details=named(floats | texts),
)
verdicts = st.builds(
    Verdict,
    mismatches=counts,
    problems=st.lists(texts, max_size=3).map(tuple),
    first_bad=texts,
    fault=st.none() | texts,
    fault_message=texts,
    where=texts,
)
trials = st.builds(
    Trial,
    study=texts,
    number=counts,
    key=st.builds(StudyKey, *[texts] * 8),
    schedule=named(values),
    outcome=st.sampled_from(Outcome),
    message=texts,
    sizes=named(counts),
    source_hash=st.none() | texts,
    code_hash=st.none() | texts,
    duplicate_of=st.none() | counts,
    resources=st.none() | st.builds(Resources, counts, counts, counts, counts),
    verdict=st.none() | verdicts,
    measurement=st.none() | measurements,
    bound_us=st.none() | floats,
    seconds=named(floats),
    versions=named(texts),
    sampler=texts,
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    host=texts,
    process=counts,
    started_at=moments,
    finished_at=st.none() | moments,
)


@given(trials)
def test_trial_survives_the_row_log(trial: Trial) -> None:
    assert trial_of(json.loads(json.dumps(row_of(trial, recorded_at=1)))) == trial


@given(st.lists(trials, min_size=1, max_size=4))
def test_trials_survive_parquet_types(some: list[Trial]) -> None:
    rows = [row_of(trial, recorded_at=1) for trial in some]
    table = table_of(rows, union([], rows))
    assert [trial_of(row) for row in rows_of(table)] == some
    # The same kinds of values keep their Python types: 1, 1.0 and True are equal and not the same.
    for trial, row in zip(some, rows_of(table), strict=True):
        read = trial_of(row).schedule
        assert [type(read[name]) for name in trial.schedule] == [type(v) for v in trial.schedule.values()]


def test_every_attribute_of_a_trial_has_one_column() -> None:
    parts = {"key": StudyKey, "resources": Resources, "verdict": Verdict, "measurement": Measurement}
    wanted = {f"{part}.{field.name}" for part, owner in parts.items() for field in fields(owner)}
    wanted |= {field.name for field in fields(Trial)} - parts.keys()
    paths = [column.path for column in (*COLUMNS, *FAMILIES) if column.path]
    assert sorted(paths) == sorted(wanted)


def test_what_a_trial_did_not_come_to_has_no_cells() -> None:
    row = row_of(failed(3), recorded_at=1)
    assert not {"time_us", "times_us", "source", "registers", "verdict.mismatches", "code_hash"} & row.keys()
    assert row["outcome"] == "assemble"
    assert row["message"] == "ptxas gave up: too many registers, raise warps_m"


def test_times_are_kept_to_the_microsecond() -> None:
    row = row_of(ended(0, started_at=1_760_000_000.123456789), recorded_at=1)
    assert row["started_at"] == 1_760_000_000_123_457


def test_output_of_a_foreign_program_is_kept_readable() -> None:
    """A byte that is no UTF-8 comes as a lone surrogate, which no parquet file can hold."""
    trial = failed(0, message=b"bad \xff byte".decode("utf-8", "surrogateescape"))
    assert row_of(trial, recorded_at=1)["message"] == "bad \\udcff byte"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 2**63}, r"seed must be of type int64, got 9223372036854775808"),
        ({"number": 1.5}, r"number must be of type int64, got 1.5"),
        ({"schedule": {"tile_m": 2**70}}, r"schedule.tile_m must be of type int64"),
        ({"schedule": {"tile_m": 0.5}}, r"schedule.tile_m must be of type int64 or string or bool, got 0.5"),
        ({"schedule": {"tile m": 1}}, r"a name in schedule must have no colon and no space, got 'tile m'"),
        ({"schedule": {"a:int64": 1}}, r"a name in schedule must have no colon and no space"),
        ({"sizes": {"m": "many"}}, r"size.m must be of type int64, got 'many'"),
        ({"message": None, "host": 7}, r"host must be of type string, got 7"),
        ({"started_at": 1e300}, r"started_at must be of type timestamp"),
        ({"versions": {"ptxas": None}}, r"version.ptxas must be of type string, got None"),
    ],
)
def test_value_without_a_place_is_refused_by_name(changes: dict[str, object], message: str) -> None:
    with pytest.raises(StoreError, match=message):
        row_of(replace(ended(0), **changes), recorded_at=1)


def test_numpy_numbers_become_plain_ones() -> None:
    np = pytest.importorskip("numpy")
    trial = ended(0, schedule={"tile_m": np.int16(64)}, seconds={"emit": np.float32(0.5)})
    row = json.loads(json.dumps(row_of(trial, recorded_at=1)))
    assert (row["schedule.tile_m"], row["seconds.emit"]) == (64, 0.5)


def test_a_family_that_has_no_strings_refuses_them() -> None:
    trial = ended(0, measurement=replace(ended(0).measurement, breakdown_us={"dram": "much"}))
    with pytest.raises(StoreError, match=r"breakdown_us.dram must be of type double, got 'much'"):
        row_of(trial, recorded_at=1)


def test_column_kinds_are_those_of_the_trial() -> None:
    """A mark is the leanest row; it has every cell that pandas needs to tell trials apart."""
    row = row_of(started(5), recorded_at=9)
    assert (row["study"], row["number"], row["outcome"], row["recorded_at"]) == (KEY.name, 5, "started", 9)
    assert {column.name for column in COLUMNS if column.kind is Kind.TIME} == {
        "started_at",
        "finished_at",
        "recorded_at",
    }
