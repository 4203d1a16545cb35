"""Search spaces: which schedules of a kernel are worth trying on a target, and why the others are not."""

from collections.abc import Callable
from importlib.metadata import entry_points

from emitters import ENTRY_POINT_GROUP
from emitters.target import Target
from search_spaces.affine import affine_f32_space
from search_spaces.gemm import gemm_s8_space, ternary_gemm_s8_space
from search_spaces.gemm_dw import hslm_dw_s8_space
from search_spaces.gemm_dx import hslm_dx_s8_space
from search_spaces.q4k_gemv import q4k_gemv_space
from search_spaces.q4k_soa_wmma import q4k_soa_wmma_space
from search_spaces.q6k_gemv import q6k_gemv_space
from search_spaces.rmsnorm import rmsnorm_space
from search_spaces.sdpa import sdpa_decode_space
from search_spaces.space import Space
from search_spaces.wmma_gemv import wmma_gemv_space

_OWN: dict[str, Callable[[Target], Space]] = {
    "ternary_gemm_s8": ternary_gemm_s8_space,
    "gemm_s8": gemm_s8_space,
    "hslm_dx_s8": hslm_dx_s8_space,
    "hslm_dw_s8": hslm_dw_s8_space,
    "affine_f32": affine_f32_space,
    "rmsnorm": rmsnorm_space,
    "q4k_gemv": q4k_gemv_space,
    "q4k_soa_wmma": q4k_soa_wmma_space,
    "q6k_soa_gemv": q6k_gemv_space,
    "wmma_gemv": wmma_gemv_space,
    "sdpa_decode": sdpa_decode_space,
}


def space_for(kernel: str, target: Target) -> Space:
    """The space of a kernel, by id, for a target.

    Raises:
        KeyError: No space has that kernel's id.
    """
    if kernel in _OWN:
        return _OWN[kernel](target)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        plugin = point.load()
        if plugin.kernel.id == kernel:
            space: Space = plugin.space(target)
            return space
    raise KeyError(kernel)
