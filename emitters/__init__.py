"""Parametric PTX emitters: one file a kernel family, and the table of all kernels.

Other packages add kernels through the entry-point group ``tune.kernels``: an entry point names an object with
the attributes ``kernel`` (an `emitters.kernel.Kernel`) and ``space`` (a `search_spaces.space.Space`).
"""

import difflib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from emitters.affine import AFFINE_F32
from emitters.gemm import GEMM_S8, TERNARY_GEMM_S8
from emitters.gemm_dw import HSLM_DW_S8
from emitters.gemm_dx import HSLM_DX_S8
from emitters.kernel import Kernel
from emitters.q4k_gemv import Q4K_GEMV
from emitters.q4k_soa_wmma import Q4K_SOA_WMMA
from emitters.q6k_gemv import Q6K_SOA_GEMV
from emitters.rmsnorm import RMSNORM
from emitters.sdpa import SDPA_DECODE
from emitters.wmma_gemv import WMMA_GEMV

ENTRY_POINT_GROUP = "tune.kernels"

_OWN: tuple[Kernel[Any], ...] = (
    TERNARY_GEMM_S8,
    GEMM_S8,
    HSLM_DX_S8,
    HSLM_DW_S8,
    AFFINE_F32,
    RMSNORM,
    Q4K_GEMV,
    Q4K_SOA_WMMA,
    Q6K_SOA_GEMV,
    WMMA_GEMV,
    SDPA_DECODE,
)


class UnknownKernelError(ValueError):
    """A kernel name that neither this package nor an installed one has."""


class KernelTable(Mapping[str, Kernel[Any]]):
    """Kernels by id. Those of other packages are loaded when the table is first looked at."""

    @property
    def _kernels(self) -> dict[str, Kernel[Any]]:
        return _all_kernels()

    def __getitem__(self, name: str) -> Kernel[Any]:
        return self._kernels[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)


KERNELS = KernelTable()


def kernel_named(name: str) -> Kernel[Any]:
    """The kernel of that id or alias; a hyphen counts as an underscore.

    Raises:
        UnknownKernelError: With the nearest names.
    """
    wanted = name.replace("-", "_")
    names: dict[str, Kernel[Any]] = {}
    for kernel in KERNELS.values():
        names |= dict.fromkeys((kernel.id, *kernel.aliases), kernel)
    if wanted in names:
        return names[wanted]
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.4) or list(names)
    raise UnknownKernelError(f"unknown kernel {name!r}; did you mean {', '.join(near)}?")


@cache
def _all_kernels() -> dict[str, Kernel[Any]]:
    kernels = {kernel.id: kernel for kernel in _OWN}
    for point in entry_points(group=ENTRY_POINT_GROUP):
        kernel: Kernel[Any] = point.load().kernel
        if kernel.id in kernels:
            raise ValueError(
                f"entry point {point.name!r} adds the kernel {kernel.id!r}, which exists already"
            )
        kernels[kernel.id] = kernel
    return kernels
