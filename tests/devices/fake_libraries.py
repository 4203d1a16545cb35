"""cuBLAS, torch and CuPy as far as baselines call them, computing on the stand-in GPU or in NumPy."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
from cuda_standin import opened_machines
from numpy.typing import NDArray

from tuner.devices.cublas import WORKSPACE_BYTES, CublasError
from tuner.library_calls import LibraryMissingError

_TYPES: dict[int, type] = {0: np.float32, 2: np.float16, 3: np.int8, 10: np.int32}
_SUMS: dict[int, type] = {68: np.float64, 72: np.int64}
CALL_US = 25.0


class FakeCublas:
    """`tuner.devices.cublas.Cublas`; column-major, as cuBLAS is.

    Attributes:
        refuses: Whether `gemm_ex` refuses what cuBLAS has no kernel for.
        off_by: Added to every element.
    """

    def __init__(self, refuses: bool, off_by: int) -> None:
        self._refuses, self._off_by = refuses, off_by
        self._handles: set[int] = set()

    def create(self, stream: int, workspace: int) -> int:
        (machine,) = opened_machines
        assert machine.handles[stream] == "stream"
        assert machine.memory[workspace].nbytes == WORKSPACE_BYTES
        self._handles.add(77)
        return 77

    def destroy(self, handle: int) -> None:
        self._handles.remove(handle)

    def gemm_ex(
        self,
        handle: int,
        transposed: tuple[int, int],
        sizes: tuple[int, int, int],
        alpha: int,
        a: tuple[int, int, int],
        b: tuple[int, int, int],
        beta: int,
        c: tuple[int, int, int],
        compute_type: int,
        algorithm: int,
    ) -> None:
        assert handle in self._handles
        if self._refuses:
            raise CublasError("CUBLAS_STATUS_NOT_SUPPORTED")
        scalar = ctypes.c_int32 if compute_type == 72 else ctypes.c_float
        one, zero = scalar.from_address(alpha).value, scalar.from_address(beta).value
        assert (one, zero) == (1, 0)
        (machine,) = opened_machines
        m, n, k = sizes

        def columns(address: int, dtype: int, rows: int, cols: int, lead: int) -> NDArray[Any]:
            """A column-major (rows, cols) matrix in device memory."""
            assert lead >= rows
            item = np.dtype(_TYPES[dtype])
            base, offset = machine.at(address, lead * cols * item.itemsize)
            flat = machine.memory[base][offset : offset + lead * cols * item.itemsize].view(item)
            return flat.reshape(cols, lead).T[:rows]

        def compute() -> None:
            shapes = [(k, m) if transposed[0] else (m, k), (n, k) if transposed[1] else (k, n)]
            left, right = (
                columns(address, dtype, *shape, lead).astype(_SUMS[compute_type])
                for (address, dtype, lead), shape in zip((a, b), shapes, strict=True)
            )
            product = (left.T if transposed[0] else left) @ (right.T if transposed[1] else right)
            address, dtype, lead = c
            columns(address, dtype, m, n, lead)[:] = product + self._off_by
            machine.spend(CALL_US)

        machine.queue(compute)


class FakeTensor:
    """A torch tensor, as far as it is used."""

    def __init__(self, values: NDArray[Any]) -> None:
        self.values = values
        self.device = "cuda:0"

    def to(self, device: str) -> "FakeTensor":
        assert device == "cuda:0"
        return FakeTensor(self.values.copy())

    def t(self) -> "FakeTensor":
        return FakeTensor(self.values.T)

    def permute(self, *axes: int) -> "FakeTensor":
        return FakeTensor(self.values.transpose(axes))

    def __getitem__(self, index: Any) -> "FakeTensor":
        return FakeTensor(self.values[index])

    def cpu(self) -> "FakeTensor":
        return self

    def numpy(self) -> NDArray[Any]:
        return self.values


def _queued(compute: Callable[[], None]) -> None:
    (machine,) = opened_machines

    def run() -> None:
        compute()
        machine.spend(CALL_US)

    machine.queue(run)


def _int_mm(left: FakeTensor, right: FakeTensor, out: FakeTensor) -> FakeTensor:
    if left.values.shape[0] <= 16:
        raise RuntimeError(f"self.size(0) needs to be greater than 16, but got {left.values.shape[0]}")

    def compute() -> None:
        out.values[:] = left.values.astype(np.int64) @ right.values.astype(np.int64)

    _queued(compute)
    return out


def _rms_norm(x: FakeTensor, shape: tuple[int], weight: FakeTensor, eps: float) -> FakeTensor:
    assert x.values.shape[-1:] == shape
    result = FakeTensor(np.empty_like(x.values))

    def compute() -> None:
        mean = (x.values.astype(np.float64) ** 2).mean(axis=-1, keepdims=True)
        result.values[:] = x.values * weight.values / np.sqrt(mean + eps)

    _queued(compute)
    return result


def _attention(q: FakeTensor, k: FakeTensor, v: FakeTensor, scale: float, enable_gqa: bool) -> FakeTensor:
    assert enable_gqa
    result = FakeTensor(np.empty_like(q.values))

    def compute() -> None:
        group = q.values.shape[1] // k.values.shape[1]
        keys, values = (cache.values.repeat(group, axis=1).astype(np.float64) for cache in (k, v))
        scores = scale * np.einsum("bhqd,bhtd->bhqt", q.values, keys)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        result.values[:] = (weights / weights.sum(axis=-1, keepdims=True)) @ values

    _queued(compute)
    return result


@contextmanager
def _stream(_stream: Any) -> Iterator[None]:
    yield


def _fake_torch() -> Any:
    return SimpleNamespace(
        int32=np.int32,
        from_numpy=FakeTensor,
        empty=lambda shape, dtype, device: FakeTensor(np.empty(shape, dtype)),
        _int_mm=_int_mm,
        nn=SimpleNamespace(
            functional=SimpleNamespace(rms_norm=_rms_norm, scaled_dot_product_attention=_attention)
        ),
        cuda=SimpleNamespace(
            synchronize=lambda index: None,
            ExternalStream=lambda address, device: ("stream", address),
            stream=_stream,
        ),
    )


def _nearest(exact: Fraction) -> np.float32:
    """Rounded once, to nearest even: by way of float64 would round twice."""
    near = np.float32(float(exact))
    around = (near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf)))
    return min(
        around, key=lambda value: (abs(Fraction(float(value)) - exact), int(value.view(np.uint32)) & 1)
    )


@lru_cache(maxsize=4)
def _affine(x: bytes, scale: float, bias: float) -> NDArray[np.float32]:
    """Rounded once. Kept, since a timing asks for the same again and again."""
    values = (Fraction(float(value)) for value in np.frombuffer(x, np.float32))
    return np.array([_nearest(value * Fraction(scale) + Fraction(bias)) for value in values], np.float32)


class _FakeElementwise:
    def __init__(self, inputs: str, outputs: str, operation: str, name: str) -> None:
        assert operation == "y = fma(x, scale, bias)"

    def __call__(self, x: NDArray[Any], scale: Any, bias: Any, y: NDArray[Any]) -> None:
        def compute() -> None:
            y[:] = _affine(x.tobytes(), float(scale), float(bias))

        _queued(compute)


def _fake_cupy() -> Any:
    return SimpleNamespace(
        ElementwiseKernel=_FakeElementwise,
        asarray=np.copy,
        empty_like=np.empty_like,
        asnumpy=np.asarray,
        cuda=SimpleNamespace(
            Device=lambda: SimpleNamespace(synchronize=lambda: None),
            ExternalStream=lambda address: _stream(address),
        ),
    )


@dataclass(frozen=True)
class FakeLibraries:
    """Picklable.

    Attributes:
        missing: Modules that do not import, and `cublas`.
        refuses: Whether cuBLAS refuses.
        off_by: An error of cuBLAS.
    """

    missing: tuple[str, ...] = ()
    refuses: bool = False
    off_by: int = 0

    def named(self, module: str) -> Any:
        if module in self.missing:
            raise LibraryMissingError(f"{module} does not import: No module named {module!r}")
        match module:
            case "cupy":
                return _fake_cupy()
            case "torch":
                return _fake_torch()
        raise AssertionError(module)

    def cublas(self) -> Any:
        if "cublas" in self.missing:
            raise LibraryMissingError("cuBLAS does not load: no libcublas")
        return FakeCublas(self.refuses, self.off_by)
