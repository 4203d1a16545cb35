"""cuBLAS's GEMM through its C interface, on one stream, so that it can be captured in a graph.

CuPy's own wrapper refuses every call while a stream is captured (cupy/cupy issue 6290, as of CuPy 14.2).
Queued one by one from Python, short calls would be timed with what queueing them takes.
"""

import ctypes
import importlib
import os
from typing import Any

WORKSPACE_BYTES = 32 << 20
"""What cuBLAS wants on Hopper and newer; it is content with less before (cuBLAS manual, cublasSetWorkspace).
Given by the caller, because cuBLAS may otherwise allocate in the midst of a capture."""

_SONAMES = ("libcublas.so.13", "libcublas.so.12")

# cublas_api.h, cublasStatus_t
_STATUS = {
    1: "CUBLAS_STATUS_NOT_INITIALIZED",
    3: "CUBLAS_STATUS_ALLOC_FAILED",
    7: "CUBLAS_STATUS_INVALID_VALUE",
    8: "CUBLAS_STATUS_ARCH_MISMATCH",
    11: "CUBLAS_STATUS_MAPPING_ERROR",
    13: "CUBLAS_STATUS_EXECUTION_FAILED",
    14: "CUBLAS_STATUS_INTERNAL_ERROR",
    15: "CUBLAS_STATUS_NOT_SUPPORTED",
}


class CublasError(RuntimeError):
    """A call that cuBLAS refuses; the message is the name of its status."""


class Cublas:
    """The library.

    Args:
        library: It, loaded.
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        pointer, integer = ctypes.c_void_p, ctypes.c_int
        matrix = [pointer, integer, integer]  # address, type, leading dimension
        library.cublasCreate_v2.argtypes = [ctypes.POINTER(pointer)]
        library.cublasDestroy_v2.argtypes = [pointer]
        library.cublasSetStream_v2.argtypes = [pointer, pointer]
        library.cublasSetWorkspace_v2.argtypes = [pointer, pointer, ctypes.c_size_t]
        library.cublasGemmEx.argtypes = [
            pointer,
            *[integer] * 5,  # transa, transb, m, n, k
            pointer,  # alpha
            *matrix,
            *matrix,
            pointer,  # beta
            *matrix,
            *[integer] * 2,  # compute type, algorithm
        ]

    def create(self, stream: int, workspace: int) -> int:
        """A handle that queues on `stream` and works in `workspace`, `WORKSPACE_BYTES` of device memory."""
        handle = ctypes.c_void_p()
        _check(self._library.cublasCreate_v2(ctypes.byref(handle)))
        # In this order: setting the stream takes the workspace away again.
        _check(self._library.cublasSetStream_v2(handle, stream))
        _check(self._library.cublasSetWorkspace_v2(handle, workspace, WORKSPACE_BYTES))
        return handle.value or 0

    def destroy(self, handle: int) -> None:
        _check(self._library.cublasDestroy_v2(handle))

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
        """``cublasGemmEx``: C = alpha op(A) op(B) + beta C, column-major.

        Args:
            handle: From `create`.
            transposed: Of A and B, by cuBLAS's numbers.
            sizes: m, n, k.
            alpha, beta: Addresses on the host.
            a, b, c: Address on the device, type, leading dimension.
            compute_type, algorithm: By cuBLAS's numbers.

        Raises:
            CublasError: cuBLAS refuses.
        """
        _check(
            self._library.cublasGemmEx(
                handle, *transposed, *sizes, alpha, *a, *b, beta, *c, compute_type, algorithm
            )
        )


def installed_cublas() -> Cublas:
    """The cuBLAS that CuPy uses.

    Raises:
        ImportError: CuPy is not installed, or finds no cuBLAS.
        OSError: What CuPy has loaded is none of those known here.
    """
    importlib.import_module("cupy.cuda")
    importlib.import_module("cupy_backends.cuda.libs.cublas")  # loads the library, wherever it is
    for soname in _SONAMES:
        try:
            return Cublas(ctypes.CDLL(soname, mode=os.RTLD_NOLOAD | os.RTLD_NOW))
        except OSError:
            continue
    raise OSError(f"CuPy has loaded none of {', '.join(_SONAMES)}")


def _check(status: int) -> None:
    if status != 0:
        raise CublasError(_STATUS.get(status, f"cuBLAS status {status}"))
