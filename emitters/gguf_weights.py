"""A matrix of a GGUF file as the weights of a kernel. Reading needs the extra `gguf`."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from emitters.kernel import Array, DataError, Kernel, Problem, TensorOperand
from emitters.quants import QuantError

_SHOWN = 8


class GgufWeightsError(DataError):
    """A file, tensor or kernel that do not fit. The message says what would."""


@dataclass(frozen=True)
class GgufTensor:
    """Real data of a problem: a tensor, or its first rows. Small; the weights are read where they are used.

    Attributes:
        file: Absolute path of the GGUF file.
        tensor: Name of the tensor.
        hash: blake3 of the tensor's bytes in the file, hex.
        rows: How many of its rows; None for all.
    """

    file: Path
    tensor: str
    hash: str
    rows: int | None = None

    @property
    def description(self) -> dict[str, str]:
        """What a row records: names and hash, not where the file lies."""
        return {"file": self.file.name, "tensor": self.tensor, "hash": self.hash}

    def operands(self, kernel: Kernel[Any]) -> Mapping[str, Array]:
        """The weights in the kernel's layout, by the name of its operand.

        Raises:
            GgufWeightsError: As `load_weights`, or the tensor is not what it was.
        """
        loaded = _loaded(kernel.id, self.file, self.tensor)
        if loaded.hash != self.hash:
            raise GgufWeightsError(
                f"{self.tensor} of {self.file} has changed since the run began; begin again with this file"
            )
        return {loaded.operand: loaded.weights[: self.rows]}

    def beginning(self, kernel: Kernel[Any], problem: Problem, rows: int) -> Problem:
        """The problem of the tensor's first rows, so many at most."""
        first, *others = problem.sizes.values()
        least = min(first, rows)
        return replace(kernel.spec.problem(least, *others), data=replace(self, rows=least))


@dataclass(frozen=True)
class GgufWeights:
    """A tensor in the layout of a kernel.

    Attributes:
        problem: What its shape makes of the kernel, with the tensor for its data.
        operand: Name of the buffer.
        weights: The buffer.
        hash: blake3 of the tensor's bytes in the file, hex.
    """

    problem: Problem
    operand: str
    weights: Array
    hash: str


def weights_problem(kernel: Kernel[Any], file: Path, tensor: str) -> Problem:
    """The problem that a tensor makes of a kernel, with the tensor for its data; errors as `load_weights`."""
    return load_weights(kernel, file, tensor).problem


def load_weights(kernel: Kernel[Any], file: Path, tensor: str) -> GgufWeights:
    """Read a tensor for a kernel.

    Args:
        kernel: One with a `tensor`.
        file: A GGUF file.
        tensor: Name of a matrix in it, as ``blk.0.attn_q.weight``.

    Raises:
        GgufWeightsError: The extra is not installed, the kernel takes no file, the file is none or has no
            such tensor, the tensor is of another type or no matrix, or its values cannot be converted.
        ProblemError: The kernel cannot serve the tensor's shape.
    """
    source = _source(kernel)
    chosen = _tensor(file, tensor)
    if chosen.tensor_type.name != source.tensor_type:
        raise GgufWeightsError(
            f"{kernel.id} takes tensors of type {source.tensor_type}, "
            f"got {tensor} of type {chosen.tensor_type.name}{_takers(chosen.tensor_type.name)}"
        )
    if len(chosen.shape) != 2:
        raise GgufWeightsError(f"{tensor} must be a matrix, got {len(chosen.shape)} axes")
    n_in, n_out = (int(size) for size in chosen.shape)  # GGUF names the fastest axis first
    digest = blake3(np.ascontiguousarray(chosen.data).view(np.uint8).data).hexdigest()
    problem = replace(kernel.spec.problem(n_out, n_in), data=GgufTensor(file.absolute(), tensor, digest))
    try:
        weights = source.convert(chosen.data.reshape(n_out, -1))
    except QuantError as error:
        raise GgufWeightsError(f"{tensor} of {file}: {error}") from None
    return GgufWeights(problem, source.operand, weights, digest)


@lru_cache(maxsize=2)
def _loaded(kernel_id: str, file: Path, tensor: str) -> GgufWeights:
    """Read once a process: a tensor can take hundreds of megabytes."""
    from emitters import kernel_named

    return load_weights(kernel_named(kernel_id), file, tensor)


def _source(kernel: Kernel[Any]) -> TensorOperand:
    if kernel.tensor is None:
        from emitters import KERNELS

        able = ", ".join(other.id for other in KERNELS.values() if other.tensor is not None)
        raise GgufWeightsError(f"{kernel.id} takes no weights from a file; {able} do")
    return kernel.tensor


def _takers(tensor_type: str) -> str:
    """Which kernels take that type, for the end of a message."""
    from emitters import KERNELS

    able = [k.id for k in KERNELS.values() if k.tensor is not None and k.tensor.tensor_type == tensor_type]
    return f", which {' or '.join(able)} would" if able else ""


def _tensor(file: Path, tensor: str) -> Any:
    """The reader's entry of a tensor."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise GgufWeightsError(
            "reading weights needs the package gguf; pip install 'ptx-tuner[gguf]'"
        ) from None
    try:
        reader = GGUFReader(file)
    except OSError as error:
        raise GgufWeightsError(f"cannot read {file}: {error.strerror or error}") from None
    except (ValueError, IndexError, KeyError, OverflowError) as error:  # what its parser meets in other files
        raise GgufWeightsError(f"{file} must be a whole GGUF file: {error}") from None
    found = {one.name: one for one in reader.tensors}
    if tensor in found:
        return found[tensor]
    near = difflib.get_close_matches(tensor, found, n=3, cutoff=0.4)
    known = [*list(found)[:_SHOWN], *(["..."] if len(found) > _SHOWN else [])]
    hint = f"did you mean {', '.join(near)}?" if near else f"it has {', '.join(known) or 'none at all'}"
    raise GgufWeightsError(f"{file} has no tensor {tensor!r}; {hint}")
