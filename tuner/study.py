"""The tuning loop: claims schedules, sends each on its way, keeps a row of what became of it, tells Optuna.

One thread. Processes of a pool emit, assemble and simulate; the device has a line of its own where it cannot
be shared. Every finished trial is a durable row before anything else is done with it.
"""

import os
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from optuna.trial import TrialState

from emitters.kernel import EmittedKernel
from results.store import TrialStore
from results.trial import Measurement, Outcome, Trial, Verdict
from tuner.ledger import OWNER_ATTRIBUTE, Claim, Ledger, StudyError, counting
from tuner.line import DeviceLine
from tuner.locks import Presence
from tuner.pipeline import BuildJob, Built, Failure, Halted, HaltedError, ProveJob, Proven, perform
from tuner.pool import Died, Done, Late, Pool, Report
from tuner.samplers import sampler_named
from tuner.samplers.base import SpaceExhaustedError, Subject, ValidSetSampler
from tuner.task import NO_ENERGY, Request, Task, look_ahead_for, versions_with
from tuner.twins import Twins

_PRELOAD = ("tuner.cli", "tuner.pipeline")
_LOOK_AROUND_S = 2.0  # how often trials of processes that are gone are looked for
_TICK_S = 0.2


class Ending(StrEnum):
    """Why a run ended."""

    COMPLETE = "complete"
    EXHAUSTED = "exhausted"
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
class _Flight:
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


class Tuning:
    """One process's run of a study.

    Args:
        task: What the study is about.
        request: How it is to be run.
        watch: Is told what happens.
    """

    def __init__(self, task: Task, request: Request, watch: Watch) -> None:
        self._task = task
        self._request = request
        self._watch = watch
        self._name = request.study or task.key.name
        self._bound_us = task.device.bound_us(task.kernel, task.problem)
        self._host = socket.gethostname()
        self._flights: dict[int, _Flight] = {}
        self._rows: dict[int, Trial] = {}
        self._others: frozenset[str] = frozenset()
        self._exhausted = False
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
        """Run until the study has the wanted number of trials, or nothing is left to try, or Ctrl-C.

        Raises:
            StudyError, StoreError: The study cannot be run.
            HaltedError: The machine cannot go on; what is finished is kept.
        """
        with ExitStack() as stack:
            self._store = stack.enter_context(TrialStore(self._request.out))
            self._open_study(stack)
            self._pool = Pool(perform, self._request.workers, _PRELOAD)
            stack.callback(self._pool.close)
            self._line: DeviceLine | None = None
            if not self._task.device.parallel:
                self._line = DeviceLine(self._task.device, self._task.problem, self._seed, self._mark)
                stack.callback(self._line.close)
            self._watch.begin(self.rows, self._bound_us)
            try:
                return self._loop()
            except KeyboardInterrupt:
                return Ending.INTERRUPTED
            finally:
                self._give_up()
                self._read_others()

    def _open_study(self, stack: ExitStack) -> None:
        request = self._request
        presence = Presence(request.out)
        stack.callback(presence.close)
        look_ahead = request.look_ahead or look_ahead_for(request.workers)
        attributes: dict[str, str | int] = {
            "seed": request.seed_for_new_study,
            "look_ahead": look_ahead,
            "times_are": self._task.device.source.word,
        }
        key, space = self._task.key, self._task.space
        self._ledger = Ledger(request.out, self._name, key, space, presence, attributes, self._watch.notice)
        self._seed = self._ledger.attribute("seed") if request.seed is None else request.seed
        self._look_ahead = request.look_ahead or self._ledger.attribute("look_ahead")
        subject = Subject(space, self._task.problem.sizes)
        self._sampler: ValidSetSampler = sampler_named(request.sampler, subject, self._seed, self._look_ahead)
        self._ledger.mend(self._read_rows)
        self._rows = {row.number: row for row in self._read_rows()}
        self._twins = Twins(self._rows.values(), self._emit)

    def _read_rows(self) -> list[Trial]:
        """Finished rows of the study; trials that took their process down on a device are finished first."""
        for row in self._store.adopt_unfinished(self._name):
            self._watch.notice(f"trial {row.number} took the process down that ran it: {row.message}")
        rows = self._store.trials(self._name)
        foreign = next((row for row in rows if row.key != self._task.key), None)
        if foreign is not None:
            raise StudyError(
                f"study {self._name!r} has rows of {foreign.key.name}, not of {self._task.key.name}; "
                "give another --study"
            )
        return [row for row in rows if row.outcome is not Outcome.STARTED]

    def _emit(self, row: Trial) -> EmittedKernel:
        kernel = self._task.kernel
        return kernel.emit(kernel.schedule(row.schedule), self._task.device.target)

    def _loop(self) -> Ending:
        while True:
            self._claim_more()
            trials = self._ledger.trials()
            done = counting(trials)
            self._watch.tick(done)
            if not self._flights:
                if done >= self._request.trials:
                    return Ending.COMPLETE
                if self._exhausted and all(trial.state.is_finished() for trial in trials):
                    return Ending.EXHAUSTED
                time.sleep(_TICK_S)  # what is missing is in flight in another process
                continue
            bells = () if self._line is None else (self._line.bell,)
            for report in self._pool.wait(_TICK_S, bells):
                self._receive(report)
            for timed in [] if self._line is None else self._line.collect():
                self._proven(self._flights[timed.number], timed.result, last=True)
            self._settle()

    def _claim_more(self) -> None:
        if time.monotonic() - self._looked_around > _LOOK_AROUND_S:
            self._looked_around = time.monotonic()
            self._others = self._ledger.other_runs()
            if self._ledger.orphans():
                room = self._look_ahead - len(self._flights)
                for claim in self._ledger.take_over(self._read_rows, self._sampler, room):
                    self._launch(claim)
        while not self._exhausted and self._may_claim():
            try:
                new = self._ledger.claim(self._sampler, self._request.trials, self._task.baseline)
            except SpaceExhaustedError as error:
                self._exhausted = True
                self._watch.notice(str(error))
                return
            if new is None:
                return
            self._launch(new)

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
        self._flights[claim.number] = _Flight(claim, time.time())
        task = self._task
        sizes = tuple(task.problem.sizes.values())
        job = BuildJob(task.kernel.id, claim.schedule, task.device.target, sizes, self._request.assembler)
        self._pool.submit(claim.number, job, self._request.limit_s)

    def _receive(self, report: Report) -> None:
        flight = self._flights[report.tag]
        match report:
            case Done(result=Halted(message)):
                raise HaltedError(message)
            case Done(result=Built() as built):
                flight.built = built
                flight.seconds |= built.seconds
                if built.failure is not None:
                    self._finish(flight, failure=built.failure)
            case Done(result=Proven() as proven):
                self._proven(flight, proven, last=self._line is None)
            case Late(limit_s=limit_s):
                message = f"a candidate may take {limit_s:g} s, and this one took longer while {flight.stage}"
                failure = Failure(Outcome.TIMEOUT, f"{message}; allow more with --timeout")
                self._finish(flight, failure=failure)
            case Died(reason=reason):
                failure = Failure(
                    Outcome.CRASH, f"the worker ended while the candidate was {flight.stage}: {reason}"
                )
                self._finish(flight, failure=failure)

    def _settle(self) -> None:
        """Send built candidates on, lowest number first: which of two twins is first must not be chance."""
        for number in sorted(self._flights):
            flight = self._flights[number]
            if flight.built is None:
                return  # it may be the twin of those after it
            candidate = flight.built.candidate
            if flight.settled or candidate is None:
                continue
            flight.settled = True
            first = self._twins.first(number, candidate.binary.code_hash, candidate.emitted)
            if first is None:
                where = self._task.device.name if self._line is None else None
                sizes = tuple(self._task.problem.sizes.values())
                self._pool.submit(
                    number, ProveJob(candidate, sizes, self._seed, where), self._request.limit_s
                )
            elif first in self._rows:
                self._copy(flight, self._rows[first])
            else:
                flight.waits_for = first

    def _proven(self, flight: _Flight, proven: Proven | Halted, last: bool) -> None:
        if isinstance(proven, Halted):
            raise HaltedError(proven.message)
        flight.seconds |= proven.seconds
        if proven.failure is None and not last:
            assert self._line is not None
            assert flight.built is not None
            assert flight.built.candidate is not None
            self._line.submit(flight.number, flight.built.candidate, self._best_us())
            return
        measured = proven.measurement
        if self._task.key.objective == "energy" and measured is not None and measured.energy_j is None:
            raise HaltedError(NO_ENERGY)
        self._finish(flight, proven.verdict, measured, proven.failure)

    def _best_us(self) -> float | None:
        if self._task.key.objective != "time":
            return None  # the slower of two may take less energy
        done = (trial for trial in self._ledger.trials() if trial.state is TrialState.COMPLETE)
        return min((trial.values[0] for trial in done), default=None)

    def _mark(self, number: int) -> None:
        """Note that the device is about to be touched: what takes everything down is not tried again."""
        self._store.append(self._row(self._flights[number], Outcome.STARTED))

    def _copy(self, flight: _Flight, original: Trial) -> None:
        """Finish a trial that has the code and plan of an earlier one, whose result it is told."""
        failed = not original.outcome.has_time
        why = f"same code and plan as trial {original.number}: {original.message}" if failed else ""
        outcome = original.outcome if failed else Outcome.DUPLICATE
        row = replace(
            self._row(flight, outcome, original.verdict, original.measurement, why),
            duplicate_of=original.number,
        )
        self._keep(row)

    def _finish(
        self,
        flight: _Flight,
        verdict: Verdict | None = None,
        measurement: Measurement | None = None,
        failure: Failure | None = None,
    ) -> None:
        outcome = Outcome.OK if failure is None else failure.outcome
        message = "" if failure is None else failure.message
        row = self._row(flight, outcome, verdict, measurement, message)
        self._keep(row)
        for other in [f for f in self._flights.values() if f.waits_for == row.number]:
            self._copy(other, row)

    def _keep(self, row: Trial) -> None:
        row = replace(row, finished_at=time.time())
        self._store.append(row)
        self._rows[row.number] = row
        del self._flights[row.number]
        self._ledger.tell(row)
        self._watch.finished(row)

    def _row(
        self,
        flight: _Flight,
        outcome: Outcome,
        verdict: Verdict | None = None,
        measurement: Measurement | None = None,
        message: str = "",
    ) -> Trial:
        candidate = None if flight.built is None else flight.built.candidate
        return Trial(
            study=self._name,
            number=flight.number,
            key=self._task.key,
            schedule=flight.claim.schedule,
            outcome=outcome,
            message=message,
            sizes=self._task.problem.sizes,
            source_hash=None if flight.built is None else flight.built.source_hash,
            code_hash=None if candidate is None else candidate.binary.code_hash,
            resources=None if candidate is None else candidate.resources,
            verdict=verdict,
            measurement=measurement,
            bound_us=self._bound_us,
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

    def _give_up(self) -> None:
        """Take back the marks of candidates that were at the device when the run was stopped on purpose."""
        if self._line is not None:
            self._line.close()
        for number in self._flights:
            self._store.withdraw(self._name, number)
