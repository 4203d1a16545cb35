"""The binding of cuBLAS, against a library with the prototypes of cublas_api.h that notes its arguments."""

import ctypes
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tuner.devices.cublas import WORKSPACE_BYTES, Cublas, CublasError
from tuner.library_calls import InstalledLibraries, LibraryMissingError

SOURCE = """
#include <stddef.h>
typedef struct context *cublasHandle_t;
long long seen[32];
int status;
int cublasCreate_v2(cublasHandle_t *handle) { *handle = (cublasHandle_t)0x7f0012345678; return status; }
int cublasDestroy_v2(cublasHandle_t handle) { seen[0] = (long long)handle; return status; }
int cublasSetStream_v2(cublasHandle_t handle, void *stream) {
    seen[0] = (long long)handle; seen[1] = (long long)stream; seen[2] = 0; return status; }
int cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t nbytes) {
    seen[2] = (long long)workspace; seen[3] = (long long)nbytes; return status; }
int cublasGemmEx(cublasHandle_t handle, int transa, int transb, int m, int n, int k, const void *alpha,
                 const void *A, int Atype, int lda, const void *B, int Btype, int ldb, const void *beta,
                 void *C, int Ctype, int ldc, int computeType, int algo) {
    long long all[] = {
        (long long)handle, transa, transb, m, n, k, (long long)alpha, (long long)A, Atype, lda, (long long)B,
        Btype, ldb, (long long)beta, (long long)C, Ctype, ldc, computeType, algo};
    for (int i = 0; i < 19; i++) seen[i] = all[i];
    return status; }
"""
FAR = 0x7F00_0000_0000  # addresses that do not fit into 32 bits


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    place: Path = tmp_path_factory.mktemp("cublas")
    (place / "stub.c").write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", place / "stub.so", place / "stub.c"], check=True)
    return ctypes.CDLL(str(place / "stub.so"))


def seen(library: ctypes.CDLL, count: int) -> list[int]:
    return list((ctypes.c_longlong * count).in_dll(library, "seen"))


def test_arguments_arrive_where_the_prototypes_have_them(library: ctypes.CDLL) -> None:
    cublas = Cublas(library)
    handle = cublas.create(FAR + 1, FAR + 2)
    assert seen(library, 4) == [0x7F0012345678, FAR + 1, FAR + 2, WORKSPACE_BYTES]  # the workspace comes last
    cublas.gemm_ex(
        handle,
        (1, 0),
        (11, 12, 13),
        FAR + 3,
        (FAR + 4, 3, 14),
        (FAR + 5, 2, 15),
        FAR + 6,
        (FAR + 7, 10, 16),
        72,
        -1,
    )
    expected = [
        handle,
        1,
        0,
        11,
        12,
        13,
        FAR + 3,
        FAR + 4,
        3,
        14,
        FAR + 5,
        2,
        15,
        FAR + 6,
        FAR + 7,
        10,
        16,
        72,
        -1,
    ]
    assert seen(library, 19) == expected
    cublas.destroy(handle)


def test_a_status_has_its_name(library: ctypes.CDLL) -> None:
    cublas, status = Cublas(library), ctypes.c_int.in_dll(library, "status")
    try:
        for number, name in ((15, "CUBLAS_STATUS_NOT_SUPPORTED"), (99, "cuBLAS status 99")):
            status.value = number
            with pytest.raises(CublasError, match=name):
                cublas.create(1, 2)
    finally:
        status.value = 0


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed")
def test_without_cupy_there_is_none() -> None:
    with pytest.raises(LibraryMissingError, match="cuBLAS does not load: No module named 'cupy'"):
        InstalledLibraries().cublas()
