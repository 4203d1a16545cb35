"""What can go wrong with results.

ResultsError
├── StoreError     the output directory cannot be used, or a trial cannot be kept
├── ExportError    trials do not fit another tuner's format
└── FrozenError    a pinned kernel is missing, tampered with, or may not be replaced

ResultsWarning: something was left out or replaced by the next best, and the message says what.
├── StoreWarning
└── FrozenWarning
"""


class ResultsError(Exception):
    """One line: the rule, the value, the way out."""


class StoreError(ResultsError):
    """The output directory cannot be used, or a trial cannot be kept."""


class ExportError(ResultsError):
    """Trials do not fit another tuner's format."""


class FrozenError(ResultsError):
    """A pinned kernel is missing, tampered with, or may not be replaced."""


class ResultsWarning(UserWarning):
    """Something was left out, or replaced by the next best; the message says what."""


class StoreWarning(ResultsWarning):
    """Part of what was stored could not be read; the rest was."""


class FrozenWarning(ResultsWarning):
    """Another kernel than the one asked for is served."""
