"""Integer, bit and comparison instructions against exact Python integers, on edge values."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from ptx_harness import edge_integers, evaluate, every_pair

TYPES = {
    f"{kind}{bits}": ("int" if kind == "s" else "uint") + str(bits) for kind in "us" for bits in (16, 32, 64)
}


def _wrap(value: int, dtype: str) -> int:
    bits = np.iinfo(dtype).bits
    value &= (1 << bits) - 1
    return value - (1 << bits) if np.iinfo(dtype).min < 0 and value >> (bits - 1) else value


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul.lo": lambda a, b: a * b,
    "min": min,
    "max": max,
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("opcode", BINARY)
def test_binary_arithmetic_wraps(opcode: str, name: str) -> None:
    dtype = TYPES[name]
    a, b = every_pair(edge_integers(dtype))
    actual = evaluate(f"{opcode}.{name} %d, %a, %b;", dtype, {"a": a, "b": b})
    expected = [_wrap(BINARY[opcode](int(x), int(y)), dtype) for x, y in zip(a, b, strict=True)]
    assert actual.tolist() == expected


@pytest.mark.parametrize("name", TYPES)
def test_high_product(name: str) -> None:
    dtype = TYPES[name]
    a, b = every_pair(edge_integers(dtype))
    actual = evaluate(f"mul.hi.{name} %d, %a, %b;", dtype, {"a": a, "b": b})
    bits = np.iinfo(dtype).bits
    assert actual.tolist() == [int(x) * int(y) >> bits for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("name", ["u16", "s16", "u32", "s32"])
def test_wide_product_and_sum(name: str) -> None:
    dtype = TYPES[name]
    wide = f"{dtype.rstrip('0123456789')}{np.iinfo(dtype).bits * 2}"
    a, b = every_pair(edge_integers(dtype))
    c = np.resize(edge_integers(wide), len(a))
    actual = evaluate(f"mad.wide.{name} %d, %a, %b, %c;", wide, {"a": a, "b": b, "c": c})
    assert actual.tolist() == [_wrap(int(x) * int(y) + int(z), wide) for x, y, z in zip(a, b, c, strict=True)]


@pytest.mark.parametrize("part", ["lo", "hi"])
@pytest.mark.parametrize("name", TYPES)
def test_multiply_add(name: str, part: str) -> None:
    dtype = TYPES[name]
    a, b = every_pair(edge_integers(dtype))
    c = np.resize(edge_integers(dtype, seed=3), len(a))
    actual = evaluate(f"mad.{part}.{name} %d, %a, %b, %c;", dtype, {"a": a, "b": b, "c": c})
    shift = np.iinfo(dtype).bits if part == "hi" else 0
    expected = [_wrap((int(x) * int(y) >> shift) + int(z), dtype) for x, y, z in zip(a, b, c, strict=True)]
    assert actual.tolist() == expected


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("opcode", ["div", "rem"])
def test_division_truncates_towards_zero(opcode: str, name: str) -> None:
    dtype = TYPES[name]
    a, b = every_pair(edge_integers(dtype))
    a, b = a[b != 0], b[b != 0]
    actual = evaluate(f"{opcode}.{name} %d, %a, %b;", dtype, {"a": a, "b": b})
    expected = []
    for x, y in zip(map(int, a), map(int, b), strict=True):
        quotient = _quotient(x, y)
        expected.append(_wrap(quotient if opcode == "div" else x - y * quotient, dtype))
    assert actual.tolist() == expected


@pytest.mark.parametrize("opcode", ["add", "sub"])
def test_saturating_sum_clamps(opcode: str) -> None:
    a, b = every_pair(edge_integers("int32"))
    actual = evaluate(f"{opcode}.sat.s32 %d, %a, %b;", "int32", {"a": a, "b": b})
    exact = BINARY[opcode]
    expected = [min(max(exact(int(x), int(y)), -(2**31)), 2**31 - 1) for x, y in zip(a, b, strict=True)]
    assert actual.tolist() == expected


@pytest.mark.parametrize("name", ["s16", "s32", "s64"])
def test_sign_changes(name: str) -> None:
    a = edge_integers(TYPES[name])
    for opcode, function in (("neg", lambda x: -x), ("abs", abs)):
        actual = evaluate(f"{opcode}.{name} %d, %a;", TYPES[name], {"a": a})
        assert actual.tolist() == [_wrap(function(int(x)), TYPES[name]) for x in a]


@pytest.mark.parametrize("name", ["u32", "s32"])
def test_sum_of_absolute_difference(name: str) -> None:
    a, b = every_pair(edge_integers(TYPES[name]))
    c = np.resize(edge_integers(TYPES[name], seed=5), len(a))
    actual = evaluate(f"sad.{name} %d, %a, %b, %c;", TYPES[name], {"a": a, "b": b, "c": c})
    expected = [_wrap(abs(int(x) - int(y)) + int(z), TYPES[name]) for x, y, z in zip(a, b, c, strict=True)]
    assert actual.tolist() == expected


@pytest.mark.parametrize("name", ["u32", "s32"])
def test_24_bit_products(name: str) -> None:
    a, b = every_pair(edge_integers(TYPES[name]))

    def low(value: int) -> int:
        value &= 0xFFFFFF
        return value - (1 << 24) if name == "s32" and value >> 23 else value

    for part, shift in (("lo", 0), ("hi", 16)):
        actual = evaluate(f"mul24.{part}.{name} %d, %a, %b;", TYPES[name], {"a": a, "b": b})
        expected = [_wrap(low(int(x)) * low(int(y)) >> shift, TYPES[name]) for x, y in zip(a, b, strict=True)]
        assert actual.tolist() == expected


def _bytes(value: int, signed: bool) -> list[int]:
    return [int.from_bytes(bytes([byte]), "little", signed=signed) for byte in value.to_bytes(4, "little")]


@pytest.mark.parametrize(("x", "y"), [("u32", "u32"), ("u32", "s32"), ("s32", "u32"), ("s32", "s32")])
def test_dot_product_of_bytes(x: str, y: str) -> None:
    a, b = every_pair(edge_integers("uint32"))
    c = np.resize(edge_integers("uint32", seed=2), len(a))
    actual = evaluate(f"dp4a.{x}.{y} %d, %a, %b, %c;", "uint32", {"a": a, "b": b, "c": c})
    expected = [
        (
            sum(p * q for p, q in zip(_bytes(int(u), x == "s32"), _bytes(int(v), y == "s32"), strict=True))
            + int(w)
        )
        & 0xFFFFFFFF
        for u, v, w in zip(a, b, c, strict=True)
    ]
    assert actual.tolist() == expected


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts_clamp_their_amount(bits: int) -> None:
    a, b = every_pair(np.array([0, 1, bits - 1, bits, bits + 1, 255, 2**31, 2**32 - 1, 5], np.uint32))
    values = np.resize(edge_integers(f"uint{bits}"), len(a))
    mask = (1 << bits) - 1
    left = evaluate(f"shl.b{bits} %d, %a, %b;", f"uint{bits}", {"a": values, "b": b})
    right = evaluate(f"shr.u{bits} %d, %a, %b;", f"uint{bits}", {"a": values, "b": b})
    signed = evaluate(f"shr.s{bits} %d, %a, %b;", f"int{bits}", {"a": values, "b": b})
    for v, n, x, y, z in zip(map(int, values), map(int, b), left, right, signed, strict=True):
        assert int(x) == (v << min(n, bits)) & mask
        assert int(y) == v >> min(n, bits)
        assert int(z) == _wrap(v, f"int{bits}") >> min(n, bits)


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
@pytest.mark.parametrize("side", ["l", "r"])
def test_funnel_shift(side: str, mode: str) -> None:
    a, b = every_pair(edge_integers("uint32"))
    c = np.resize(np.array([0, 1, 31, 32, 33, 40, 17], np.uint32), len(a))
    actual = evaluate(f"shf.{side}.{mode}.b32 %d, %a, %b, %c;", "uint32", {"a": a, "b": b, "c": c})
    for x, y, n, d in zip(map(int, a), map(int, b), map(int, c), actual, strict=True):
        amount = min(n, 32) if mode == "clamp" else n & 31
        both = y << 32 | x
        assert int(d) == ((both << amount) >> 32 & 0xFFFFFFFF if side == "l" else both >> amount & 0xFFFFFFFF)


@pytest.mark.parametrize("table", range(256))
def test_lop3_is_its_truth_table(table: int) -> None:
    a, b, c = (np.array([word], np.uint32) for word in (0xF0F0AA55, 0xCCCC1234, 0xAAAA00FF))
    actual = int(evaluate(f"lop3.b32 %d, %a, %b, %c, {table};", "uint32", {"a": a, "b": b, "c": c})[0])
    for bit in range(32):
        row = (int(a[0]) >> bit & 1) << 2 | (int(b[0]) >> bit & 1) << 1 | (int(c[0]) >> bit & 1)
        assert actual >> bit & 1 == table >> row & 1


@pytest.mark.parametrize(
    "selector", [0x3210, 0x7654, 0x5410, 0x0123, 0x9BDF, 0x8888, 0x6240, 0x1032, 0x7531, 0x4440]
)
def test_prmt_with_a_literal_selector_equals_one_in_a_register(selector: int) -> None:
    a, b = every_pair(edge_integers("uint32"))
    fixed = evaluate(f"prmt.b32 %d, %a, %b, {selector};", "uint32", {"a": a, "b": b})
    picks = np.full(len(a), selector, np.uint32)
    register = evaluate("prmt.b32 %d, %a, %b, %c;", "uint32", {"a": a, "b": b, "c": picks})
    for x, y, f, r in zip(map(int, a), map(int, b), fixed, register, strict=True):
        source = (y << 32 | x).to_bytes(8, "little")
        expected = bytes(
            (source[n & 7] if n < 8 else 255 * (source[n & 7] >> 7))
            for n in (selector >> 4 * k & 15 for k in range(4))
        )
        assert int(f) == int(r) == int.from_bytes(expected, "little")


def test_prmt_of_a_literal_table() -> None:
    selectors = edge_integers("uint32", more=200)
    actual = evaluate("prmt.b32 %d, 0x00FF0100, 0x80402010, %a;", "uint32", {"a": selectors})
    source = bytes([0x00, 0x01, 0xFF, 0x00, 0x10, 0x20, 0x40, 0x80])
    for selector, found in zip(map(int, selectors), actual, strict=True):
        picks = [selector >> 4 * k & 15 for k in range(4)]
        expected = bytes(source[n] if n < 8 else 255 * (source[n & 7] >> 7) for n in picks)
        assert int(found) == int.from_bytes(expected, "little")


@pytest.mark.parametrize(
    ("mode", "rows"),
    [
        ("f4e", (0x3210, 0x4321, 0x5432, 0x6543)),
        ("b4e", (0x5670, 0x6701, 0x7012, 0x0123)),
        ("rc8", (0x0000, 0x1111, 0x2222, 0x3333)),
        ("ecl", (0x3210, 0x3211, 0x3222, 0x3333)),
        ("ecr", (0x0000, 0x1110, 0x2210, 0x3210)),
        ("rc16", (0x1010, 0x3232, 0x1010, 0x3232)),
    ],
)
def test_prmt_modes_follow_the_table_of_the_isa(mode: str, rows: tuple[int, ...]) -> None:
    a, b = np.full(4, 0x33221100, np.uint32), np.full(4, 0x77665544, np.uint32)
    actual = evaluate(
        f"prmt.b32.{mode} %d, %a, %b, %c;", "uint32", {"a": a, "b": b, "c": np.arange(4, dtype=np.uint32)}
    )
    for row, found in zip(rows, actual, strict=True):
        assert f"{int(found):08x}" == "".join(f"{n}{n}" for n in f"{row:04x}")


@pytest.mark.parametrize("name", ["u32", "s32", "u64", "s64"])
def test_bit_field_extract(name: str) -> None:
    dtype = TYPES[name]
    bits = np.iinfo(dtype).bits
    positions, lengths = every_pair(
        np.array([0, 1, 4, bits - 8, bits - 1, bits, bits + 3, 255, 256], np.uint32)
    )
    a = np.resize(edge_integers(dtype), len(positions))
    actual = evaluate(f"bfe.{name} %d, %a, %b, %c;", dtype, {"a": a, "b": positions, "c": lengths})
    for value, position, length, found in zip(
        map(int, a), map(int, positions), map(int, lengths), actual, strict=True
    ):
        raw, pos, count = value & ((1 << bits) - 1), position & 255, length & 255
        signed = name[0] == "s" and count > 0
        top = raw >> min(pos + count - 1, bits - 1) & 1 if signed else 0
        field = sum((raw >> (i + pos) & 1 if i < count and pos + i < bits else top) << i for i in range(bits))
        assert int(found) == _wrap(field, dtype)


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_field_insert(bits: int) -> None:
    positions, lengths = every_pair(np.array([0, 1, 5, bits - 4, bits - 1, bits, 200, 255, 256], np.uint32))
    a = np.resize(edge_integers(f"uint{bits}"), len(positions))
    b = np.resize(edge_integers(f"uint{bits}", seed=9), len(positions))
    operands = {"a": a, "b": b, "c": positions, "e": lengths}
    actual = evaluate(f"bfi.b{bits} %d, %a, %b, %c, %e;", f"uint{bits}", operands)
    for x, y, position, length, found in zip(
        map(int, a), map(int, b), positions, lengths, actual, strict=True
    ):
        pos, count, expected = int(position) & 255, int(length) & 255, y
        for i in range(count):
            if pos + i < bits:
                expected = expected & ~(1 << (pos + i)) | (x >> i & 1) << (pos + i)
        assert int(found) == expected


@pytest.mark.parametrize("bits", [32, 64])
def test_bit_counts(bits: int) -> None:
    a = edge_integers(f"uint{bits}", more=40)
    words = [int(value) for value in a]
    assert evaluate(f"popc.b{bits} %d, %a;", "uint32", {"a": a}).tolist() == [w.bit_count() for w in words]
    assert evaluate(f"clz.b{bits} %d, %a;", "uint32", {"a": a}).tolist() == [
        bits - w.bit_length() for w in words
    ]
    reverse = [int(f"{w:0{bits}b}"[::-1], 2) for w in words]
    assert evaluate(f"brev.b{bits} %d, %a;", f"uint{bits}", {"a": a}).tolist() == reverse
    found = [w.bit_length() - 1 if w else 0xFFFFFFFF for w in words]
    assert evaluate(f"bfind.u{bits} %d, %a;", "uint32", {"a": a}).tolist() == found
    flipped = [w if w >> (bits - 1) == 0 else ~w & ((1 << bits) - 1) for w in words]
    signed = [w.bit_length() - 1 if w else 0xFFFFFFFF for w in flipped]
    assert evaluate(f"bfind.s{bits} %d, %a;", "uint32", {"a": a}).tolist() == signed


def test_logic_on_registers_and_predicates() -> None:
    a, b = every_pair(edge_integers("uint32"))
    p, q = a % 3 == 0, b % 2 == 0
    for name, function in (("and", np.bitwise_and), ("or", np.bitwise_or), ("xor", np.bitwise_xor)):
        assert np.array_equal(evaluate(f"{name}.b32 %d, %a, %b;", "uint32", {"a": a, "b": b}), function(a, b))
        assert np.array_equal(evaluate(f"{name}.pred %d, %p, %q;", "bool", {"p": p, "q": q}), function(p, q))
    assert np.array_equal(evaluate("not.b32 %d, %a;", "uint32", {"a": a}), ~a)
    assert np.array_equal(evaluate("not.pred %d, %p;", "bool", {"p": p}), ~p)
    assert np.array_equal(evaluate("cnot.b32 %d, %a;", "uint32", {"a": a}), (a == 0).astype(np.uint32))


@pytest.mark.parametrize("name", TYPES)
def test_comparisons(name: str) -> None:
    a, b = every_pair(edge_integers(TYPES[name]))
    for opcode, function in (
        ("eq", np.equal),
        ("ne", np.not_equal),
        ("lt", np.less),
        ("le", np.less_equal),
        ("gt", np.greater),
        ("ge", np.greater_equal),
    ):
        assert np.array_equal(
            evaluate(f"setp.{opcode}.{name} %d, %a, %b;", "bool", {"a": a, "b": b}), function(a, b)
        )


def test_comparison_combined_with_a_predicate_gives_both_results() -> None:
    a, b = every_pair(edge_integers("int32"))
    p = a % 3 == 0
    text = "setp.lt.and.s32 %d|%q, %a, %b, !%p;"
    operands = {"a": a, "b": b, "p": p}
    first = evaluate(text, "bool", operands, ".reg .pred %q;")
    second = evaluate(text.replace("%d|%q", "%q|%d"), "bool", operands, ".reg .pred %q;")
    assert np.array_equal(first, (a < b) & ~p)
    assert np.array_equal(second, (a >= b) & ~p)


def test_selection() -> None:
    a, b = every_pair(edge_integers("uint64"))
    p = a % 2 == 0
    actual = evaluate("selp.b64 %d, %a, %b, %p;", "uint64", {"a": a, "b": b, "p": p})
    assert np.array_equal(actual, np.where(p, a, b))
    c = np.resize(edge_integers("int32"), len(a))
    actual = evaluate("slct.u64.s32 %d, %a, %b, %c;", "uint64", {"a": a, "b": b, "c": c})
    assert np.array_equal(actual, np.where(c >= 0, a, b))


@pytest.mark.parametrize("target", [*TYPES, "u8", "s8"])
@pytest.mark.parametrize("source", TYPES)
@pytest.mark.parametrize("saturate", ["", ".sat"])
def test_integer_conversions(source: str, target: str, saturate: str) -> None:
    wanted = TYPES.get(target, {"u8": "uint8", "s8": "int8"}.get(target, ""))
    stored = TYPES.get(target, {"u8": "uint16", "s8": "int16"}.get(target, ""))
    a = edge_integers(TYPES[source])
    actual = evaluate(f"cvt{saturate}.{target}.{source} %d, %a;", stored, {"a": a})
    info = np.iinfo(wanted)
    expected = [min(max(int(x), info.min), info.max) if saturate else _wrap(int(x), wanted) for x in a]
    assert actual.tolist() == expected


def test_moves_pack_and_unpack() -> None:
    a, b = every_pair(edge_integers("uint32"))
    packed = evaluate("mov.b64 %d, {%a, %b};", "uint64", {"a": a, "b": b})
    assert np.array_equal(packed, a.astype(np.uint64) | b.astype(np.uint64) << np.uint64(32))
    high = evaluate("mov.b64 {_, %d}, %a;", "uint32", {"a": packed})
    assert np.array_equal(high, b)
    halves = evaluate("{ .reg .b16 l, h; mov.b32 {l, h}, %a; mov.b32 %d, {h, l}; }", "uint32", {"a": a})
    assert np.array_equal(halves, a >> np.uint32(16) | a << np.uint32(16))


def test_carry_chains_are_wide_sums_and_differences() -> None:
    a, b = every_pair(edge_integers("uint64"))
    words = "{ .reg .b32 a<2>, b<2>, d<2>; mov.b64 {a0, a1}, %a; mov.b64 {b0, b1}, %b; "
    done = "mov.b64 %d, {d0, d1}; }"
    total = evaluate(
        words + "add.cc.u32 d0, a0, b0; addc.u32 d1, a1, b1; " + done, "uint64", {"a": a, "b": b}
    )
    assert np.array_equal(total, a + b)
    difference = evaluate(
        words + "sub.cc.u32 d0, a0, b0; subc.u32 d1, a1, b1; " + done, "uint64", {"a": a, "b": b}
    )
    assert np.array_equal(difference, a - b)
    product = (
        "mul.lo.u32 d0, a0, b0; mul.hi.u32 d1, a0, b0; mad.lo.u32 d1, a0, b1, d1; mad.lo.u32 d1, a1, b0, d1; "
    )
    assert np.array_equal(evaluate(words + product + done, "uint64", {"a": a, "b": b}), a * b)
    chain = "mov.u32 d1, 0; mad.lo.cc.u32 d0, a0, b0, a1; madc.hi.u32 d1, a0, b0, d1; "
    low, one = np.uint64(0xFFFFFFFF), np.uint64(32)
    expected = (a & low) * (b & low) + (a >> one)
    assert np.array_equal(evaluate(words + chain + done, "uint64", {"a": a, "b": b}), expected)


def test_masks_and_extensions_of_some_bits() -> None:
    a, b = every_pair(np.array([0, 1, 5, 16, 31, 32, 33, 255], np.uint32))
    for mode in ("clamp", "wrap"):
        masks = evaluate(f"bmsk.{mode}.b32 %d, %a, %b;", "uint32", {"a": a, "b": b})
        value = np.resize(edge_integers("uint32"), len(a))
        kept = evaluate(f"szext.{mode}.u32 %d, %a, %b;", "uint32", {"a": value, "b": b})
        signed = evaluate(f"szext.{mode}.s32 %d, %a, %b;", "int32", {"a": value, "b": b})
        for x, y, v, mask, low, number in zip(a, b, value, masks, kept, signed, strict=True):
            start, width = (min(int(n), 32) if mode == "clamp" else int(n) & 31 for n in (x, y))
            assert int(mask) == ((1 << width) - 1) << start & 0xFFFFFFFF
            field = int(v) & ((1 << width) - 1)
            assert int(low) == field
            assert int(number) == (field - (1 << width) if width and field >> (width - 1) else field)


def test_nth_set_bit() -> None:
    masks = np.array([0xF0F0, 1, 0, 0x80000001, 0xFFFFFFFF, 0x12345678], np.uint32)
    for base, offset in ((0, 1), (0, 3), (31, -1), (12, -2), (4, 0), (5, 0)):
        found = evaluate(f"fns.b32 %d, %a, {base}, {offset};", "uint32", {"a": masks})
        for mask, position in zip(map(int, masks), found, strict=True):
            order = range(base, 32) if offset > 0 else range(base, -1, -1)
            bits = [bit for bit in order if mask >> bit & 1]
            if offset == 0:
                expected = base if mask >> base & 1 else 0xFFFFFFFF
            else:
                expected = bits[abs(offset) - 1] if len(bits) >= abs(offset) else 0xFFFFFFFF
            assert int(position) == expected


@pytest.mark.parametrize("half", ["lo", "hi"])
def test_dot_product_of_halves_and_bytes(half: str) -> None:
    a, b = every_pair(edge_integers("uint32"))
    found = evaluate(f"dp2a.{half}.s32.u32 %d, %a, %b, 7;", "int32", {"a": a, "b": b})
    first = 0 if half == "lo" else 2
    for x, y, d in zip(a, b, found, strict=True):
        halves = np.frombuffer(int(x).to_bytes(4, "little"), np.int16).tolist()
        chosen = int(y).to_bytes(4, "little")[first : first + 2]
        assert int(d) == _wrap(sum(p * q for p, q in zip(halves, chosen, strict=True)) + 7, "int32")


def test_set_gives_all_ones_or_one() -> None:
    a, b = every_pair(edge_integers("int32"))
    p = a % 2 == 0
    found = evaluate("set.lt.u32.s32 %d, %a, %b;", "uint32", {"a": a, "b": b})
    assert np.array_equal(found, np.where(a < b, 0xFFFFFFFF, 0))
    found = evaluate("set.ge.and.f32.s32 %d, %a, %b, %p;", "float32", {"a": a, "b": b, "p": p})
    assert np.array_equal(found, ((a >= b) & p).astype(np.float32))


def test_packed_comparison_gives_a_predicate_a_half() -> None:
    a = np.array([0x3C004000, 0x40003C00, 0x3C003C00], np.uint32)  # (2, 1), (1, 2), (1, 1) as low, high
    one = np.full(3, 0x3C003C00, np.uint32)
    text = "setp.gt.f16x2 %d|%q, %a, %b;"
    low = evaluate(text, "bool", {"a": a, "b": one}, ".reg .pred %q;")
    high = evaluate(text.replace("%d|%q", "%q|%d"), "bool", {"a": a, "b": one}, ".reg .pred %q;")
    assert (low.tolist(), high.tolist()) == ([True, False, False], [False, True, False])


def test_products_and_sums_with_carry_saturate_or_not() -> None:
    a, b = every_pair(edge_integers("int32"))
    c = np.resize(edge_integers("int32", seed=4), len(a))
    found = evaluate("mad.hi.sat.s32 %d, %a, %b, %c;", "int32", {"a": a, "b": b, "c": c})
    expected = [
        min(max((int(x) * int(y) >> 32) + int(z), -(2**31)), 2**31 - 1)
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert found.tolist() == expected


@pytest.mark.parametrize("opcode", ["add", "sub", "min", "max"])
def test_packed_integers_are_two_separate_operations(opcode: str) -> None:
    a, b = every_pair(edge_integers("uint32", more=20))
    found = evaluate(f"{opcode}.s16x2 %d, %a, %b;", "uint32", {"a": a, "b": b}).view(np.int16)
    pairs = zip(a.view(np.int16).tolist(), b.view(np.int16).tolist(), strict=True)
    assert found.tolist() == [_wrap(BINARY[opcode](x, y), "int16") for x, y in pairs]
