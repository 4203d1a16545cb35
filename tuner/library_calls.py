"""Calls of other people's libraries as work that can be timed: cuBLAS, torch, CuPy.

Dense libraries get dense operands: ternary codes as s8, block formats as f16, which is what a library offers
for them. The reduction lies contiguous where the kernel's own operands allow it, as libraries like it best.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from emitters import kernel_named, quants, ternary
from emitters.kernel import Inputs, Problem
from tuner.devices.cublas import WORKSPACE_BYTES, Cublas, installed_cublas
from tuner.devices.errors import CandidateFaultError
from tuner.devices.jobs import Bench
from tuner.devices.stopwatch import Work

Array = NDArray[Any]
Call = Callable[[], None]

# cublas_api.h and library_types.h
_OP_N, _OP_T = 0, 1
_R_32F, _R_16F, _R_8I, _R_32I = 0, 2, 3, 10
_COMPUTE_32F, _COMPUTE_32I = 68, 72
_GEMM_DEFAULT = -1


class LibraryMissingError(Exception):
    """A library that does not import here. The message says which and why."""


class Libraries(Protocol):
    """Where libraries come from; picklable."""

    def named(self, module: str) -> Any:
        """The module.

        Raises:
            LibraryMissingError: It does not import.
        """
        ...

    def cublas(self) -> Cublas:
        """cuBLAS.

        Raises:
            LibraryMissingError: It does not load.
        """
        ...


@dataclass(frozen=True, slots=True)
class InstalledLibraries:
    """The libraries of this Python."""

    def named(self, module: str) -> Any:
        try:
            return importlib.import_module(module)
        except (ImportError, OSError) as error:  # OSError: a shared library that it needs does not load
            raise LibraryMissingError(f"{module} does not import: {_first_line(error)}") from error

    def cublas(self) -> Cublas:
        try:
            return installed_cublas()
        except (ImportError, OSError) as error:
            raise LibraryMissingError(f"cuBLAS does not load: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a call is made and on what."""

    bench: Bench
    libraries: Libraries
    kernel: str
    problem: Problem
    inputs: Inputs

    @property
    def operands(self) -> tuple[Array, ...]:
        """The kernel's inputs in the order of its spec."""
        spec = kernel_named(self.kernel).spec
        return tuple(self.inputs.buffers[buffer.name] for buffer in spec.buffers if buffer.role == "in")


@dataclass(frozen=True, slots=True)
class LibraryWork:
    """A library's call, ready to be timed.

    Attributes:
        work: What is timed.
        output: What set 0 has computed, in the values and shape of the kernel's only output.
        tolerance: How far it may be off, as a part of the largest expected value: 0 for exact results. It is
            there to see that the same thing is computed, not to judge the library's rounding.
        close: Frees what it holds.
    """

    work: Work
    output: Callable[[], Array]
    tolerance: float
    close: Call


@dataclass(frozen=True, slots=True)
class Product:
    """A matrix product C[m,n] = sum over k, with its operands as they lie in memory.

    Attributes:
        m, n, k: Sizes.
        left: (m, k), or (k, m) with `left_slow`: the reduction is the slow axis.
        right: (n, k), or (k, n) with `right_slow`.
    """

    m: int
    n: int
    k: int
    left: Array
    right: Array
    left_slow: bool = False
    right_slow: bool = False

    @property
    def nbytes(self) -> int:
        """Of the operands."""
        return self.left.nbytes + self.right.nbytes

    def as_f16(self, scale: float) -> "Product":
        """The same product in f16, both operands times `scale`."""
        left, right = ((values * np.float32(scale)).astype(np.float16) for values in (self.left, self.right))
        return replace(self, left=left, right=right)


def product_of(setting: Setting) -> Product:
    """The dense product behind a kernel of the GEMM or GEMV family."""
    first, second = setting.operands
    sizes = tuple(setting.problem.sizes.values())
    if setting.kernel in _WEIGHTS:
        rows, columns = sizes
        weights = _WEIGHTS[setting.kernel](first.reshape(rows, -1))
        return Product(1, rows, columns, second.reshape(1, columns), weights)
    m, n, k = sizes
    match setting.kernel:
        case "ternary_gemm_s8":
            second = np.ascontiguousarray(_codes(second, k, n).T)
        case "hslm_dx_s8":
            second = _codes(second, n, k)
    slow = setting.kernel == "hslm_dw_s8"
    return Product(m, n, k, first, second, left_slow=slow, right_slow=slow)


def _codes(words: Array, rows: int, columns: int) -> Array:
    """Ternary codes as s8, (rows, columns)."""
    return ternary.decode(words.reshape(-1))[: rows * columns].reshape(rows, columns)


_WEIGHTS: Mapping[str, Callable[[Array], Array]] = {
    "wmma_gemv": lambda stored: stored,
    "q4k_gemv": lambda stored: quants.decode_q4_k(stored.view(np.uint8)),
    "q6k_soa_gemv": lambda stored: quants.decode_q6_k(stored.view(np.uint8)),
    "q4k_soa_wmma": lambda stored: quants.decode_soa(stored.view(np.uint8)),
}


Set = tuple[Call, Callable[[], Array]]
"""One set of operands: a call on them, and what reads its result."""


class _Sets:
    """Sets of operands, each made when first asked for."""

    def __init__(self, make: Callable[[], Set]) -> None:
        self._make = make
        self._sets: list[Set] = []

    def call_on(self, index: int) -> Call:
        while len(self._sets) <= index:
            self._sets.append(self._make())
        return self._sets[index][0]

    def output(self) -> Array:
        return self._sets[0][1]()

    def close(self) -> None:
        self._sets.clear()


# cuBLAS


def cublas_s8(setting: Setting) -> LibraryWork:
    """s8 x s8 -> s32."""
    product = product_of(setting)
    return _cublas(setting, product, np.int32, (_R_8I, _R_32I, _COMPUTE_32I), lambda result: result, 0.0)


def cublas_f16(setting: Setting) -> LibraryWork:
    """f16 x f16 -> f16, f32 accumulation. Integers are scaled, so that their sums do not overflow."""
    product = product_of(setting)
    scale = 1 / 64 if product.left.dtype.kind == "i" else 1.0

    def unscaled(result: Array) -> Array:
        values: Array = result.astype(np.float64) / scale**2
        return values

    types = (_R_16F, _R_16F, _COMPUTE_32F)
    return _cublas(setting, product.as_f16(scale), np.float16, types, unscaled, 0.01)


def _cublas(
    setting: Setting,
    product: Product,
    out: type,
    types: tuple[int, int, int],
    finish: Callable[[Array], Array],
    tolerance: float,
) -> LibraryWork:
    """`cublasGemmEx`. Row-major C is column-major C transposed, so the right operand is cuBLAS's first.

    Args:
        setting: Where.
        product: What is computed.
        out: Type of C.
        types: Of the operands, of C, of the computation, by cuBLAS's numbers.
        finish: C as the kernel's values.
        tolerance: As in `LibraryWork`.
    """
    cublas = setting.libraries.cublas()
    driver = setting.bench.driver
    operand_type, out_type, compute_type = types
    m, n, k = product.m, product.n, product.k
    scalar = np.int32 if compute_type == _COMPUTE_32I else np.float32
    one, zero = np.ones(1, scalar), np.zeros(1, scalar)
    memory: list[int] = []

    def room(nbytes: int) -> int:
        memory.append(driver.allocate(nbytes))
        return memory[-1]

    with _as_refusal("cuBLAS"):
        handle = cublas.create(driver.stream, room(WORKSPACE_BYTES))

    def make() -> Set:
        left, right = room(product.left.nbytes), room(product.right.nbytes)
        driver.upload(left, product.left)
        driver.upload(right, product.right)
        values: Array = np.empty((m, n), out)
        target = room(values.nbytes)

        def call() -> None:
            with _as_refusal("cublasGemmEx"):
                cublas.gemm_ex(
                    handle,
                    (_OP_N if product.right_slow else _OP_T, _OP_T if product.left_slow else _OP_N),
                    (n, m, k),
                    one.ctypes.data,
                    (right, operand_type, n if product.right_slow else k),
                    (left, operand_type, m if product.left_slow else k),
                    zero.ctypes.data,
                    (target, out_type, n),
                    compute_type,
                    _GEMM_DEFAULT,
                )

        def read() -> Array:
            driver.download(target, values)
            return finish(values)

        return call, read

    def close() -> None:
        cublas.destroy(handle)
        while memory:
            driver.free(memory.pop())

    sets = _Sets(make)
    nbytes = product.nbytes + m * n * np.dtype(out).itemsize
    return LibraryWork(Work(nbytes, sets.call_on), sets.output, tolerance, close)


# torch and CuPy: they bring their own memory, and queue on our stream


def torch_int_mm(setting: Setting) -> LibraryWork:
    """`torch._int_mm`: s8 x s8 -> s32."""
    torch, product = setting.libraries.named("torch"), product_of(setting)

    def make() -> Set:
        left, right = _on_gpu(setting, torch, product.left, product.right)
        left = left.t() if product.left_slow else left
        right = right if product.right_slow else right.t()
        out = torch.empty((product.m, product.n), dtype=torch.int32, device=left.device)
        return _torch_call(setting, torch, lambda: torch._int_mm(left, right, out=out))

    return _own_memory(product.nbytes + 4 * product.m * product.n, make, 0.0)


def torch_rms_norm(setting: Setting) -> LibraryWork:
    """`torch.nn.functional.rms_norm`."""
    torch, (x, weight) = setting.libraries.named("torch"), setting.operands
    (eps,) = setting.inputs.scalars.values()

    def make() -> Set:
        on_x, on_weight = _on_gpu(setting, torch, x, weight)
        norm = torch.nn.functional.rms_norm
        return _torch_call(setting, torch, lambda: norm(on_x, (x.shape[-1],), on_weight, eps))

    return _own_memory(2 * x.nbytes + weight.nbytes, make, 1e-5)


def torch_attention(setting: Setting) -> LibraryWork:
    """`torch.nn.functional.scaled_dot_product_attention`: one query a head over the cached positions."""
    torch, (query, keys, values) = setting.libraries.named("torch"), setting.operands
    (scale,) = setting.inputs.scalars.values()
    pos = setting.problem["pos"]

    def make() -> Set:
        on_query, on_keys, on_values = _on_gpu(setting, torch, query, keys, values)
        # (heads, d) -> (1, heads, 1, d), and (positions, heads, d) -> (1, heads, positions, d)
        q = on_query[None, :, None, :]
        k, v = (cache[:pos].permute(1, 0, 2)[None] for cache in (on_keys, on_values))
        attend = torch.nn.functional.scaled_dot_product_attention
        return _torch_call(setting, torch, lambda: attend(q, k, v, scale=scale, enable_gqa=True)[0, :, 0])

    return _own_memory(2 * pos * keys[0].nbytes + 2 * query.nbytes, make, 1e-4)


def cupy_affine(setting: Setting) -> LibraryWork:
    """One `cupy.ElementwiseKernel`."""
    cupy, (x,) = setting.libraries.named("cupy"), setting.operands
    scale, bias = (np.float32(value) for value in setting.inputs.scalars.values())
    types = "float32 x, float32 scale, float32 bias"
    affine = cupy.ElementwiseKernel(types, "float32 y", "y = fma(x, scale, bias)", "affine")

    def make() -> Set:
        source, target = cupy.asarray(x), cupy.empty_like(x)
        cupy.cuda.Device().synchronize()

        def call() -> None:
            with _as_refusal("CuPy"), cupy.cuda.ExternalStream(setting.bench.driver.stream):
                affine(source, scale, bias, target)

        return call, lambda: np.asarray(cupy.asnumpy(target))

    return _own_memory(2 * x.nbytes, make, 0.0)


def _own_memory(nbytes: int, make: Callable[[], Set], tolerance: float) -> LibraryWork:
    sets = _Sets(make)
    return LibraryWork(Work(nbytes, sets.call_on), sets.output, tolerance, sets.close)


def _on_gpu(setting: Setting, torch: Any, *arrays: Array) -> list[Any]:
    """Tensors on the bench's GPU, arrived: torch copies them on a stream of its own."""
    tensors = [torch.from_numpy(array).to(f"cuda:{setting.bench.driver.index}") for array in arrays]
    torch.cuda.synchronize(setting.bench.driver.index)
    return tensors


def _torch_call(setting: Setting, torch: Any, expression: Callable[[], Any]) -> Set:
    """An expression on our stream, and its last result."""
    driver = setting.bench.driver
    stream = torch.cuda.ExternalStream(driver.stream, device=f"cuda:{driver.index}")
    results: list[Any] = [None]

    def call() -> None:
        with _as_refusal("torch"), torch.cuda.stream(stream):
            results[0] = expression()

    return call, lambda: np.asarray(results[0].cpu().numpy())


@contextmanager
def _as_refusal(who: str) -> Iterator[None]:
    """Whatever a library raises means that it refuses: each has its own exceptions."""
    try:
        yield
    except CandidateFaultError:
        raise
    except Exception as error:
        raise CandidateFaultError("launch_refused", f"{who} refuses: {error}") from error
