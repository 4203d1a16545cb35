"""Kernel Tuner's own strategies, run by its own code on a recorded space. Needs the extra `bench`.

Its simulation runner answers from the recording. Every run gets a fresh `Searchspace`, since one that is used
again leaks its caches of neighbours into the next run.

All but three of its strategies take part. `brute_force` enumerates. `pyatf_strategies` passes an argument
that pyATF 0.0.13 does not take. `skopt` (scikit-optimize 0.10.2) ends in a ValueError about NaN before its
hundredth evaluation of a space with failures, after half a minute. `nsga2` and `nsga3` may ask thousands of
times for what was evaluated: whoever does so 400 times in a row is taken to be done.
"""

import contextlib
import io
import random
import warnings
from typing import Any

import numpy as np

from tuner.devices.recorded import Recording

STRATEGIES = (
    "adaptive_tabu_greywolf",
    "basinhopping",
    "bayes_opt",
    "diff_evo",
    "dual_annealing",
    "firefly_algorithm",
    "genetic_algorithm",
    "greedy_ils",
    "greedy_mls",
    "hybrid_vndx",
    "minimize",
    "mls",
    "nsga2",
    "nsga3",
    "ordered_greedy_mls",
    "pso",
    "random_sample",
    "simulated_annealing",
)


_MOST_REPEATS = 400


class _NothingNewError(Exception):
    """A strategy asks only for what was evaluated before."""


def run(recording: Recording, strategy: str, seed: int, budget: int) -> list[int]:
    """Schedules that a strategy evaluates, each counted once, in order; failures count.

    Args:
        recording: Answers.
        strategy: One of `STRATEGIES`, with its default options.
        seed: Of `random` and `numpy.random`, which the strategies draw from.
        budget: Unique evaluations, at most: some end early.
    """
    from kernel_tuner.interface import Options, strategy_map
    from kernel_tuner.searchspace import Searchspace
    from kernel_tuner.util import TuningBudget

    cache = _cache(recording)
    tune_params = {name: list(values) for name, values in zip(recording.names, recording.values, strict=True)}
    space = Searchspace(None, None, None, from_cache={"tune_params": tune_params, "cache": cache})
    budget = min(budget, len(recording))
    options = {
        "tune_params": tune_params,
        "restrictions": None,
        "restrictions_unmodified": None,
        "objective": ["time"],
        "objective_higher_is_better": [False],
        "metrics": None,
        "verbose": False,
        "simulation_mode": True,
        "strategy": strategy,
        "strategy_options": Options({"max_fevals": budget}),
        "max_fevals": budget,
        "seed": seed,
        "cache": cache,
        "cachefile": None,
        "budget": TuningBudget(None, budget),
    }
    runner = _recording_runner()
    random.seed(seed)
    np.random.seed(seed)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        with contextlib.suppress(_NothingNewError):
            strategy_map[strategy].tune(space, runner, Options(options))
    numbers = {key: number for number, key in enumerate(cache)}
    return [numbers[key] for key in runner.visited][:budget]


def _cache(recording: Recording) -> dict[str, dict[str, Any]]:
    """The recording as Kernel Tuner holds a cache in memory."""
    from kernel_tuner.util import CompilationFailedConfig, RuntimeFailedConfig

    errors = {"CompilationFailedConfig": CompilationFailedConfig, "compile": CompilationFailedConfig}
    cache = {}
    for number in range(len(recording)):
        entry: dict[str, Any] = recording.schedule(number)
        key = ",".join(map(str, entry.values()))
        message = recording.messages[number]
        if message:
            entry["__error__"] = errors.get(message, RuntimeFailedConfig)()
        else:
            entry["time"] = float(recording.times_us[number])
        cache[key] = entry
    return cache


def _recording_runner() -> Any:
    """A simulation runner that notes what is evaluated for the first time."""
    from kernel_tuner.interface import Options
    from kernel_tuner.runners.simulation import SimulationRunner

    class Runner(SimulationRunner):
        def __init__(self) -> None:
            quiet = Options({"quiet": True})
            super().__init__(None, Options({"kernel_name": "recorded"}), quiet, 1, [])
            self.visited: dict[str, None] = {}
            self.repeats = 0

        def run(self, parameter_space: Any, tuning_options: Any) -> Any:
            asked = list(parameter_space)
            self.repeats += 1
            results = super().run(asked, tuning_options)
            for schedule, result in zip(asked, results, strict=False):
                key = ",".join(map(str, schedule))
                if result is not None and key in tuning_options.cache and key not in self.visited:
                    self.visited[key] = None
                    self.repeats = 0
            if self.repeats > _MOST_REPEATS:
                raise _NothingNewError
            return results

    return Runner()
