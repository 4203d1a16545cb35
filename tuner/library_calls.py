"""Calls of other people's libraries as work that can be timed: cuBLAS, torch, CuPy.

Dense libraries get dense operands: ternary codes as s8, block formats as f16, which is what a library offers
for them. The reduction lies contiguous where the kernel's own operands allow it, as libraries like it best.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from emitters import kernel_named, quants, ternary
from emitters.kernel import Inputs, Problem
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


@dataclass(frozen=True, slots=True)
class InstalledLibraries:
    """The libraries of this Python."""

    def named(self, module: str) -> Any:
        try:
            return importlib.import_module(module)
        except (ImportError, OSError) as error:  # OSError: a shared library that it needs does not load
            raise LibraryMissingError(f"{module} does not import: {error}") from error


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
        output: What set 0 has computed; None where that is not the kernel's exact result: it is not compared.
        close: Frees what it holds.
    """

    work: Work
    output: Callable[[], Array] | None
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

    def as_f16(self) -> "Product":
        """The same product in f16. Integers are scaled, so that sums of their products do not overflow."""
        scale = np.float32(1 / 64 if self.left.dtype.kind == "i" else 1)
        left, right = ((values * scale).astype(np.float16) for values in (self.left, self.right))
        return Product(self.m, self.n, self.k, left, right, self.left_slow, self.right_slow)


def product_of(setting: Setting) -> Product:
    """The dense product behind a kernel of the GEMM or GEMV family."""
    first, second = setting.operands
    sizes = tuple(setting.problem.sizes.values())
    if setting.kernel in _WEIGHTS:
        rows, columns = sizes
        weights = _WEIGHTS[setting.kernel](first).reshape(rows, columns)
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
    "q4k_gemv": lambda stored: quants.decode_q4_k(_bytes(stored)),
    "q6k_soa_gemv": lambda stored: quants.decode_q6_k(_bytes(stored)),
    "q4k_soa_wmma": lambda stored: quants.decode_soa(_bytes(stored)),
}


def _bytes(stored: Array) -> NDArray[np.uint8]:
    return np.ascontiguousarray(stored).reshape(-1).view(np.uint8)


# cuBLAS


def cublas_s8(setting: Setting) -> LibraryWork:
    """s8 x s8 -> s32."""
    return _cublas(setting, product_of(setting), np.int32, (_R_8I, _R_32I, _COMPUTE_32I))


def cublas_f16(setting: Setting) -> LibraryWork:
    """f16 x f16 -> f16, f32 accumulation."""
    return _cublas(setting, product_of(setting).as_f16(), np.float16, (_R_16F, _R_16F, _COMPUTE_32F))


def _cublas(setting: Setting, product: Product, out: type, types: tuple[int, int, int]) -> LibraryWork:
    """`cublasGemmEx`. Row-major C is column-major C transposed, so the right operand is cuBLAS's first.

    Args:
        setting: Where.
        product: What is computed.
        out: Type of C.
        types: Of the operands, of C, of the computation, by cuBLAS's numbers.
    """
    cublas = setting.libraries.named("cupy_backends.cuda.libs.cublas")
    cuda = setting.libraries.named("cupy.cuda")
    driver = setting.bench.driver
    operand_type, out_type, compute_type = types
    m, n, k = product.m, product.n, product.k
    scalar = np.int32 if compute_type == _COMPUTE_32I else np.float32
    one, zero = np.ones(1, scalar), np.zeros(1, scalar)
    with _as_refusal("cuBLAS"):
        handle = cublas.create()
    memory: list[int] = []
    outputs: list[int] = []

    def room(nbytes: int) -> int:
        memory.append(driver.allocate(nbytes))
        return memory[-1]

    def make() -> Call:
        left, right = room(product.left.nbytes), room(product.right.nbytes)
        driver.upload(left, product.left)
        driver.upload(right, product.right)
        outputs.append(room(m * n * np.dtype(out).itemsize))
        target = outputs[-1]

        def call() -> None:
            # CuPy points the handle at its current stream in every call.
            with _as_refusal("cublasGemmEx"), cuda.ExternalStream(driver.stream):
                cublas.gemmEx(
                    handle,
                    _OP_N if product.right_slow else _OP_T,
                    _OP_T if product.left_slow else _OP_N,
                    n,
                    m,
                    k,
                    one.ctypes.data,
                    right,
                    operand_type,
                    n if product.right_slow else k,
                    left,
                    operand_type,
                    m if product.left_slow else k,
                    zero.ctypes.data,
                    target,
                    out_type,
                    n,
                    compute_type,
                    _GEMM_DEFAULT,
                )

        return call

    def output() -> Array:
        values: Array = np.empty((m, n), out)
        driver.download(outputs[0], values)
        return values

    def close() -> None:
        while memory:
            driver.free(memory.pop())
        cublas.destroy(handle)

    nbytes = product.left.nbytes + product.right.nbytes + m * n * np.dtype(out).itemsize
    return LibraryWork(Work(nbytes, _sets(make)), output if out is np.int32 else None, close)


# torch: brings its own memory, queues on our stream


def torch_int_mm(setting: Setting) -> LibraryWork:
    """`torch._int_mm`: s8 x s8 -> s32."""
    torch = setting.libraries.named("torch")
    product = product_of(setting)
    results: list[Any] = []

    def make() -> Call:
        left, right = (torch.from_numpy(array).to(_on(setting)) for array in (product.left, product.right))
        left = left.t() if product.left_slow else left
        right = right if product.right_slow else right.t()
        out = torch.empty((product.m, product.n), dtype=torch.int32, device=_on(setting))
        results.append(out)
        return _queued(setting, torch, lambda: torch._int_mm(left, right, out=out))

    nbytes = product.left.nbytes + product.right.nbytes + 4 * product.m * product.n
    work = Work(nbytes, _sets(make))
    return LibraryWork(work, lambda: _fetched(results[0]), results.clear)


def torch_rms_norm(setting: Setting) -> LibraryWork:
    """`torch.nn.functional.rms_norm`."""
    torch = setting.libraries.named("torch")
    x, weight = setting.operands
    (eps,) = setting.inputs.scalars.values()

    def make() -> Call:
        on_x, on_weight = (torch.from_numpy(values).to(_on(setting)) for values in (x, weight))
        norm = torch.nn.functional.rms_norm
        return _queued(setting, torch, lambda: norm(on_x, (x.shape[-1],), on_weight, eps))

    return LibraryWork(Work(2 * x.nbytes + weight.nbytes, _sets(make)), None, lambda: None)


def torch_attention(setting: Setting) -> LibraryWork:
    """`torch.nn.functional.scaled_dot_product_attention` of one query a head over the cached positions."""
    torch = setting.libraries.named("torch")
    query, *caches = setting.operands
    pos = setting.problem["pos"]

    def make() -> Call:
        # (heads, d) -> (1, heads, 1, d), and (positions, heads, d) -> (1, heads, positions, d)
        q = torch.from_numpy(query).to(_on(setting))[None, :, None, :]
        k, v = (torch.from_numpy(cache).to(_on(setting))[:pos].permute(1, 0, 2)[None] for cache in caches)
        attend = torch.nn.functional.scaled_dot_product_attention
        return _queued(setting, torch, lambda: attend(q, k, v, enable_gqa=True))

    read = 2 * pos * caches[0][0].nbytes
    return LibraryWork(Work(read + 2 * query.nbytes, _sets(make)), None, lambda: None)


def _on(setting: Setting) -> str:
    return f"cuda:{setting.bench.driver.index}"


def _queued(setting: Setting, torch: Any, expression: Callable[[], Any]) -> Call:
    """A call on our stream. Its operands have arrived first: torch copies them on its default stream."""
    torch.cuda.synchronize()
    stream = torch.cuda.ExternalStream(setting.bench.driver.stream)

    def call() -> None:
        with _as_refusal("torch"), torch.cuda.stream(stream):
            expression()

    return call


def _fetched(tensor: Any) -> Array:
    values: Array = tensor.cpu().numpy()
    return values


# CuPy


def cupy_affine(setting: Setting) -> LibraryWork:
    """One `cupy.ElementwiseKernel`."""
    cupy = setting.libraries.named("cupy")
    (x,) = setting.operands
    scale, bias = (np.float32(value) for value in setting.inputs.scalars.values())
    types = "float32 x, float32 scale, float32 bias"
    affine = cupy.ElementwiseKernel(types, "float32 y", "y = fma(x, scale, bias)", "affine")

    def make() -> Call:
        source, target = cupy.asarray(x), cupy.empty_like(x)
        cupy.cuda.Device().synchronize()

        def call() -> None:
            with _as_refusal("CuPy"), cupy.cuda.ExternalStream(setting.bench.driver.stream):
                affine(source, scale, bias, target)

        return call

    return LibraryWork(Work(2 * x.nbytes, _sets(make)), None, lambda: None)


def _sets(make: Callable[[], Call]) -> Callable[[int], Call]:
    """Calls on sets of operands, each made when first asked for."""
    calls: list[Call] = []

    def call_on(index: int) -> Call:
        while len(calls) <= index:
            calls.append(make())
        return calls[index]

    return call_on


@contextmanager
def _as_refusal(who: str) -> Iterator[None]:
    """Whatever a library raises means that it refuses: each has its own exceptions."""
    try:
        yield
    except CandidateFaultError:
        raise
    except Exception as error:
        raise CandidateFaultError("launch_refused", f"{who} refuses: {error}") from error
