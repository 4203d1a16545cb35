"""The loop of a study: claims schedules, keeps a row of what became of each, tells Optuna.

One thread. Every finished trial is a durable row before anything else is done with it. How a schedule is
evaluated is for whoever inherits from `Loop`.
"""

import os
import socket
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from results.store import TrialStore
from results.trial import Measurement, Outcome, Trial, Verdict
from tuner import warm_start
from tuner.ledger import OWNER_ATTRIBUTE, Claim, Ledger, StudyError, counting
from tuner.locks import Presence
from tuner.pipeline import Built, Failure
from tuner.samplers import sampler_named
from tuner.samplers.base import SpaceExhaustedError, Subject, ValidSetSampler
from tuner.task import About, Request, versions_with
from tuner.warm_start import WarmStart

_LOOK_AROUND_S = 2.0  # how often trials of processes that are gone are looked for
TICK_S = 0.2
_FIRST_LOOK, _LOOK_EVERY = 20, 5  # trials after which it is asked how sure the sampler is: as calibrated


class Ending(StrEnum):
    """Why a run ended."""

    COMPLETE = "complete"
    EXHAUSTED = "exhausted"
    ASSURED = "assured"
    INTERRUPTED = "interrupted"


class Watch(Protocol):
    """What is told about a run while it goes on."""

    def begin(self, rows: list[Trial], bound_us: float) -> None:
        """Called once, with the rows that the study has already."""
        ...

    def finished(self, row: Trial) -> None:
        """A trial of this process has ended and is kept."""
        ...

    def tick(self, done: int) -> None:
        """Called several times a second with the study's number of trials that count, of all processes."""
        ...

    def notice(self, line: str) -> None:
        """Something that a person should know."""
        ...


@dataclass
class Flight:
    """A claimed trial on its way."""

    claim: Claim
    started_at: float
    built: Built | None = None
    waits_for: int | None = None
    settled: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def number(self) -> int:
        return self.claim.number

    @property
    def stage(self) -> str:
        return "being emitted and assembled" if self.built is None else "being proven"


class Loop(ABC):
    """One process's run of a study.

    Args:
        about: What the study is about.
        request: How it is to be run.
        watch: Is told what happens.
        look_ahead: Trials in flight, for a study that is new and a request that does not say.
    """

    def __init__(self, about: About, request: Request, watch: Watch, look_ahead: int) -> None:
        self._about = about
        self._request = request
        self._watch = watch
        self._name = request.study or about.key.name
        self._usual_look_ahead = look_ahead
        self._bound_us = 0.0 if about.bound is None else about.bound.time_us
        self._host = socket.gethostname()
        self._flights: dict[int, Flight] = {}
        self._rows: dict[int, Trial] = {}
        self._others: frozenset[str] = frozenset()
        self._exhausted = False
        self._assured = False
        self._looked_at = 0
        self._looked_around = float("-inf")
        self._versions = versions_with(request.assembler)

    @property
    def name(self) -> str:
        """The study's name."""
        return self._name

    @property
    def rows(self) -> list[Trial]:
        """Finished trials that this process knows, by number."""
        return [self._rows[number] for number in sorted(self._rows)]

    def run(self) -> Ending:
        """Run until the study has the wanted trials, the sampler is sure, nothing is left to try, or Ctrl-C.

        Raises:
            StudyError, StoreError: The study cannot be run, or its directory cannot be written.
            HaltedError: The machine cannot go on; what is finished is kept.
        """
        self._warm = self._found_warm_start()
        with ExitStack() as stack:
            self._store = stack.enter_context(TrialStore(self._request.out))
            try:
                self._open_study(stack)
            except OSError as error:
                place = error.filename or self._request.out
                raise StudyError(
                    f"cannot write {place}: {error.strerror or error}; name another directory"
                ) from None
            self._start(stack)
            self._watch.begin(self.rows, self._bound_us)
            try:
                return self._loop()
            except KeyboardInterrupt:
                return Ending.INTERRUPTED
            finally:
                self._give_up()
                self._read_others()

    @abstractmethod
    def _start(self, stack: ExitStack) -> None:
        """Get ready, the study's rows being known; what is pushed on the stack is called in the end."""

    @abstractmethod
    def _send(self, flight: Flight) -> None:
        """Send a claimed schedule on its way."""

    @abstractmethod
    def _advance(self) -> None:
        """Bring flights forward, and `_finish` those that are done; waits no longer than `TICK_S`."""

    def _open_study(self, stack: ExitStack) -> None:
        request = self._request
        presence = Presence(request.out)
        stack.callback(presence.close)
        look_ahead = request.look_ahead or self._usual_look_ahead
        attributes: dict[str, str | int] = {
            "seed": request.seed_for_new_study,
            "look_ahead": look_ahead,
            "times_are": self._about.times_are,
            **{f"weights_{name}": value for name, value in self._about.weights.items()},
        }
        key, space = self._about.key, self._about.space
        self._ledger = Ledger(request.out, self._name, key, space, presence, attributes, self._watch.notice)
        self._seed = self._ledger.attribute("seed") if request.seed is None else request.seed
        self._look_ahead = request.look_ahead or self._ledger.attribute("look_ahead")
        self._warm = self._kept_warm_start()
        subject = Subject(space, self._about.sizes, () if self._warm is None else self._warm.sources)
        self._sampler: ValidSetSampler = sampler_named(request.sampler, subject, self._seed, self._look_ahead)
        self._ledger.mend(self._read_rows)
        self._rows = {row.number: row for row in self._read_rows()}

    def _found_warm_start(self) -> WarmStart | None:
        """What the study began with, or would: sources are read before anything is written."""
        request, about = self._request, self._about
        began = warm_start.kept(request.out, self._name, about.space)
        if began is not None or not request.warm_start:
            return began
        if (request.out / "trials").is_dir():
            rows = TrialStore(request.out, read_only=True).trials(self._name)
            self._refuse_warming(any(row.key == about.key for row in rows))
        return warm_start.found(request.warm_start, about, request.out, self._name)

    def _kept_warm_start(self) -> WarmStart | None:
        """The same once it is kept; of several processes that begin a study, what the first one found."""
        out, space, start = self._request.out, self._about.space, self._warm
        began = warm_start.kept(out, self._name, space)
        if began is not None:
            if self._request.warm_start:
                self._watch.notice(
                    f"goes on with what it began with: {began.text or 'nothing from elsewhere'}"
                )
            return began
        if start is None:
            return None
        self._refuse_warming(bool(self._ledger.trials()))
        if start.left_out:
            self._watch.notice(f"not learned from: {'; '.join(start.left_out)}")
        if not start.sources:
            self._watch.notice("no other study has results to learn from; this one starts cold")
        return warm_start.keep(out, self._name, space, start)

    def _refuse_warming(self, has_begun: bool) -> None:
        if has_begun:
            raise StudyError(
                f"study {self._name!r} began without a warm start and goes on as it began; leave "
                "--warm-start out, or give another --study"
            )

    @property
    def learned_from(self) -> str:
        """The other studies that this one began with, for a person; empty where there are none."""
        return "" if self._warm is None else self._warm.text

    def _read_rows(self) -> list[Trial]:
        """Finished rows of the study; trials that took their process down on a device are finished first."""
        for row in self._store.adopt_unfinished(self._name):
            self._watch.notice(f"trial {row.number} took the process down that ran it: {row.message}")
        rows = self._store.trials(self._name)
        foreign = next((row for row in rows if row.key != self._about.key), None)
        if foreign is not None:
            raise StudyError(
                f"study {self._name!r} has rows of {foreign.key.name}, not of {self._about.key.name}; "
                "give another --study"
            )
        return [row for row in rows if row.outcome is not Outcome.STARTED]

    def _loop(self) -> Ending:
        while True:
            self._assured = self._assured or self._is_assured()
            self._claim_more()
            trials = self._ledger.trials()
            done = counting(trials)
            self._watch.tick(done)
            if self._flights:
                self._advance()
                continue
            if self._assured:
                return Ending.ASSURED
            if done >= self._request.trials:
                return Ending.COMPLETE
            if self._exhausted and all(trial.state.is_finished() for trial in trials):
                return Ending.EXHAUSTED
            time.sleep(TICK_S)  # what is missing is in flight in another process

    def _claim_more(self) -> None:
        if time.monotonic() - self._looked_around > _LOOK_AROUND_S:
            self._looked_around = time.monotonic()
            self._others = self._ledger.other_runs()
            if self._ledger.orphans():
                room = self._look_ahead - len(self._flights)
                for claim in self._ledger.take_over(self._read_rows, self._sampler, room):
                    self._launch(claim)
        while not (self._exhausted or self._assured) and self._may_claim():
            try:
                new = self._ledger.claim(self._sampler, self._request.trials, self._about.baseline)
            except SpaceExhaustedError as error:
                self._exhausted = True
                self._watch.notice(str(error))
                return
            if new is None:
                return
            self._launch(new)

    def _is_assured(self) -> bool:
        """Whether the sampler is as sure of the best as was asked for.

        It is asked about trials 0..n-1 for every fifth n, all of them finished: so it does not matter which
        of those in flight ends first.
        """
        until = self._request.until
        if until is None:
            return False
        trials = self._ledger.trials()
        ended = next((t.number for t in trials if not t.state.is_finished()), len(trials))
        count = ended // _LOOK_EVERY * _LOOK_EVERY
        if count < _FIRST_LOOK or count <= self._looked_at:
            return False
        self._looked_at = count
        sure = self._sampler.assurance(trials[:count])
        if sure < until:
            return False
        self._watch.notice(f"after {count} trials the best is within 1 % of the optimum, {sure:.3f} sure")
        return True

    def _may_claim(self) -> bool:
        """Whether the next trial may be asked for: the one `look_ahead` before it has ended.

        Trials of other processes that run now do not count, or they would hold each other up.
        """
        if not self._flights:
            return True
        trials = self._ledger.trials()
        oldest = min(self._flights)
        foreign = sum(trial.user_attrs.get(OWNER_ATTRIBUTE) in self._others for trial in trials[oldest:])
        return len(trials) - oldest - foreign < self._look_ahead

    def _launch(self, claim: Claim) -> None:
        flight = Flight(claim, time.time())
        self._flights[claim.number] = flight
        self._send(flight)

    def _finish(
        self,
        flight: Flight,
        verdict: Verdict | None = None,
        measurement: Measurement | None = None,
        failure: Failure | None = None,
    ) -> Trial:
        """Keep a row of what became of a flight, which is over."""
        outcome = Outcome.OK if failure is None else failure.outcome
        message = "" if failure is None else failure.message
        row = self._row(flight, outcome, verdict, measurement, message)
        self._keep(row)
        return row

    def _copy(
        self,
        flight: Flight,
        twin: int,
        outcome: Outcome,
        message: str,
        verdict: Verdict | None,
        measurement: Measurement | None,
    ) -> None:
        """Finish a trial that has the code and plan of an earlier one, its twin, whose result it is told."""
        if outcome.has_time:
            outcome, message = Outcome.DUPLICATE, ""
        else:
            message = f"same code and plan as trial {twin}: {message}"
        self._keep(replace(self._row(flight, outcome, verdict, measurement, message), duplicate_of=twin))

    def _keep(self, row: Trial) -> None:
        row = replace(row, finished_at=time.time())
        self._store.append(row)
        self._rows[row.number] = row
        del self._flights[row.number]
        self._ledger.tell(row)
        self._watch.finished(row)

    def _row(
        self,
        flight: Flight,
        outcome: Outcome,
        verdict: Verdict | None = None,
        measurement: Measurement | None = None,
        message: str = "",
    ) -> Trial:
        candidate = None if flight.built is None else flight.built.candidate
        return Trial(
            study=self._name,
            number=flight.number,
            key=self._about.key,
            schedule=flight.claim.schedule,
            outcome=outcome,
            message=message,
            sizes=self._about.sizes,
            weights=self._about.weights,
            source_hash=None if flight.built is None else flight.built.source_hash,
            code_hash=None if candidate is None else candidate.binary.code_hash,
            resources=None if candidate is None else candidate.resources,
            verdict=verdict,
            measurement=measurement,
            bound_us=self._bound_us or None,
            seconds=flight.seconds,
            versions=self._versions,
            sampler=self._request.sampler,
            seed=self._seed,
            host=self._host,
            process=os.getpid(),
            started_at=flight.started_at,
        )

    def _read_others(self) -> None:
        """The rows of other processes that took part, for whoever asks for `rows` in the end."""
        if any(trial.number not in self._rows for trial in self._ledger.trials()):
            self._rows = {row.number: row for row in self._read_rows()}

    @abstractmethod
    def _give_up(self) -> None:
        """Called when the run ends, however it does."""
