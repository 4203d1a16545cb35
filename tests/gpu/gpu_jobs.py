"""Worker jobs of the GPU tests: run a snippet, run a plan and bring back what it wrote."""

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from snippets import INPUTS, LANES, OUTPUTS, Words

from emitters import kernel_named
from emitters.kernel import Problem
from tuner.devices.device import Candidate
from tuner.devices.driver import Arguments
from tuner.devices.jobs import Bench, Loaded


@dataclass(frozen=True)
class RunSnippet:
    """Run one warp over input words, (32, 8); the result is (32, 4)."""

    cubin: bytes
    words: bytes

    def run(self, bench: Bench) -> Words:
        driver = bench.driver
        module = driver.load(self.cubin)
        given, taken = driver.allocate(4 * LANES * INPUTS), driver.allocate(4 * LANES * OUTPUTS)
        driver.upload(given, np.frombuffer(self.words, np.uint32))
        arguments = Arguments.of([ctypes.c_uint64(given), ctypes.c_uint64(taken)])
        driver.launch(driver.function(module, "snippet"), (1, 1, 1), (LANES, 1, 1), 0, arguments)
        result = np.empty((LANES, OUTPUTS), np.uint32)
        driver.download(taken, result)
        driver.free(given)
        driver.free(taken)
        driver.unload(module)
        return result


@dataclass(frozen=True)
class RunPlan:
    """Every output of a candidate on the data of a seed, without any judgement."""

    candidate: Candidate
    problem: Problem
    seed: int

    def run(self, bench: Bench) -> dict[str, NDArray[Any]]:
        kernel = kernel_named(self.candidate.kernel)
        inputs = bench.inputs(kernel, self.problem, self.seed)
        with Loaded(bench, self.candidate, self.problem, inputs) as loaded:
            buffers = loaded.buffers()
            buffers.poison()
            loaded.call_on(buffers)()
            return {name: values.copy() for name, values in buffers.outputs().items()}
