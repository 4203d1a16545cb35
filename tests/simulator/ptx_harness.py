"""Runs one or a few PTX instructions on arrays of operands, a thread an element."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.simulator import Launch, Report, simulate

HEAD = ".version 8.7\n.target sm_90a\n.address_size 64\n"


def entry(
    body: str, parameters: Sequence[str] = ("u64 a", "u64 c"), registers: str = "", before: str = ""
) -> str:
    """Return a module with the entry `k`: registers %p, %h, %r, %rd, %f, %fd and the given parameters."""
    declared = ",\n".join(f"  .param .{item.split()[0]} {item.split()[1]}" for item in parameters)
    return f"""{HEAD}{before}
.visible .entry k(
{declared}
)
{{
  .reg .pred %p<16>;
  .reg .b16 %h<32>;
  .reg .b32 %r<96>;
  .reg .b64 %rd<64>;
  .reg .f32 %f<32>;
  .reg .f64 %fd<16>;
  {registers}
{body}
}}
"""


def run(
    text: str,
    buffers: dict[str, NDArray[Any]],
    arguments: tuple[str | int | float, ...] = ("a", "c"),
    *,
    grid: int = 1,
    block: int = 32,
    shared_bytes: int = 0,
    outputs: tuple[str, ...] = ("c",),
    **options: Any,
) -> Report:
    """Launch `k` over one axis."""
    launch = Launch("k", (grid, 1, 1), (block, 1, 1), shared_bytes, arguments)
    return simulate(text, [launch], buffers, outputs=outputs, **options)


def kinds(report: Report) -> list[str]:
    """Return the kinds of a report's faults, in its order."""
    return [fault.kind for fault in report.faults]


def evaluate(
    instruction: str, result: str, operands: dict[str, NDArray[Any]], extra: str = ""
) -> NDArray[Any]:
    """Return what `instruction` writes to %d, element by element.

    Args:
        instruction: PTX text; operands are %a, %b, ... by name, the result is %d.
        result: NumPy type of the result, or "bool" for a predicate.
        operands: Arrays of equal length; booleans become predicates.
        extra: Declarations.
    """
    count = len(next(iter(operands.values())))
    names = list(operands)
    lines = ["mov.u32 %r0, %ctaid.x;", "mov.u32 %r1, %ntid.x;", "mov.u32 %r2, %tid.x;"]
    lines += ["mad.lo.s32 %r3, %r0, %r1, %r2;", "ld.param.u32 %r4, [n];", "setp.ge.u32 %p0, %r3, %r4;"]
    lines += ["@%p0 bra DONE;"]
    declared = [extra]
    for number, name in enumerate(names):
        array = operands[name]
        size = array.dtype.itemsize
        lines += [
            f"ld.param.u64 %rd{number}, [{name}];",
            f"mad.wide.u32 %rd{number}, %r3, {size}, %rd{number};",
        ]
        if array.dtype == bool:
            declared.append(f".reg .pred %{name};")
            lines += [f"ld.global.u8 %h{number}, [%rd{number}];", f"setp.ne.u16 %{name}, %h{number}, 0;"]
        else:
            declared.append(f".reg .b{max(size, 2) * 8} %{name};")
            lines.append(f"ld.global.b{size * 8} %{name}, [%rd{number}];")
    size = 1 if result == "bool" else np.dtype(result).itemsize
    declared.append(".reg .pred %d;" if result == "bool" else f".reg .b{max(size, 2) * 8} %d;")
    lines += [instruction, "ld.param.u64 %rd60, [out];", f"mad.wide.u32 %rd60, %r3, {size}, %rd60;"]
    if result == "bool":
        lines += ["selp.u16 %h30, 1, 0, %d;", "st.global.u8 [%rd60], %h30;"]
    else:
        lines.append(f"st.global.b{size * 8} [%rd60], %d;")
    lines.append("DONE: ret;")
    text = entry(
        "\n".join(lines), [*(f"u64 {name}" for name in names), "u64 out", "u32 n"], "\n".join(declared)
    )
    out = np.zeros(count, np.uint8 if result == "bool" else result)
    report = simulate(
        text,
        [Launch("k", (-(-count // 256), 1, 1), (256, 1, 1), 0, (*names, "out", count))],
        {**operands, "out": out},
        outputs=("out",),
    )
    assert report.faults == (), [str(fault) for fault in report.faults]
    return report.buffers["out"].astype(bool) if result == "bool" else report.buffers["out"]


def every_pair(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return two arrays that hold every ordered pair."""
    first, second = np.meshgrid(values, values, indexing="ij")
    return first.ravel().copy(), second.ravel().copy()


def edge_integers(dtype: str, seed: int = 0, more: int = 12) -> NDArray[Any]:
    """Return extremes, small values, powers of two and random values of an integer type."""
    info = np.iinfo(dtype)
    bits = info.bits
    fixed = {
        0,
        1,
        2,
        3,
        7,
        info.max,
        info.max - 1,
        info.min,
        info.min + 1,
        1 << (bits // 2),
        (1 << (bits - 2)) - 1,
    }
    if info.min < 0:
        fixed |= {-1, -2, -7}
    random = np.random.default_rng(seed).integers(info.min, info.max, more, dtype=dtype, endpoint=True)
    return np.concatenate([np.array(sorted(fixed), dtype), random])


def edge_floats(dtype: str = "float32", seed: int = 0, more: int = 40) -> NDArray[Any]:
    """Return zeros, subnormals, extremes, infinities, NaN, halves, and values over all exponents."""
    info = np.finfo(dtype)
    fixed = [0.0, -0.0, 1.0, -1.0, 1.5, 0.5, -0.5, 2.5, 3.5, info.max, -info.max, info.tiny, -info.tiny]
    fixed += [
        info.smallest_subnormal,
        -info.smallest_subnormal,
        info.tiny / 2,
        np.inf,
        -np.inf,
        np.nan,
        info.eps,
        1 + info.eps,
    ]
    rng = np.random.default_rng(seed)
    spread = rng.standard_normal(more) * 2.0 ** rng.uniform(info.minexp / 2, info.maxexp / 2, more)
    return np.concatenate([np.array(fixed), rng.standard_normal(more), spread]).astype(dtype)
