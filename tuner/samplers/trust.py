"""Whether to go on believing what other studies taught: until results speak clearly against it."""

from dataclasses import dataclass

from tuner.samplers.coordinates import Floats
from tuner.samplers.covariance import Covariance
from tuner.samplers.gaussian_process import Hints, Points, Prior, fit

_CLEARLY = 3.0  # difference of two losses: twenty to one


@dataclass(frozen=True)
class Outlook:
    """What a model is begun with.

    Attributes:
        hints: Its prior mean and linear part.
        prior: Of its covariance's numbers.
    """

    hints: Hints
    prior: Prior


def believed(
    points: Points, targets: Floats, taught: Outlook, untaught: Outlook | None
) -> tuple[Hints, Covariance]:
    """Hints and covariance to go by.

    Args:
        points: Observed.
        targets: Of them.
        taught: What is believed before they are observed.
        untaught: The same without what other studies taught; None where they taught nothing.
    """
    fitted = fit(points, targets, taught.hints, taught.prior)
    if untaught is None:
        return taught.hints, fitted.covariance
    rival = fit(points, targets, untaught.hints, untaught.prior)
    if rival.loss + _CLEARLY < fitted.loss:
        return untaught.hints, rival.covariance
    return taught.hints, fitted.covariance
