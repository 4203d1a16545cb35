"""What goes wrong on a device, as one small tree.

::

    Exception
    ├── DeviceError (tuner.devices.device)   the device cannot be had or is lost: the study ends
    └── CandidateError                       the candidate failed: its row has `outcome`, the study goes on
        ├── CandidateFaultError              the device refused or stopped it; `kind` says how
        │   └── StickyFaultError             ... and its context is lost: the worker has to be replaced
        ├── CandidateTimeoutError            it hung, and its worker was killed
        └── CandidateCrashError              it took the worker down, or the worker answered nonsense
"""

from results.trial import Outcome


class CandidateError(Exception):
    """A candidate that failed on the device; `outcome` is what its row says."""

    outcome: Outcome


class CandidateFaultError(CandidateError):
    """The device stopped or refused the candidate.

    Attributes:
        kind: As in `Verdict.fault`, where the device can tell: ``out_of_bounds``, ``misaligned``; else
            ``launch_failure``, ``illegal_instruction``, ``launch_refused`` or ``out_of_memory``.
    """

    outcome = Outcome.FAULT

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class StickyFaultError(CandidateFaultError):
    """A fault after which every call on the device fails, in the process that had it."""


class CandidateTimeoutError(CandidateError, TimeoutError):
    """The candidate did not finish; the process that ran it has been killed."""

    outcome = Outcome.TIMEOUT


class CandidateCrashError(CandidateError):
    """The worker died, broke, or answered something unreadable while it had the candidate."""

    outcome = Outcome.CRASH
