"""Claims and repairs in Optuna's storage, one process at a time; `test_kill.py` has several."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fake_device import FakeDevice
from optuna.trial import TrialState
from toy_study import few, task_on

from results.trial import Measurement, Outcome, Source, Trial
from tuner.ledger import Claim, Ledger, StudyError, counting
from tuner.locks import Presence
from tuner.samplers import sampler_named
from tuner.samplers.base import SpaceExhaustedError, Subject

SPACE = few  # made when the toy kernels are there


class Party:
    """A process that takes part in a study, as far as the ledger can tell."""

    def __init__(self, out: Path) -> None:
        self.task = task_on(FakeDevice(), space=SPACE())
        self.presence = Presence(out)
        self.notices: list[str] = []
        self.ledger = Ledger(
            out,
            "s",
            self.task.key,
            self.task.space,
            self.presence,
            {"seed": 1, "look_ahead": 4},
            self.notices.append,
        )
        self.sampler = sampler_named("random", Subject(self.task.space), 1, 4)

    def claim(self, total: int = 100, first: int | None = None) -> Claim:
        claim = self.ledger.claim(self.sampler, total, first)
        assert claim is not None
        return claim

    def row(self, claim: Claim, outcome: Outcome = Outcome.OK, time_us: float = 10.0) -> Trial:
        measurement = Measurement(time_us, Source.MODEL, (time_us,), "fake") if outcome.has_time else None
        return Trial(
            "s", claim.number, self.task.key, claim.schedule, outcome, measurement=measurement, started_at=1.0
        )

    def die(self) -> None:
        """As the kernel does it: the lock is dropped, nothing is tidied up."""
        self.presence.close()


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Party]:
    found = Party(tmp_path)
    yield found
    found.presence.close()


def test_claims_of_two_parties_never_meet(tmp_path: Path, party: Party) -> None:
    """All 12 schedules are claimed, each by one of them; then none is left."""
    other = Party(tmp_path)
    claims = [(party if turn % 2 else other).claim() for turn in range(12)]
    assert [claim.number for claim in claims] == list(range(12))
    assert len({tuple(claim.schedule.items()) for claim in claims}) == 12
    with pytest.raises(SpaceExhaustedError):
        party.claim()
    other.die()


def test_no_more_is_claimed_than_the_total(tmp_path: Path, party: Party) -> None:
    """In flight counts, failed counts, a duplicate does not."""
    claims = [party.claim(total=3) for _ in range(3)]
    assert party.ledger.claim(party.sampler, 3, None) is None
    party.ledger.tell(party.row(claims[0], Outcome.DUPLICATE))
    claims.append(party.claim(total=3))
    party.ledger.tell(party.row(claims[1], Outcome.WRONG))
    assert party.ledger.claim(party.sampler, 3, None) is None
    assert counting(party.ledger.trials()) == 1


def test_the_first_schedule_is_the_one_that_is_given(party: Party) -> None:
    assert party.claim(first=7).schedule == party.task.space.values(7)
    assert party.claim(first=7).schedule != party.task.space.values(7)


def test_what_a_dead_party_had_is_taken_over_as_it_was(tmp_path: Path, party: Party) -> None:
    other = Party(tmp_path)
    theirs = [other.claim() for _ in range(3)]
    assert party.ledger.take_over(list, party.sampler, 10) == []
    assert party.ledger.orphans() == []
    other.die()
    finished = other.row(theirs[1], time_us=3.0)
    assert party.ledger.take_over(lambda: [finished], party.sampler, 10) == [theirs[0], theirs[2]]
    assert party.ledger.take_over(list, party.sampler, 10) == []
    states = [trial.state for trial in party.ledger.trials()]
    assert states == [TrialState.RUNNING, TrialState.COMPLETE, TrialState.RUNNING]
    assert party.ledger.trials()[1].value == 3.0


def test_no_more_is_taken_over_than_there_is_room_for(tmp_path: Path, party: Party) -> None:
    other = Party(tmp_path)
    theirs = [other.claim() for _ in range(3)]
    other.die()
    assert party.ledger.take_over(list, party.sampler, 2) == theirs[:2]
    assert party.ledger.take_over(list, party.sampler, 2) == theirs[2:]


def test_a_row_that_was_never_told_is_told_when_the_study_is_opened(tmp_path: Path) -> None:
    first = Party(tmp_path)
    claims = [first.claim() for _ in range(2)]
    first.die()
    second = Party(tmp_path)
    second.ledger.mend(lambda: [first.row(claims[0]), first.row(claims[1], Outcome.FAULT)])
    assert [trial.state for trial in second.ledger.trials()] == [TrialState.COMPLETE, TrialState.PRUNED]
    assert second.notices == []
    second.die()


def test_rows_of_a_lost_journal_come_back_with_a_gap_where_one_was_in_flight(tmp_path: Path) -> None:
    """The schedule of the gap is proposed again: the same one, for it depends on seed and number."""
    first = Party(tmp_path)
    claims = [first.claim() for _ in range(4)]
    rows = [first.row(claim) for claim in claims if claim.number != 2]
    first.die()
    (tmp_path / "study.log").unlink()
    second = Party(tmp_path)
    second.ledger.mend(lambda: rows)
    assert second.notices == [
        f"{tmp_path / 'study.log'} was not what the rows say; study rebuilt from 3 rows"
    ]
    assert second.ledger.take_over(lambda: rows, second.sampler, 10) == [claims[2]]
    assert second.claim().number == 4
    second.die()


@pytest.mark.parametrize("change", ["another value", "another state", "another schedule", "row lost"])
def test_a_journal_that_says_otherwise_is_rebuilt(tmp_path: Path, change: str) -> None:
    first = Party(tmp_path)
    claims = [first.claim() for _ in range(3)]
    rows = [first.row(claim) for claim in claims]
    for row in rows:
        first.ledger.tell(row)
    first.die()
    match change:
        case "another value":
            rows[1] = first.row(claims[1], time_us=99.0)
        case "another state":
            rows[1] = first.row(claims[1], Outcome.WRONG)
        case "another schedule":
            free = next(
                v for v in map(first.task.space.values, range(12)) if v not in [c.schedule for c in claims]
            )
            rows[1] = replace(rows[1], schedule=free)
        case "row lost":
            del rows[2]
    second = Party(tmp_path)
    second.ledger.mend(lambda: rows)
    assert len(second.notices) == 1
    trials = second.ledger.trials()
    assert [trial.params for trial in trials] == [row.schedule for row in rows]
    assert [trial.value for trial in trials] == [row.measurement and row.measurement.time_us for row in rows]
    assert second.ledger.attribute("seed") == 1
    second.die()


def test_a_journal_in_use_is_not_rebuilt(tmp_path: Path, party: Party) -> None:
    party.ledger.tell(party.row(party.claim()))
    second = Party(tmp_path)
    with pytest.raises(
        StudyError, match=r"is not what the rows say, and another run is using it .*; wait for it or stop it"
    ):
        second.ledger.mend(list)
    second.die()


def test_an_unreadable_journal_in_use_is_left_alone(tmp_path: Path, party: Party) -> None:
    (tmp_path / "study.log").write_text("{not json}\n{}\n")
    with pytest.raises(StudyError, match=r"study\.log cannot be read .*another run is using it"):
        Party(tmp_path)
    assert (tmp_path / "study.log").read_text().startswith("{not json}")


@pytest.mark.parametrize("content", ["not json\n", "{not json}\n{}\n"])
def test_an_unreadable_journal_is_set_aside(tmp_path: Path, content: str) -> None:
    """Optuna by itself forgives a last line that is no JSON, and fails at the first trial after it."""
    (tmp_path / "study.log").write_text(content)
    party = Party(tmp_path)
    party.ledger.tell(party.row(party.claim()))
    assert len(party.ledger.trials()) == 1
    (aside,) = tmp_path.glob("study.log.unreadable-*")
    assert aside.read_text() == content
    (notice,) = party.notices
    assert notice.endswith(f"kept as {aside.name}, rebuilt from the rows")
    party.die()
