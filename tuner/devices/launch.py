"""A launch plan on the device: loaded code, buffers between guard zones, and the queueing of one call."""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emitters.kernel import Inputs, KernelSpec, Problem
from results.expression import ceil_div, evaluate
from results.plan import KernelStep, LaunchPlan, MemsetStep
from tuner.devices import driver as cuda
from tuner.devices.driver import Arguments, Driver, GpuFacts
from tuner.devices.errors import CandidateFaultError, StickyFaultError

Array = NDArray[Any]

GUARD_BYTES = 1 << 20
_GUARD = 0xA5
_POISON_INT = 0xCD  # of no use as a sum of products; 0xFF would be -1
_POISON_FLOAT = 0xFF  # NaN in every float type
WORKSPACE = "workspace"


def carveout_percent(facts: GpuFacts, blocks: int, shared_bytes: int) -> int:
    """Share of an SM's L1 and shared memory that lets `blocks` blocks be resident, as the driver takes it.

    Args:
        facts: Of the GPU.
        blocks: Blocks that registers, threads and shared memory let be resident at once.
        shared_bytes: Static and dynamic shared memory of a block.
    """
    needed = blocks * (shared_bytes + facts.shared_bytes_reserved)
    return min(100, ceil_div(100 * needed, facts.shared_bytes_per_sm))


@dataclass(frozen=True, slots=True)
class LoadedStep:
    """An entry point, ready to be launched.

    Attributes:
        step: Of the plan.
        function: The driver's handle.
        blocks_per_sm: Blocks that one SM holds at once.
    """

    step: KernelStep
    function: int
    blocks_per_sm: int


class LoadedPlan:
    """The code of a plan on the device, every function with the shared memory it needs.

    Raises:
        CandidateFaultError: The driver refuses the code, or a block needs more than an SM has.
    """

    def __init__(self, driver: Driver, facts: GpuFacts, plan: LaunchPlan, cubin: bytes) -> None:
        self._driver = driver
        self.plan = plan
        self._module = driver.load(cubin)
        try:
            self.steps = tuple(self._load(facts, step) for step in plan.kernel_steps)
        except CandidateFaultError as fault:
            if not isinstance(fault, StickyFaultError):
                self.close()
            raise

    def close(self) -> None:
        self._driver.unload(self._module)

    def _load(self, facts: GpuFacts, step: KernelStep) -> LoadedStep:
        driver, dynamic = self._driver, step.shared_bytes
        function = driver.function(self._module, step.entry)
        total = dynamic + driver.attribute(function, cuda.STATIC_SHARED_BYTES)
        if total > facts.shared_bytes_per_block_optin:
            raise CandidateFaultError(
                "launch_refused",
                f"shared memory of a block must be at most {facts.shared_bytes_per_block_optin} bytes on "
                f"{facts.name}, {step.entry} needs {total}",
            )
        if total > cuda.SHARED_WITHOUT_OPTIN:
            driver.set_attribute(function, cuda.MAX_DYNAMIC_SHARED_BYTES, dynamic)
        blocks = driver.resident_blocks(function, step.threads, dynamic)
        if blocks == 0:
            raise CandidateFaultError(
                "launch_refused",
                f"no block of {step.entry} fits on an SM: {step.threads} threads of "
                f"{driver.attribute(function, cuda.REGISTERS)} registers, {total} bytes of shared memory",
            )
        if total:
            driver.set_attribute(function, cuda.SHARED_CARVEOUT, carveout_percent(facts, blocks, total))
        return LoadedStep(step, function, blocks)

    def bind(
        self, spec: KernelSpec, problem: Problem, scalars: Mapping[str, float], addresses: Mapping[str, int]
    ) -> "Call":
        """One call of the plan on buffers at these addresses."""
        loaded = iter(self.steps)
        actions: list[Callable[[], None]] = []
        for step in self.plan.steps:
            if isinstance(step, MemsetStep):
                nbytes = evaluate(step.nbytes, problem.sizes)
                actions.append(partial(self._driver.fill, addresses[step.buffer], step.byte, nbytes))
                continue
            values = [_argument(name, spec, problem.sizes, scalars, addresses) for name in step.arguments]
            actions.append(
                partial(
                    self._driver.launch,
                    next(loaded).function,
                    step.grid_for(problem.sizes),
                    step.block,
                    step.shared_bytes,
                    Arguments.of(values),
                )
            )
        return Call(tuple(actions))


@dataclass(frozen=True)
class Call:
    """Queues every step of a plan, once."""

    actions: tuple[Callable[[], None], ...]

    def __call__(self) -> None:
        for action in self.actions:
            action()


def _argument(
    name: str,
    spec: KernelSpec,
    sizes: Mapping[str, int],
    scalars: Mapping[str, float],
    addresses: Mapping[str, int],
) -> Any:
    if name in addresses:
        return ctypes.c_uint64(addresses[name])
    if name in spec.scalars:
        return ctypes.c_float(scalars[name])
    return ctypes.c_uint32(evaluate(name, sizes))


class Buffers:
    """The buffers of one call on the device, each between two guard zones.

    Args:
        driver: Where they live.
        spec: Of the kernel.
        problem: Sizes.
        inputs: As the schedule wants them.
        workspace_bytes: Of the plan for this problem.
        guard_bytes: Length of each guard zone; none where only time is asked for.
        like: Another set, whose inputs are copied on the device instead of coming from the host again.

    Raises:
        CandidateFaultError: ``out_of_memory``.
    """

    def __init__(
        self,
        driver: Driver,
        spec: KernelSpec,
        problem: Problem,
        inputs: Inputs,
        workspace_bytes: int,
        guard_bytes: int = GUARD_BYTES,
        like: "Buffers | None" = None,
    ) -> None:
        self._driver = driver
        self._guard_bytes = guard_bytes
        self._inputs = inputs
        self._outputs = {
            buffer.name: np.empty(buffer.shape_for(problem.sizes), buffer.dtype)
            for buffer in spec.buffers
            if buffer.role == "out"
        }
        self._sizes: dict[str, int] = {}
        for buffer in spec.buffers:
            array = self._outputs[buffer.name] if buffer.role == "out" else inputs.buffers[buffer.name]
            self._sizes[buffer.name] = array.nbytes
        if workspace_bytes:
            self._sizes[WORKSPACE] = workspace_bytes
        self._bases: dict[str, int] = {}
        try:
            for name, nbytes in self._sizes.items():
                self._bases[name] = driver.allocate(nbytes + 2 * self._guard_bytes)
        except CandidateFaultError as fault:
            self.close()
            needed = sum(self._sizes.values())
            raise CandidateFaultError(
                fault.kind, f"{problem} needs {needed} bytes in {len(self._sizes)} buffers: {fault}"
            ) from fault
        for name, values in inputs.buffers.items():
            if like is None:
                driver.upload(self.addresses[name], values)
            else:
                driver.copy(self.addresses[name], like.addresses[name], values.nbytes)

    @property
    def addresses(self) -> dict[str, int]:
        """Where each buffer starts, by name."""
        return {name: base + self._guard_bytes for name, base in self._bases.items()}

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers, without guards."""
        return sum(self._sizes.values())

    def poison(self) -> None:
        """Queue the filling of guards, outputs and workspace, so that what is not written shows."""
        for name, base in self._bases.items():
            nbytes = self._sizes[name]
            self._driver.fill(base, _GUARD, self._guard_bytes)
            self._driver.fill(base + self._guard_bytes + nbytes, _GUARD, self._guard_bytes)
            if name not in self._inputs.buffers:
                is_int = name in self._outputs and self._outputs[name].dtype.kind in "iu"
                self._driver.fill(base + self._guard_bytes, _POISON_INT if is_int else _POISON_FLOAT, nbytes)

    def outputs(self) -> dict[str, Array]:
        """Every output by name, after all that is queued. The arrays are overwritten by the next call."""
        for name, values in self._outputs.items():
            self._driver.download(self.addresses[name], values)
        return self._outputs

    def stray_write(self) -> str:
        """Where something was written that is no output, for a person; empty if nowhere."""
        for name, base in self._bases.items():
            nbytes = self._sizes[name]
            for side, start in (("before", base), ("after", base + self._guard_bytes + nbytes)):
                zone = np.empty(self._guard_bytes, np.uint8)
                self._driver.download(start, zone)
                touched = np.flatnonzero(zone != _GUARD)
                if touched.size:
                    offset = start + int(touched[0]) - self.addresses[name]
                    first = f"the first at byte {offset} of its {nbytes}"
                    return f"{touched.size} bytes written {side} {name}, {first}"
        for name, values in self._inputs.buffers.items():
            held = np.empty_like(values, order="C")
            self._driver.download(self.addresses[name], held)
            changed = np.flatnonzero(_bytes_of(held) != _bytes_of(values))
            if changed.size:
                return f"{changed.size} bytes of the input {name} changed, the first at byte {changed[0]}"
        return ""

    def close(self) -> None:
        for base in self._bases.values():
            self._driver.free(base)
        self._bases.clear()


def _bytes_of(values: Array) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
