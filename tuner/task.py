"""What a study is about: kernel, problem, device and space, checked before anything is written."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any, Protocol

import numpy as np

from emitters import kernel_named
from emitters.kernel import Kernel, Problem, schedule_values
from emitters.target import arch_named
from results.trial import OBJECTIVES, Source, StudyKey
from search_spaces import space_for
from search_spaces.space import Space, SpaceError
from tuner import __version__
from tuner.cost_model import Bound
from tuner.devices import DEFAULT_SIMULATED, default_device, device_named, simulated_gpus
from tuner.devices.device import Device
from tuner.ptxas import Assembler
from tuner.samplers import DEFAULT_SAMPLER, SAMPLERS, check_sampler

NO_ENERGY = "--objective energy needs NVML's energy counter; see tune doctor"


class RequestError(ValueError):
    """Something that was asked for cannot be. One line: the rule, the value, the way out."""


class About(Protocol):
    """What a study is about, as far as its loop has to know.

    Attributes:
        key: What has to agree for two trials to be comparable.
        space: Whose schedules are tried.
        baseline: Number of the schedule to try first; None leaves it to the sampler.
        sizes: Of the problem, by name; empty where they are not known.
        weights: Where the problem's weights are from and their hash; empty where they are made up.
        bound: No time can lie below it; None where it is not known.
        times_are: ``measured``, ``predicted``, ``recorded`` or ``recorded prediction``.
    """

    @property
    def key(self) -> StudyKey: ...
    @property
    def space(self) -> Space: ...
    @property
    def baseline(self) -> int | None: ...
    @property
    def sizes(self) -> Mapping[str, int]: ...
    @property
    def weights(self) -> Mapping[str, str]: ...
    @property
    def bound(self) -> Bound | None: ...
    @property
    def times_are(self) -> str: ...
    def close(self) -> None:
        """Release what is held; may be called twice."""
        ...


@dataclass(frozen=True)
class Task:
    """One kernel to be tuned for one problem on one device.

    Attributes:
        kernel: Its table entry.
        problem: Whose time is the objective.
        device: Verifies and times.
        space: Of the kernel for the device's target, less what cannot serve the problem.
        key: What has to agree for two trials to be comparable.
        baseline: The hand-written schedule's number in the valid set; None where it is ruled out.
    """

    kernel: Kernel[Any]
    problem: Problem
    device: Device
    space: Space
    key: StudyKey
    baseline: int | None

    @property
    def sizes(self) -> dict[str, int]:
        return self.problem.sizes

    @property
    def weights(self) -> Mapping[str, str]:
        return {} if self.problem.data is None else self.problem.data.description

    @property
    def bound(self) -> Bound:
        """Of the problem on the device."""
        return self.device.bound(self.kernel, self.problem)

    @property
    def times_are(self) -> str:
        return self.device.source.word

    def close(self) -> None:
        """Close the device."""
        self.device.close()


def task_for(
    kernel_name: str,
    shape: str | None,
    device_name: str | None,
    arch_name: str | None,
    objective: str = OBJECTIVES[0],
    weights: Path | None = None,
    tensor: str | None = None,
) -> Task:
    """The task that the command line describes.

    Args:
        kernel_name: Id or alias.
        shape: Sizes joined by x; None takes the kernel's default problem.
        device_name: None takes the GPU that is here, if it has the architecture, else a simulated one.
        arch_name: Has to be the device's; None takes that.
        objective: One of `OBJECTIVES`.
        weights: A GGUF file whose tensor is the problem; None takes made-up data.
        tensor: Name of the tensor in it.

    Raises:
        ValueError, DeviceError: Something is unknown, impossible or not to be had; one line says what.
    """
    kernel = kernel_named(kernel_name)
    problem = problem_for(kernel, shape, weights, tensor)
    if objective not in OBJECTIVES:
        raise RequestError(f"--objective must be {' or '.join(OBJECTIVES)}, got {objective}")
    device = _device(device_name, arch_name)
    if objective == "energy" and device.source is not Source.CUDA_EVENTS:
        raise RequestError(NO_ENERGY)
    space = space_for(kernel.id, device.target).serving(problem.sizes)
    key = StudyKey(
        kernel=kernel.id,
        semantic_hash=kernel.spec.semantic_hash,
        problem=str(problem),
        arch=device.target.arch.name,
        device=device.name,
        policy=device.policy,
        objective=objective,
        space_hash=space.hash,
        data_hash="" if problem.data is None else problem.data.description["hash"],
    )
    return Task(kernel, problem, device, space, key, _baseline(kernel, space))


def problem_for(kernel: Kernel[Any], shape: str | None, weights: Path | None, tensor: str | None) -> Problem:
    """The problem of a shape, of a tensor of a file, or the kernel's default one.

    Raises:
        ValueError: They contradict each other, or something is unknown or not to be had.
    """
    asked = None if shape is None else kernel.spec.parse_problem(shape)
    if weights is None or tensor is None:
        if tensor is not None:
            raise RequestError(
                f"--tensor names a tensor of the file of --weights, got --tensor {tensor} alone"
            )
        if weights is not None:
            raise RequestError(f"--weights needs --tensor NAME, the tensor to take from {weights}")
        return asked or kernel.default_problem
    from emitters.gguf_weights import weights_problem

    problem = weights_problem(kernel, weights, tensor)
    if asked is not None and asked.items != problem.items:
        raise RequestError(
            f"--shape must be that of the tensor, {tensor} is {problem}, got {asked}; leave it out"
        )
    return problem


def _device(name: str | None, arch_name: str | None) -> Device:
    if arch_name is None:
        return device_named(name or default_device())
    arch = arch_named(arch_name)
    if name is None and default_device() == "cuda":
        gpu = device_named("cuda")
        if gpu.target.arch.name == arch.name:
            return gpu
        gpu.close()
    if name is None:
        gpus = simulated_gpus()
        known = [gpu for gpu, its_arch in gpus.items() if its_arch == arch.name]
        if not known:
            table = ", ".join(f"{gpu} ({its_arch})" for gpu, its_arch in gpus.items())
            raise RequestError(f"no GPU of {arch.name} has figures to predict with; known are {table}")
        usual = DEFAULT_SIMULATED.partition(":")[2]
        name = f"sim:{usual if usual in known else known[0]}"
    device = device_named(name)
    if device.target.arch.name != arch.name:
        raise RequestError(
            f"--arch must be that of the device, {device.name} is {device.target.arch.name}, got {arch.name}"
        )
    return device


def _baseline(kernel: Kernel[Any], space: Space) -> int | None:
    try:
        return space.index(schedule_values(kernel.baseline))
    except SpaceError:
        return None


@dataclass(frozen=True)
class Request:
    """How a study is to be run.

    Attributes:
        trials: Of the study in all, duplicates not counted.
        out: Directory of rows, journal and frozen set.
        assembler: Assembles candidates.
        study: Name; None takes the key's.
        sampler: By name.
        seed: None keeps the study's own, or draws one for a new study.
        workers: Processes that emit, assemble and simulate.
        look_ahead: Trials in flight; None keeps the study's own, or takes `look_ahead_for(workers)`.
        until: Ends the run when the sampler is so sure of the best; None goes on to the number of trials.
        limit_s: Seconds that one candidate may take for emitting and assembling, and again for the gate.
        warm_start: What a new study learns from, as `tuner.warm_start.found` takes it.
    """

    trials: int
    out: Path
    assembler: Assembler
    study: str | None = None
    sampler: str = DEFAULT_SAMPLER
    seed: int | None = None
    workers: int = 1
    look_ahead: int | None = None
    limit_s: float = 120.0
    until: float | None = None
    warm_start: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_sampler(self.sampler)
        counts = {"trials": self.trials, "workers": self.workers, "look-ahead": self.look_ahead}
        for name, value in counts.items():
            if value is not None and value < 1:
                raise RequestError(f"--{name} must be at least 1, got {value}")
        if self.seed is not None and not 0 <= self.seed < 2**63:
            raise RequestError(f"--seed must be within 0..2^63-1, got {self.seed}")
        if self.until is not None and not 0 < self.until < 1:
            raise RequestError(f"--until must be above 0 and below 1, got {self.until:g}")
        if self.until is not None and not SAMPLERS[self.sampler].is_assuring:
            able = " or ".join(name for name, entry in SAMPLERS.items() if entry.is_assuring)
            raise RequestError(
                f"--until needs a sampler that tells how sure it is, {able}, got {self.sampler}"
            )
        if self.warm_start and not SAMPLERS[self.sampler].is_learning:
            able = " or ".join(name for name, entry in SAMPLERS.items() if entry.is_learning)
            raise RequestError(
                f"--warm-start needs a sampler that learns from other studies, {able}, got {self.sampler}"
            )
        if not self.limit_s > 0:
            raise RequestError(f"--timeout must be above 0 s, got {self.limit_s:g}")

    @property
    def seed_for_new_study(self) -> int:
        """The given seed, or a fresh one."""
        return secrets.randbits(31) if self.seed is None else self.seed


def look_ahead_for(workers: int) -> int:
    """Trials in flight that keep so many workers busy though candidates differ in how long they take.

    At least 4, so that one and two workers search alike with the same seed.
    """
    return max(4, workers + workers // 2)


def versions_with(assembler: Assembler) -> dict[str, str]:
    """What a row records of the software that made it."""
    return {
        "ptx-tuner": __version__,
        "ptxas": assembler.version,
        "optuna": version("optuna"),
        "numpy": np.__version__,
        "python": python_version(),
    }
