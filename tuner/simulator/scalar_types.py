"""PTX scalar types and how registers hold them: always as unsigned integers of their width, predicates as
bool.

An instruction views the bits as the type it names, so untyped `.b32` registers need no conversion.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Lanes: TypeAlias = NDArray[Any]
"""A register: shape (B, T), (1, T), (B, 1) or (1, 1) for B blocks of T threads."""


class Scalar(NamedTuple):
    """`kind` is u, s, b (untyped bits), f (floating point) or p (predicate)."""

    name: str
    kind: str
    bits: int
    storage: np.dtype[Any]
    view: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        return max(self.bits // 8, 1)


def _scalars() -> dict[str, Scalar]:
    table = {}
    for bits in (8, 16, 32, 64):
        storage = np.dtype(f"u{bits // 8}")
        for kind in "bus":
            view = np.dtype(f"i{bits // 8}") if kind == "s" else storage
            table[f"{kind}{bits}"] = Scalar(f"{kind}{bits}", kind, bits, storage, view)
    for bits in (16, 32, 64):
        table[f"f{bits}"] = Scalar(
            f"f{bits}", "f", bits, np.dtype(f"u{bits // 8}"), np.dtype(f"f{bits // 8}")
        )
    table["bf16"] = Scalar("bf16", "f", 16, np.dtype("u2"), np.dtype("u2"))
    for packed in ("f16x2", "bf16x2", "u16x2", "s16x2", "e4m3x4", "e5m2x4"):
        table[packed] = Scalar(packed, "b", 32, np.dtype("u4"), np.dtype("u4"))
    for narrow in ("e4m3x2", "e5m2x2"):
        table[narrow] = Scalar(narrow, "b", 16, np.dtype("u2"), np.dtype("u2"))
    table["tf32"] = Scalar("tf32", "b", 32, np.dtype("u4"), np.dtype("f4"))
    table["pred"] = Scalar("pred", "p", 1, np.dtype(bool), np.dtype(bool))
    table["b128"] = Scalar("b128", "b", 128, np.dtype("c16"), np.dtype("c16"))
    return table


SCALARS = _scalars()
PREDICATE = SCALARS["pred"]
B8, B16, B32, B64 = (SCALARS[name] for name in ("b8", "b16", "b32", "b64"))
U32, S32, U64, S64 = (SCALARS[name] for name in ("u32", "s32", "u64", "s64"))
F16, F32, F64, BF16 = (SCALARS[name] for name in ("f16", "f32", "f64", "bf16"))

POISON = 0xFFD5FFEDFFD5FFED
"""What a register or byte holds that the program never wrote; also what an unspecified result is.

It is a NaN as f16, bf16, f32 and f64, so that no factor of zero makes it harmless, and a large odd number.
"""


def poison(dtype: np.dtype[Any]) -> Lanes:
    """Return a (1, 1) array of the poison pattern; predicates are poisoned with True."""
    if dtype == np.dtype(bool):
        return np.ones((1, 1), bool)
    return np.frombuffer(POISON.to_bytes(8, "little") * 2, dtype, 1).reshape(1, 1).copy()
