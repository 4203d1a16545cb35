"""What a final says of its finalists."""

from tuner.finals import Final


def test_a_winner_is_named_with_every_time() -> None:
    final = Final((12, 3, 7), (101.25, 103.0, 104.5), (12,), 12)
    assert not final.is_tie
    assert final.time_us == 101.25
    assert str(final) == (
        "trial 12 is the fastest in interleaved rounds (12: 101.25 us, 3: 103.00 us, 7: 104.50 us)"
    )


def test_a_tie_is_said_to_be_one() -> None:
    final = Final((12, 3), (101.25, 101.3), (12, 3), 3)
    assert final.is_tie
    assert final.time_us == 101.3
    assert str(final).startswith("trials 12, 3 are tied in interleaved rounds; 3, the simplest, is taken")
    assert final.to_json() == {
        "numbers": [12, 3],
        "medians_us": [101.25, 101.3],
        "tied": [12, 3],
        "chosen": 3,
    }
