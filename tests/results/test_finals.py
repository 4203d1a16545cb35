"""What a final says of its finalists, and how it is kept."""

from pathlib import Path

import pytest

from results.errors import StoreError, StoreWarning
from results.finals import NAME, Final, finals_in, keep_final

WON = Final((12, 3, 7), (101.25, 103.0, 104.5), (12,), 12)
TIED = Final((12, 3), (101.25, 101.3), (12, 3), 3)


def test_a_winner_is_named_with_every_time() -> None:
    assert not WON.is_tie
    assert WON.time_us == 101.25
    assert str(WON) == (
        "trial 12 is the fastest in interleaved rounds (12: 101.25 us, 3: 103.00 us, 7: 104.50 us)"
    )


def test_a_tie_is_said_to_be_one() -> None:
    assert TIED.is_tie
    assert TIED.time_us == 101.3
    assert str(TIED).startswith("trials 12, 3 are tied in interleaved rounds; 3, the simplest, is taken")
    assert TIED.to_json() == {
        "numbers": [12, 3],
        "medians_us": [101.25, 101.3],
        "tied": [12, 3],
        "chosen": 3,
    }


def test_one_that_chooses_who_was_beaten_is_impossible() -> None:
    with pytest.raises(ValueError, match="choose one of the tied"):
        Final((12, 3), (101.25, 103.0), (12,), 3)


def test_of_each_study_the_latest_counts(tmp_path: Path) -> None:
    assert finals_in(tmp_path) == {}
    for study, final in (("a", TIED), ("b/c", TIED), ("a", WON)):
        keep_final(tmp_path, study, final)
    assert finals_in(tmp_path) == {"a": WON, "b/c": TIED}


def test_a_line_cut_short_spoils_no_other(tmp_path: Path) -> None:
    keep_final(tmp_path, "a", WON)
    with (tmp_path / NAME).open("a") as file:
        file.write('{"study": "b", "numb')
    keep_final(tmp_path, "c", TIED)
    with pytest.warns(StoreWarning, match=r"finals\.jsonl, line 2 is no final \(.*\); it is left out"):
        assert finals_in(tmp_path) == {"a": WON, "c": TIED}


def test_what_cannot_be_kept_is_said(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"cannot write .*finals\.jsonl: .*name another --out"):
        keep_final(tmp_path / "nowhere", "a", WON)
