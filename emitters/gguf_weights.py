"""A tensor of a GGUF file as the weights of a kernel. Needs the extra `gguf`."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emitters.kernel import Array, Inputs, Kernel, Problem
from emitters.quants import Bytes, q4_k_to_soa


class GgufWeightsError(ValueError):
    """A file, tensor or kernel that do not fit. The message says what would."""


@dataclass(frozen=True)
class Source:
    """How a kernel takes a tensor.

    Attributes:
        tensor_type: Name of the GGML type: ``Q4_K``.
        operand: The buffer that it becomes.
        convert: From what the file holds, (rows, ...), to the operand.
    """

    tensor_type: str
    operand: str
    convert: Callable[[Any], Array]


def _as_bytes(data: NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(data).view(np.uint8)


def _as_halves(data: NDArray[Any]) -> NDArray[np.float16]:
    return np.ascontiguousarray(data).view(np.float16)


SOURCES: Mapping[str, Source] = {
    "q4k_gemv": Source("Q4_K", "W", _as_bytes),
    "q4k_soa_wmma": Source("Q4_K", "W", lambda data: q4_k_to_soa(_as_bytes(data))),
    "q6k_soa_gemv": Source("Q6_K", "W", _as_bytes),
    "wmma_gemv": Source("F16", "A", _as_halves),
}


@dataclass(frozen=True)
class GgufWeights:
    """A tensor in the layout of a kernel.

    Attributes:
        problem: What its shape makes of the kernel.
        operand: Name of the buffer.
        weights: The buffer.
    """

    problem: Problem
    operand: str
    weights: Array

    def inputs_of(self, kernel: Kernel[Any]) -> Callable[[Problem, np.random.Generator], Inputs]:
        """The kernel's own inputs, with these weights wherever the problem is this tensor's."""

        def inputs(problem: Problem, rng: np.random.Generator) -> Inputs:
            own = kernel.inputs(problem, rng)
            if problem != self.problem:
                return own
            return Inputs({**own.buffers, self.operand: self.weights}, own.scalars)

        return inputs


def load_weights(kernel: Kernel[Any], file: Path, tensor: str) -> GgufWeights:
    """Read a tensor for a kernel.

    Args:
        kernel: One of `SOURCES`.
        file: A GGUF file.
        tensor: Name of a matrix in it, as ``blk.0.attn_q.weight``.

    Raises:
        GgufWeightsError: The extra is not installed, the kernel takes no file, the file is none or has no
        such
            tensor, or the tensor is of another type or no matrix.
        ProblemError: The kernel cannot serve the tensor's shape.
    """
    try:
        from gguf import GGUFReader
    except ImportError:
        raise GgufWeightsError(
            "reading weights needs the package gguf; pip install 'ptx-tuner[gguf]'"
        ) from None
    source = SOURCES.get(kernel.id)
    if source is None:
        raise GgufWeightsError(f"{kernel.id} takes no weights from a file; {', '.join(SOURCES)} do")
    try:
        reader = GGUFReader(file)
    except (OSError, ValueError) as error:
        raise GgufWeightsError(f"{file} must be a GGUF file: {error}") from None
    found = {one.name: one for one in reader.tensors}
    if tensor not in found:
        near = difflib.get_close_matches(tensor, found, n=3, cutoff=0.4) or list(found)[:3]
        raise GgufWeightsError(f"{file} has no tensor {tensor!r}; it has {', '.join(near) or 'none at all'}")
    chosen = found[tensor]
    if chosen.tensor_type.name != source.tensor_type:
        raise GgufWeightsError(
            f"{kernel.id} takes tensors of type {source.tensor_type}, "
            f"got {tensor} of type {chosen.tensor_type.name}"
        )
    if len(chosen.shape) != 2:
        raise GgufWeightsError(f"{tensor} must be a matrix, got {len(chosen.shape)} axes")
    n_in, n_out = (int(size) for size in chosen.shape)  # GGUF names the fastest axis first
    problem = kernel.spec.problem(n_out, n_in)
    return GgufWeights(problem, source.operand, source.convert(chosen.data.reshape(n_out, -1)))
