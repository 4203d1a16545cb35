"""The default sampler: a Gaussian process over the valid set, asked where improvement is most to be expected.

The pure core: past and pending trials in, the number of the next schedule out. What it keeps between calls
saves work and changes nothing. Every choice here was measured on recorded spaces: docs/search.md.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from search_spaces.space import Space
from tuner.samplers.acquisition import expected_improvement
from tuner.samplers.base import Past, Subject
from tuner.samplers.coordinates import Coordinates, Floats, Indices
from tuner.samplers.covariance import Covariance
from tuner.samplers.floors import in_turn
from tuner.samplers.gaussian_process import Beliefs, Hints, Points, Prior
from tuner.samplers.hints import Hint, stacked
from tuner.samplers.neighbourhood import Neighbourhood
from tuner.samplers.seeding import seed
from tuner.samplers.sizes import powers_of_two
from tuner.samplers.start import free_sample, most_different
from tuner.samplers.stopping import FEWEST_TRIALS, assurance
from tuner.samplers.target import ranked
from tuner.samplers.transfer import learn
from tuner.samplers.trust import Outlook, believed

_FIRST_FIT = 5
_SUREST_FAILURE = 0.99


@dataclass(frozen=True, slots=True)
class Settings:
    """How the search goes about it.

    Attributes:
        start: Trials before the model is asked.
        start_alone: The same where nobody gives hints or first schedules: the model is asked sooner.
        told: Of the start, how many are of those that the search is told to begin with. Were it all, a wrong
            source would be a trap.
        prior: Of the model's numbers.
        most_candidates: Candidates the model looks at, at most; all of them in spaces below that.
        most_cells: Observations times candidates, at most: bounds time and memory of an ask.
        most_observed: Trials the model learns from at a time: the best of them, and a sample of the others.
        most_fitted: The same for fitting its numbers, which costs the cube of it.
        hubs: Best trials whose neighbours are always candidates, where not everything is.
    """

    start: int = 8
    start_alone: int = 5
    told: int = 7
    prior: Prior = field(default_factory=Prior)
    most_candidates: int = 20_000
    most_cells: int = 4_000_000
    most_observed: int = 512
    most_fitted: int = 200
    hubs: int = 10


class AutoCore:
    """Thinks for the sampler `auto`.

    Args:
        space: Whose valid set is searched.
        settings: How.
        hints: What is believed of its schedules beforehand. Where nobody says anything, sizes tell.
        first: Schedules to begin with, the most promising first: among them the model picks, by what results
            there are. Without any, what the hints say is best.
    """

    def __init__(
        self,
        space: Space,
        settings: Settings | None = None,
        hints: Sequence[Hint] = (),
        first: Sequence[int] | Indices = (),
    ) -> None:
        self._settings = settings or Settings()
        self._levels = space.levels
        self._coordinates = Coordinates.of(space.parameters)
        is_alone = not hints and len(first) == 0
        self._start = self._settings.start_alone if is_alone else self._settings.start
        if is_alone:
            hints = powers_of_two(space)
        self._features = stacked(hints, len(self._levels))
        self._hints = Hints(np.array([h.weight for h in hints]), np.array([h.spread for h in hints]))
        self._untaught = self._without_lessons(hints) if self._settings.prior.learned is not None else None
        self._begin_with = np.array(first, dtype=np.int64)
        if not is_alone and len(first) == 0:
            self._begin_with = np.argmin(self._hints.mean(self._features), keepdims=True)
        self._model: _Model | None = None

    def propose(self, past: Past, space: Space, rng: np.random.Generator) -> int:
        taken = np.concatenate([past.schedules, past.pending])
        timed = np.unique(past.times_us[~np.isnan(past.times_us)])
        if len(taken) < self._start or len(timed) < 2:
            return self._first(past, rng)
        model = self._model_for(past)
        model.look(past, self._points)
        scores = model.scores(past.times_us)
        scores[~self._free(taken)[model.candidates]] = -np.inf
        best = int(np.argmax(scores))
        if scores[best] == -np.inf:
            return int(free_sample(len(self._levels), taken, 1, rng)[0])
        return int(model.candidates[best])

    def assurance(self, past: Past) -> float:
        """The estimated probability, 0..1, that the best trial is within a hundredth of the optimum's time.

        Raised by nothing but evidence: a few trials give 0, and having tried everything gives 1.
        """
        free = self._free(past.schedules)
        if not free.any():
            return 1.0
        if len(past.schedules) < FEWEST_TRIALS or not np.isfinite(past.times_us).any():
            return 0.0
        model = self._model_for(past)
        model.look(past, self._points)
        means, spreads, targets = model.beliefs_given(past.times_us)
        among = free[model.candidates]
        share = among.sum() / free.sum()
        if share == 0:
            return 0.0
        return assurance(means[among], spreads[among], targets, past.times_us, float(share))

    def _free(self, taken: Indices) -> NDArray[np.bool_]:
        free = np.ones(len(self._levels), dtype=np.bool_)
        free[taken] = False
        return free

    def _first(self, past: Past, rng: np.random.Generator) -> int:
        """A schedule to begin with: of those it is told, and then what is most different."""
        taken = np.concatenate([past.schedules, past.pending])
        left = self._begin_with[~np.isin(self._begin_with, taken)]
        if len(left) and len(self._begin_with) - len(left) < self._settings.told:
            return self._pick(left, past)
        expected = self._hints.mean(self._features) if len(self._hints.weights) else None
        return most_different(self._levels, self._coordinates, taken, expected, rng)

    def _pick(self, schedules: Indices, past: Past) -> int:
        """Of a few schedules the most promising one, by the model as it is before it is fitted."""
        if len(past.schedules) == 0:
            return int(schedules[0])
        covariance = Covariance.unpack(self._settings.prior.logs(len(self._coordinates)))
        beliefs = Beliefs(covariance, self._hints, self._points(schedules))
        beliefs.observe(self._points(np.concatenate([past.schedules, past.pending])))
        targets = ranked(past.times_us)
        gain = expected_improvement(beliefs.means(targets), beliefs.spreads(), float(targets.min()))
        return int(schedules[np.argmax(gain)])

    def _without_lessons(self, hints: Sequence[Hint]) -> Outlook:
        own = np.array([not hint.is_taught for hint in hints])
        return Outlook(Hints(self._hints.weights * own, self._hints.spreads * own), Prior())

    def _points(self, schedules: Indices) -> Points:
        coordinates = self._coordinates.at(self._levels[schedules])
        return Points(coordinates, self._features[schedules])

    def _model_for(self, past: Past) -> "_Model":
        """The model that was last due for refitting, from the trials there were then."""
        count = refit_count(len(past.schedules))
        schedules, times_us = past.schedules[:count], past.times_us[:count]
        if self._model is None or not self._model.was_made_from(schedules, times_us):
            self._model = self._made_from(schedules, times_us)
        return self._model

    def _made_from(self, schedules: Indices, times_us: Floats) -> "_Model":
        settings = self._settings
        rng = np.random.default_rng(schedules)  # keyed by what the model is made from, whoever asks when
        targets = ranked(times_us)
        order = np.argsort(targets, kind="stable")
        learned = _best_and_others(order, settings.most_observed, rng)
        fitted = _best_and_others(order, settings.most_fitted, rng)
        points = self._points(schedules[fitted])
        outlook = Outlook(self._hints, settings.prior)
        hints, covariance = believed(points, targets[fitted], outlook, self._untaught)
        room = min(settings.most_candidates, settings.most_cells // len(learned))
        candidates = self._candidates(schedules, schedules[order[: settings.hubs]], room, rng)
        return _Model(
            schedules,
            times_us,
            learned,
            candidates,
            Beliefs(covariance, hints, self._points(candidates)),
        )

    @cached_property
    def _neighbourhood(self) -> Neighbourhood:
        return Neighbourhood(self._levels)

    def _candidates(self, schedules: Indices, hubs: Indices, room: int, rng: np.random.Generator) -> Indices:
        """Everything, or the neighbours of the best and a random sample of the rest."""
        if len(self._levels) <= room:
            return np.arange(len(self._levels))
        near = [self._neighbourhood.of(int(hub)) for hub in hubs]
        return np.unique(np.concatenate([*near, free_sample(len(self._levels), schedules, room, rng)]))


@dataclass
class _Model:
    """Beliefs with what they were made from.

    Attributes:
        schedules, times_us: All trials at the time of fitting.
        learned: Positions of those that the model learns from.
        candidates: Schedules the beliefs are about.
        beliefs: Begin with nothing observed.
        seen: Schedules observed so far, in order.
    """

    schedules: Indices
    times_us: Floats
    learned: NDArray[np.intp]
    candidates: Indices
    beliefs: Beliefs
    seen: list[int] = field(default_factory=list)

    def was_made_from(self, schedules: Indices, times_us: Floats) -> bool:
        return np.array_equal(self.schedules, schedules) and np.array_equal(
            self.times_us, times_us, equal_nan=True
        )

    def look(self, past: Past, points: Callable[[Indices], Points]) -> None:
        """Observe what is finished and then what is pending, keeping the part that was observed before."""
        count = len(self.schedules)
        since = past.schedules[count:]
        wanted = np.concatenate([self.schedules[self.learned], since, past.pending])
        seen = np.array(self.seen, dtype=np.int64)
        shared = min(len(seen), len(wanted))
        differs = np.flatnonzero(seen[:shared] != wanted[:shared])
        kept = int(differs[0]) if len(differs) else shared
        if kept < len(seen):
            self.beliefs.forget(len(seen) - kept)
        if kept < len(wanted):
            self.beliefs.observe(points(wanted[kept:]))
        self.seen = wanted.tolist()

    def beliefs_given(self, times_us: Floats) -> tuple[Floats, Floats, Floats]:
        """Means and spreads at the candidates, and the targets of all finished trials, given their times."""
        targets = ranked(times_us)
        return self.beliefs.means(targets[self._observed(len(targets))]), self.beliefs.spreads(), targets

    def _observed(self, finished: int) -> NDArray[np.intp]:
        return np.concatenate([self.learned, np.arange(len(self.schedules), finished)])

    def scores(self, times_us: Floats) -> Floats:
        """How promising each candidate is, shape (candidates,), given the times of all finished trials.

        A failure counts twice: as the worst time, and as a failure, whose chance is carried to the candidates
        by the covariance that the times taught.
        """
        means, spreads, targets = self.beliefs_given(times_us)
        gain = expected_improvement(means, spreads, float(targets.min()))
        failed = np.isnan(times_us[self._observed(len(times_us))]).astype(np.float64)
        if not failed.any():
            return gain
        usual = failed.mean()
        chance = usual + self.beliefs.smooth(failed - usual)
        safe: Floats = gain * (1 - np.clip(chance, 0, _SUREST_FAILURE))
        return safe


def _best_and_others(order: NDArray[np.intp], most: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """Positions of at most `most` trials, ascending: the best half of that, and a sample of the others."""
    if len(order) <= most:
        return np.arange(len(order))
    best = most // 2
    return np.sort(np.concatenate([order[:best], rng.permutation(order[best:])[: most - best]]))


def refit_count(finished: int) -> int:
    """How many of the trials the model was last fitted to.

    A fit is due whenever there are an eighth more trials than at the last, at least 1 and at most 20 more.
    """
    due = min(finished, _FIRST_FIT)
    while True:
        after = due + max(1, min(20, due // 8))
        if after > finished:
            return due
        due = after


def make_auto(subject: Subject) -> AutoCore:
    """The core for a subject, with what other studies teach and what the cost model says."""
    told = learn(subject.space, subject.sources)
    seeded = seed(subject.space, subject.sizes)
    settings = Settings(prior=told.prior)
    if seeded is None:
        return AutoCore(subject.space, settings, told.hints, told.first)
    first = in_turn([told.first, seeded.first])
    return AutoCore(subject.space, settings, (*told.hints, *seeded.hints), first)
