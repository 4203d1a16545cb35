"""The search space of `hslm_dx_s8`: the forward kernel's parameters, with codes along k."""

from dataclasses import replace

from emitters.gemm_dx import HSLM_DX_S8
from emitters.gemm_dx_schedule import DX, DX_RULES, DxGeometry
from emitters.target import WARP, Target
from search_spaces import gemm_outline
from search_spaces.gemm_family import CODES, from_rules, parameters, preferences
from search_spaces.space import Constraint, Service, Space


def hslm_dx_s8_space(target: Target) -> Space:
    """Schedules of `hslm_dx_s8` worth trying on a target."""
    return Space(
        kernel=HSLM_DX_S8.id,
        parameters=parameters(CODES),
        constraints=(*from_rules(DX_RULES), *preferences(DX, _COPIES)),
        target=target,
        service=Service(("copy_bytes", "weight_layout"), _served),
        outliner=gemm_outline.outliner(DX, gemm_outline.TERNARY_ALONG_K),
    )


def _served(copy_bytes: int, weight_layout: str) -> str:
    schedule = replace(HSLM_DX_S8.baseline, copy_bytes=copy_bytes, weight_layout=weight_layout)
    return DxGeometry(schedule).valid


def _few_copies(n: int, wm: int, wn: int, k: int, width: int, layout: str, _: Target) -> bool:
    copies, threads = n * k // 4 // width, WARP * wm * wn
    return copies <= 4 * threads and (layout == "fragment" or threads <= 4 * copies)


_COPIES = Constraint(
    "copies-a-thread",
    ("tile_n", "warps_m", "warps_n", "tile_k", "copy_bytes", "weight_layout"),
    _few_copies,
    "plain codes: a width of copies that leaves over 3 in 4 threads without one is shared out better by a "
    "narrower one; and none may give a thread more than four",
)
