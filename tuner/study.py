"""The tuning of a kernel: each schedule is emitted, assembled, proven and timed.

Processes of a pool emit, assemble and simulate; the device has a line of its own where it cannot be shared.
"""

from contextlib import ExitStack

from optuna.trial import TrialState

from emitters.kernel import EmittedKernel
from results.trial import Measurement, Outcome, Trial, Verdict
from tuner.line import DeviceLine
from tuner.loop import TICK_S, Ending, Flight, Loop, Watch
from tuner.pipeline import BuildJob, Built, Failure, Halted, HaltedError, ProveJob, Proven, perform
from tuner.pool import Died, Done, Late, Pool, Report
from tuner.task import NO_ENERGY, Request, Task, look_ahead_for
from tuner.twins import Twins

__all__ = ["Ending", "Tuning", "Watch"]

_PRELOAD = ("tuner.cli", "tuner.pipeline")


class Tuning(Loop):
    """One process's tuning of a kernel.

    Args:
        task: What the study is about.
        request: How it is to be run.
        watch: Is told what happens.
    """

    def __init__(self, task: Task, request: Request, watch: Watch) -> None:
        super().__init__(task, request, watch, look_ahead_for(request.workers))
        self._task = task
        self._line: DeviceLine | None = None

    def _start(self, stack: ExitStack) -> None:
        self._twins = Twins(self._rows.values(), self._emit)
        self._pool = Pool(perform, self._request.workers, _PRELOAD)
        stack.callback(self._pool.close)
        if not self._task.device.parallel:
            self._line = DeviceLine(self._task.device, self._task.problem, self._seed, self._mark)
            stack.callback(self._line.close)

    def _emit(self, row: Trial) -> EmittedKernel:
        kernel = self._task.kernel
        return kernel.emit(kernel.schedule(row.schedule), self._task.device.target)

    def _send(self, flight: Flight) -> None:
        task = self._task
        sizes = tuple(task.sizes.values())
        schedule, assembler = flight.claim.schedule, self._request.assembler
        job = BuildJob(task.kernel.id, schedule, task.device.target, sizes, assembler)
        self._pool.submit(flight.number, job, self._request.limit_s)

    def _advance(self) -> None:
        bells = () if self._line is None else (self._line.bell,)
        for report in self._pool.wait(TICK_S, bells):
            self._receive(report)
        for timed in [] if self._line is None else self._line.collect():
            self._proven(self._flights[timed.number], timed.result, last=True)
        self._settle()

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
                sizes = tuple(self._task.sizes.values())
                job = ProveJob(candidate, sizes, self._seed, where, self._task.problem.data)
                self._pool.submit(number, job, self._request.limit_s)
            elif first in self._rows:
                self._copy_of(flight, self._rows[first])
            else:
                flight.waits_for = first

    def _proven(self, flight: Flight, proven: Proven | Halted, last: bool) -> None:
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

    def _copy_of(self, flight: Flight, twin: Trial) -> None:
        self._copy(flight, twin.number, twin.outcome, twin.message, twin.verdict, twin.measurement)

    def _finish(
        self,
        flight: Flight,
        verdict: Verdict | None = None,
        measurement: Measurement | None = None,
        failure: Failure | None = None,
    ) -> Trial:
        row = super()._finish(flight, verdict, measurement, failure)
        for other in [f for f in self._flights.values() if f.waits_for == row.number]:
            self._copy_of(other, row)
        return row

    def _give_up(self) -> None:
        """Take back the marks of candidates that were at the device when the run was stopped on purpose."""
        if self._line is not None:
            self._line.close()
        for number in self._flights:
            self._store.withdraw(self._name, number)
