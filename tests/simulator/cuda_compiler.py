"""CUDA C++ to PTX through NVRTC (wheel `nvidia-cuda-nvrtc`), called by ctypes: another compiler's PTX as
evidence.
"""

from __future__ import annotations

import ctypes
import importlib.util
from functools import cache, lru_cache
from pathlib import Path


class CompileError(RuntimeError):
    """NVRTC refused the source; the message is its log."""


@cache
def _toolkit() -> Path | None:
    spec = importlib.util.find_spec("nvidia.cu13")
    if spec is None or spec.submodule_search_locations is None:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _library_path() -> Path | None:
    root = _toolkit()
    found = sorted(root.glob("lib/libnvrtc.so*")) if root is not None else []
    return found[0] if found else None


def available() -> bool:
    """Whether NVRTC is installed."""
    return _library_path() is not None


@cache
def _nvrtc() -> ctypes.CDLL:
    return ctypes.CDLL(str(_library_path()))


@lru_cache(maxsize=64)
def compile_cuda(source: str, arch: str = "sm_80", options: tuple[str, ...] = ()) -> str:
    """Return the PTX of a source; entries are to be `extern "C"`."""
    library, root = _nvrtc(), _toolkit()
    program = ctypes.c_void_p()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    arguments = [
        f"--gpu-architecture=compute_{arch.removeprefix('sm_')}",
        f"--include-path={root}/include",
        "--std=c++17",
        "--device-int128",
        "--device-as-default-execution-space",
        *options,
    ]
    array = (ctypes.c_char_p * len(arguments))(*(argument.encode() for argument in arguments))
    result = library.nvrtcCompileProgram(program, len(arguments), array)
    if result != 0:
        size = ctypes.c_size_t()
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        raise CompileError(log.value.decode())
    size = ctypes.c_size_t()
    _check(library.nvrtcGetPTXSize(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _check(library.nvrtcGetPTX(program, text))
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return text.value.decode()


def _check(result: int) -> None:
    if result != 0:
        raise CompileError(f"NVRTC returned {result}")
