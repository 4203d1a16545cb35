"""The search space of `hslm_dw_s8`: the forward kernels' parameters, and how operands are transposed."""

from emitters.gemm_dw import HSLM_DW_S8
from emitters.gemm_dw_schedule import DW, DW_RULES, TRANSPOSES
from emitters.target import Target
from search_spaces import gemm_outline
from search_spaces.gemm_family import from_rules, parameters, preferences
from search_spaces.space import Constraint, Parameter, Space

_TRANSPOSE = Parameter("transpose", TRANSPOSES, "nominal", "where the bytes of X and dY are transposed")


def hslm_dw_s8_space(target: Target) -> Space:
    """Schedules of `hslm_dw_s8` worth trying on a target."""
    return Space(
        kernel=HSLM_DW_S8.id,
        parameters=parameters((_TRANSPOSE,)),
        constraints=(*from_rules(DW_RULES), *preferences(DW, _COPIES)),
        target=target,
        outliner=gemm_outline.outliner(DW, gemm_outline.TRANSPOSED, ("m", "n", "rows")),
    )


_COPIES = Constraint(
    "copies-a-thread",
    ("transpose", "copy_bytes"),
    lambda transpose, width, _: width == 16 if transpose == "fragment" else width <= 8,
    "rows that stay as they are have 16-byte alignment in every valid problem: no narrower copy is better; "
    "patches that are transposed in registers are at most 8 bytes wide, or sixteen rows fill the registers",
)
