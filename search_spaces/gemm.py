"""The search spaces of the forward GEMM family."""

from dataclasses import replace

from emitters.gemm import GEMM_S8, TERNARY_GEMM_S8
from emitters.gemm_rules import DENSE, TERNARY, rules
from emitters.gemm_schedule import DenseSchedule, GemmSchedule, Geometry
from emitters.target import WARP, Target
from search_spaces import gemm_outline
from search_spaces.gemm_family import CODES, from_rules, parameters, preferences
from search_spaces.space import Constraint, Service, Space


def ternary_gemm_s8_space(target: Target) -> Space:
    """Schedules of `ternary_gemm_s8` worth trying on a target."""
    return Space(
        kernel=TERNARY_GEMM_S8.id,
        parameters=parameters(CODES),
        constraints=(*from_rules(rules(GemmSchedule)), *preferences(TERNARY, _copies_of_codes())),
        target=target,
        service=Service(("copy_bytes", "weight_layout"), _served),
        outliner=gemm_outline.outliner(TERNARY, gemm_outline.TERNARY),
    )


def gemm_s8_space(target: Target) -> Space:
    """Schedules of `gemm_s8` worth trying on a target."""
    return Space(
        kernel=GEMM_S8.id,
        parameters=parameters(),
        constraints=(*from_rules(rules(DenseSchedule)), *preferences(DENSE, _copies_of_rows())),
        target=target,
        outliner=gemm_outline.outliner(DENSE, gemm_outline.DENSE),
    )


def _served(copy_bytes: int, weight_layout: str) -> str:
    schedule = replace(TERNARY_GEMM_S8.baseline, copy_bytes=copy_bytes, weight_layout=weight_layout)
    return Geometry(schedule).valid


def _copies_of_codes() -> Constraint:
    def holds(n: int, wm: int, wn: int, k: int, width: int, layout: str, _: Target) -> bool:
        copies, threads = n * k // 4 // width, WARP * wm * wn
        return copies <= 4 * threads and (layout == "fragment" or threads <= 4 * copies)

    return Constraint(
        "copies-a-thread",
        ("tile_n", "warps_m", "warps_n", "tile_k", "copy_bytes", "weight_layout"),
        holds,
        "plain codes: a width of copies that leaves over 3 in 4 threads without one is shared out better by "
        "a narrower one; and none may give a thread more than four",
    )


def _copies_of_rows() -> Constraint:
    def holds(m: int, n: int, wm: int, wn: int, k: int, width: int, _: Target) -> bool:
        return width == 16 or (m + n) * k // width <= 16 * WARP * wm * wn

    return Constraint(
        "copies-a-thread",
        ("tile_m", "tile_n", "warps_m", "warps_n", "tile_k", "copy_bytes"),
        holds,
        "narrow copies must not make more than sixteen a thread and k-step",
    )
