"""Which errors are a person's to mend, and become one line. Others are defects and keep their traceback."""

from emitters import UnknownKernelError
from emitters.kernel import DataError, EmitError, ProblemError
from emitters.target import UnknownArchError
from results.errors import ResultsError
from search_spaces.space import SpaceError
from tuner.devices.device import DeviceError
from tuner.ledger import StudyError
from tuner.pipeline import HaltedError
from tuner.ptxas import AssemblerError
from tuner.samplers import UnknownSamplerError
from tuner.single import CandidateFailedError
from tuner.task import RequestError

_ASKED = (
    AssemblerError,
    DataError,
    DeviceError,
    EmitError,
    ProblemError,
    RequestError,
    ResultsError,
    SpaceError,
    StudyError,
    UnknownArchError,
    UnknownKernelError,
    UnknownSamplerError,
)


def exit_code_of(error: Exception) -> int | None:
    """2 for what was asked wrongly, 1 for a run that could not go on, None for a defect."""
    if isinstance(error, _ASKED):
        return 2
    return 1 if isinstance(error, HaltedError | CandidateFailedError) else None
