"""Vector loads and stores of words and floats, and small sums of registers."""

from collections.abc import Sequence

from emitters.ptx import F32, R32, Entry, Pred, vector


def load_words(ptx: Entry, opcode: str, address: str, nbytes: int, guard: Pred | None = None) -> list[R32]:
    """4, 8 or 16 bytes as words, by one instruction; zeros where the guard does not hold.

    Args:
        opcode: ``ld.global.nc`` or the like.
    """
    words = ptx.new_rs(nbytes // 4)
    if guard is not None:
        for word in words:
            ptx.op("mov.b32", word, 0)
    if len(words) == 1:
        ptx.op(f"{opcode}.u32", words[0], address, guard=guard)
    else:
        ptx.op(f"{opcode}.v{len(words)}.u32", vector(words), address, guard=guard)
    return words


def load_floats(
    ptx: Entry,
    opcode: str,
    address: str,
    count: int,
    guard: Pred | None = None,
    into: Sequence[F32] | None = None,
) -> list[F32]:
    """1, 2 or 4 neighbouring f32 by one instruction; under a guard they keep what `into` held."""
    values = ptx.new_fs(count) if into is None else list(into)
    if count == 1:
        ptx.op(f"{opcode}.f32", values[0], address, guard=guard)
    else:
        ptx.op(f"{opcode}.v{count}.f32", vector(values), address, guard=guard)
    return values


def store_floats(
    ptx: Entry, opcode: str, address: str, values: Sequence[F32], guard: Pred | None = None
) -> None:
    """1, 2 or 4 neighbouring f32 by one instruction."""
    if len(values) == 1:
        ptx.op(f"{opcode}.f32", address, values[0], guard=guard)
    else:
        ptx.op(f"{opcode}.v{len(values)}.f32", address, vector(values), guard=guard)


def dot(ptx: Entry, left: Sequence[F32], right: Sequence[F32]) -> F32:
    """Sum of products, one after the other: as many roundings as there are terms."""
    total = ptx.f("mul.rn.f32", left[0], right[0])
    for a, b in zip(left[1:], right[1:], strict=True):
        total = ptx.f("fma.rn.f32", a, b, total)
    return total


def chain(ptx: Entry, values: Sequence[F32]) -> F32:
    """Sum, one after the other."""
    total = values[0]
    for value in values[1:]:
        total = ptx.f("add.rn.f32", total, value)
    return total
