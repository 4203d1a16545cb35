"""Floating-point instructions against exact rationals rounded once, and approximations at special values."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from ptx_harness import edge_floats, edge_integers, evaluate, every_pair

# precision (bits of significand), smallest exponent of a normal number, largest finite value
FORMATS = {
    "f16": (11, -14, Fraction(65504)),
    "bf16": (8, -126, Fraction(2**128 - 2**120)),
    "f32": (24, -126, Fraction(2**128 - 2**104)),
    "f64": (53, -1022, Fraction(2**1024 - 2**971)),
}
STORED = {"f16": "float16", "f32": "float32", "f64": "float64"}


def rounded(value: Fraction, name: str, mode: str) -> float:
    """Round an exact non-zero value once; infinities as IEEE 754 has them."""
    precision, lowest, largest = FORMATS[name]
    sign, size = (-1 if value < 0 else 1), abs(value)
    exponent = max(math.floor(math.log2(size)) if size > 0 else lowest, lowest)
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    while exponent > lowest and Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** (exponent - precision + 1)
    whole, rest = divmod(size, unit)
    up = {
        "rn": rest * 2 > unit or (rest * 2 == unit and whole % 2 == 1),
        "rna": rest * 2 >= unit,
        "rz": False,
        "rm": rest > 0 and sign < 0,
        "rp": rest > 0 and sign > 0,
    }[mode]
    size = (whole + up) * unit
    if size > largest:
        finite = mode == "rz" or (mode == "rm" and sign > 0) or (mode == "rp" and sign < 0)
        return sign * (float(largest) if finite else math.inf)
    return sign * float(size)


def _same(actual: float, expected: float) -> bool:
    if math.isnan(expected):
        return math.isnan(actual)
    return actual == expected and math.copysign(1, actual) == math.copysign(1, expected)


def _check(
    found: np.ndarray, operands: list[np.ndarray], exact: Callable[..., Fraction], name: str, mode: str
) -> None:
    checked = 0
    for actual, *values in zip(found.tolist(), *(operand.tolist() for operand in operands), strict=True):
        if not all(map(math.isfinite, values)):
            continue
        value = exact(*map(Fraction, values))
        if value != 0:
            assert _same(actual, rounded(value, name, mode)), (values, actual, rounded(value, name, mode))
            checked += 1
    assert checked > 100


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["f32", "f64"])
@pytest.mark.parametrize("opcode", ["add", "sub", "mul"])
def test_arithmetic_rounds_once_in_every_mode(opcode: str, name: str, mode: str) -> None:
    values = edge_floats(STORED[name], more=14)
    if name == "f64":  # error-free transformations hold away from the ends of the exponent range
        values = values[(np.abs(values) < 1e150) & ((np.abs(values) > 1e-130) | (values == 0))]
    a, b = every_pair(values)
    found = evaluate(f"{opcode}.{mode}.{name} %d, %a, %b;", STORED[name], {"a": a, "b": b})
    exact = {"add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y}[opcode]
    _check(found, [a, b], exact, name, mode)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_fma_rounds_once_in_every_mode(name: str, mode: str) -> None:
    values = edge_floats(STORED[name], more=12)
    if name == "f64":
        values = values[(np.abs(values) < 1e75) & ((np.abs(values) > 1e-75) | (values == 0))]
    a, b = every_pair(values)
    c = np.roll(np.resize(values, len(a)), 5)
    with np.errstate(all="ignore"):
        near = -(a.astype(np.float64) * b).astype(a.dtype)  # cancellation leaves the error of the product
    c = np.where((np.arange(len(a)) % 3 == 0) & np.isfinite(near), near, c).astype(a.dtype)
    found = evaluate(f"fma.{mode}.{name} %d, %a, %b, %c;", STORED[name], {"a": a, "b": b, "c": c})
    _check(found, [a, b, c], lambda x, y, z: x * y + z, name, mode)


def test_fma_differs_from_a_product_and_a_sum() -> None:
    a, b, c = (
        np.array([x], np.float32)
        for x in (2.0**-12 * (1 + 2.0**-23), 2.0**-12 * (1 - 2.0**-23), 1 + 2.0**-23)
    )
    fused = evaluate("fma.rn.f32 %d, %a, %b, %c;", "float32", {"a": a, "b": b, "c": c})[0]
    exact = Fraction(float(a[0])) * Fraction(float(b[0])) + Fraction(float(c[0]))
    assert float(fused) == rounded(exact, "f32", "rn")


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("name", ["f32", "f64"])
def test_quotients_and_reciprocals_round_once(name: str, mode: str) -> None:
    values = edge_floats(STORED[name], more=14)
    if name == "f64":
        values = values[(np.abs(values) < 1e75) & (np.abs(values) > 1e-75)]
    a, b = every_pair(values[values != 0])
    found = evaluate(f"div.{mode}.{name} %d, %a, %b;", STORED[name], {"a": a, "b": b})
    _check(found, [a, b], lambda x, y: x / y, name, mode)
    inverse = evaluate(f"rcp.{mode}.{name} %d, %a;", STORED[name], {"a": a})
    _check(inverse, [a], lambda x: 1 / x, name, mode)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_square_roots_round_once(mode: str) -> None:
    a = np.abs(edge_floats("float32", more=200))
    a = a[np.isfinite(a) & (a > 0)]
    found = evaluate(f"sqrt.{mode}.f32 %d, %a;", "float32", {"a": a})
    for x, y in zip(a.tolist(), found.tolist(), strict=True):
        below, above = (
            Fraction(float(np.nextafter(np.float32(y), np.float32(0)))),
            Fraction(float(np.nextafter(np.float32(y), np.float32(np.inf)))),
        )
        root, exact = Fraction(y), Fraction(x)
        if mode == "rn":
            assert ((below + root) / 2) ** 2 <= exact <= ((root + above) / 2) ** 2
        elif mode == "rp":
            assert below**2 < exact <= root**2
        else:
            assert root**2 <= exact < above**2


@pytest.mark.parametrize("name", ["f16", "f32", "f64"])
def test_special_operands(name: str) -> None:
    a, b = every_pair(np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan], STORED[name]))
    with np.errstate(all="ignore"):
        for opcode, function in (("add", np.add), ("mul", np.multiply)):
            found = evaluate(f"{opcode}.rn.{name} %d, %a, %b;", STORED[name], {"a": a, "b": b})
            for actual, expected in zip(found.tolist(), function(a, b).tolist(), strict=True):
                assert _same(actual, expected)


def test_nan_results_are_canonical() -> None:
    a = np.array([0x7F800001, 0xFFC12345, 0x7F800000], np.uint32)
    b = np.array([0, 0, 0xFF800000], np.uint32)
    assert evaluate("add.rn.f32 %d, %a, %b;", "uint32", {"a": a, "b": b}).tolist() == [0x7FFFFFFF] * 3


def test_sums_that_cancel_are_negative_zero_only_when_rounding_down() -> None:
    a = np.array([1.0, 0.0, -0.0], np.float32)
    for mode, signs in (
        ("rn", [False, False, True]),
        ("rm", [True, True, True]),
        ("rp", [False, False, True]),
    ):
        b = np.array([-1.0, -0.0, -0.0], np.float32)
        found = evaluate(f"add.{mode}.f32 %d, %a, %b;", "float32", {"a": a, "b": b})
        assert np.signbit(found).tolist() == signs
        assert (found == 0).all()


def test_ftz_flushes_operands_and_results_to_signed_zero() -> None:
    tiny = np.float32(2.0**-126)
    a = np.array([tiny / 2, -tiny / 2, tiny, -tiny], np.float32)
    half = np.full(4, 0.5, np.float32)
    found = evaluate("mul.rn.ftz.f32 %d, %a, %b;", "float32", {"a": a, "b": half})
    assert (found == 0).all()
    assert np.signbit(found).tolist() == [False, True, False, True]
    kept = evaluate("mul.rn.f32 %d, %a, %b;", "float32", {"a": a, "b": half})
    assert np.array_equal(kept, a * half)
    assert (kept != 0).all()
    assert evaluate("setp.eq.ftz.f32 %d, %a, 0f00000000;", "bool", {"a": a}).tolist() == [
        True,
        True,
        False,
        False,
    ]


def test_saturation_clamps_to_one_and_turns_nan_into_zero() -> None:
    a = np.array([-1.0, -0.0, 0.25, 1.5, np.inf, np.nan], np.float32)
    one = np.ones(6, np.float32)
    found = evaluate("mul.rn.sat.f32 %d, %a, %b;", "uint32", {"a": a, "b": one})
    assert found.view(np.float32).tolist() == [0.0, 0.0, 0.25, 1.0, 1.0, 0.0]
    assert found[1] == 0


@pytest.mark.parametrize("name", ["f16", "f32"])
def test_extrema_prefer_numbers_and_order_zeros(name: str) -> None:
    a, b = every_pair(np.array([0.0, -0.0, 1.0, -2.0, np.inf, -np.inf, np.nan], STORED[name]))
    low = evaluate(f"min.{name} %d, %a, %b;", STORED[name], {"a": a, "b": b})
    high = evaluate(f"max.NaN.{name} %d, %a, %b;", STORED[name], {"a": a, "b": b})
    for x, y, small, large in zip(a.tolist(), b.tolist(), low.tolist(), high.tolist(), strict=True):
        numbers = [v for v in (x, y) if not math.isnan(v)]
        expected = min(numbers, key=lambda v: (v, math.copysign(1, v))) if numbers else math.nan
        assert _same(small, expected)
        top = math.nan if len(numbers) < 2 else max(numbers, key=lambda v: (v, math.copysign(1, v)))
        assert _same(large, top)


@pytest.mark.parametrize(
    "comparison", ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]
)
def test_comparisons_with_nan(comparison: str) -> None:
    a, b = every_pair(np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan], np.float32))
    found = evaluate(f"setp.{comparison}.f32 %d, %a, %b;", "bool", {"a": a, "b": b})
    functions = {
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
    }
    unordered = np.isnan(a) | np.isnan(b)
    if comparison in ("num", "nan"):
        expected = unordered if comparison == "nan" else ~unordered
    elif comparison.endswith("u"):
        expected = functions[comparison[:2]](a, b) | unordered
    else:
        expected = functions[comparison](a, b) & ~unordered
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("mode", ["rni", "rzi", "rmi", "rpi"])
@pytest.mark.parametrize("target", ["s32", "u32", "s64", "u64", "s16", "u16"])
def test_conversion_to_integers_rounds_and_clamps(target: str, mode: str) -> None:
    dtype = ("int" if target[0] == "s" else "uint") + target[1:]
    halves = np.arange(-6, 7, dtype=np.float32) / 2
    a = np.concatenate(
        [
            edge_floats("float32"),
            halves,
            np.array([2.0**31, 2.0**32, 2.0**63, -(2.0**31), 2.0**64], np.float32),
        ]
    )
    found = evaluate(f"cvt.{mode}.{target}.f32 %d, %a;", dtype, {"a": a})
    info = np.iinfo(dtype)
    for x, y in zip(a.tolist(), found.tolist(), strict=True):
        if math.isnan(x):  # PTX ISA, cvt: 0, but the top bit alone where 64-bit types take part
            expected = {"s64": -(2**63), "u64": 2**63}.get(target, 0)
        elif math.isinf(x):
            expected = info.max if x > 0 else info.min
        else:
            whole = {
                "rni": lambda v: round(Fraction(v)),
                "rzi": math.trunc,
                "rmi": math.floor,
                "rpi": math.ceil,
            }[mode](x)
            expected = min(max(whole, info.min), info.max)
        assert y == expected, (x, y, expected)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize(
    ("source", "dtype"), [("s32", "int32"), ("u32", "uint32"), ("s64", "int64"), ("u64", "uint64")]
)
@pytest.mark.parametrize("target", ["f32", "f64", "f16"])
def test_conversion_from_integers_rounds_once(target: str, source: str, dtype: str, mode: str) -> None:
    a = edge_integers(dtype, more=200)
    found = evaluate(f"cvt.{mode}.{target}.{source} %d, %a;", STORED[target], {"a": a})
    for x, y in zip(a.tolist(), found.tolist(), strict=True):
        assert y == (rounded(Fraction(x), target, mode) if x else 0.0), (x, y)


def _bf16(values: np.ndarray) -> np.ndarray:
    return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)


@pytest.mark.parametrize("mode", ["rn", "rz"])
@pytest.mark.parametrize("target", ["f16", "bf16"])
def test_narrowing_to_half_formats_rounds_once(target: str, mode: str) -> None:
    exact_halves = (np.arange(1, 200, dtype=np.float32) / 128 + 1) * (1 + 2.0**-9)
    a = np.concatenate(
        [
            edge_floats("float32", more=300),
            exact_halves.astype(np.float32),
            np.float32([2.0**-24, 3e-8, 6e-8, 65519, 65520]),
        ]
    )
    a = a[np.isfinite(a) & (a != 0)]
    bits = evaluate(f"cvt.{mode}.{target}.f32 %d, %a;", "uint16", {"a": a})
    found = bits.view(np.float16).astype(np.float64) if target == "f16" else _bf16(bits).astype(np.float64)
    for x, y in zip(a.tolist(), found.tolist(), strict=True):
        assert y == rounded(Fraction(x), target, mode), (x, y)


def test_packed_conversion_puts_the_first_source_in_the_upper_half() -> None:
    a, b = np.array([1.0, -2.5], np.float32), np.array([0.5, 65504.0], np.float32)
    found = evaluate("cvt.rn.f16x2.f32 %d, %a, %b;", "uint32", {"a": a, "b": b})
    halves = found.view(np.float16).reshape(-1, 2)
    assert np.array_equal(halves[:, 1].astype(np.float32), a)
    assert np.array_equal(halves[:, 0].astype(np.float32), b)


def test_tf32_keeps_ten_bits_and_leaves_the_rest_undefined() -> None:
    a = edge_floats("float32", more=100)
    a = a[np.isfinite(a) & (np.abs(a) > 1e-30) & (np.abs(a) < 1e30)]
    found = evaluate("cvt.rna.tf32.f32 %d, %a;", "uint32", {"a": a})
    top = (found & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    assert np.all(np.abs(top - a) <= np.abs(a) * 2.0**-11)
    assert (found & np.uint32(0x1FFF)).any()


@pytest.mark.parametrize("opcode", ["add", "mul"])
@pytest.mark.parametrize("name", ["f16x2", "bf16x2"])
def test_packed_halves_are_two_separate_operations(name: str, opcode: str) -> None:
    rng = np.random.default_rng(3)
    words = rng.integers(0, 1 << 32, (2, 400), dtype=np.uint32)
    found = evaluate(f"{opcode}.rn.{name} %d, %a, %b;", "uint32", {"a": words[0], "b": words[1]})
    function: Callable[[Fraction, Fraction], Fraction]
    function = (lambda x, y: x + y) if opcode == "add" else (lambda x, y: x * y)
    checked = 0
    for half in range(2):
        parts = [
            ((word >> np.uint32(16 * half)) & np.uint32(0xFFFF)).astype(np.uint16) for word in (*words, found)
        ]
        with np.errstate(invalid="ignore"):  # signalling NaNs
            wide = [
                part.view(np.float16).astype(np.float64)
                if name == "f16x2"
                else _bf16(part).astype(np.float64)
                for part in parts
            ]
        for x, y, z in zip(*(values.tolist() for values in wide), strict=True):
            if math.isfinite(x) and math.isfinite(y) and function(Fraction(x), Fraction(y)):
                assert z == rounded(function(Fraction(x), Fraction(y)), name[:-2], "rn")
                checked += 1
    assert checked > 300


def test_approximate_functions_at_their_special_values() -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan], np.float32)
    results = {
        "rcp.approx.f32": [np.inf, -np.inf, 0.0, -0.0, np.nan],
        "rsqrt.approx.f32": [np.inf, -np.inf, 0.0, np.nan, np.nan],
        "sqrt.approx.f32": [0.0, -0.0, np.inf, np.nan, np.nan],
        "ex2.approx.f32": [1.0, 1.0, np.inf, 0.0, np.nan],
        "lg2.approx.f32": [-np.inf, -np.inf, np.inf, np.nan, np.nan],
        "tanh.approx.f32": [0.0, -0.0, 1.0, -1.0, np.nan],
    }
    for name, expected in results.items():
        found = evaluate(f"{name} %d, %a;", "float32", {"a": special}).tolist()
        assert all(_same(x, y) for x, y in zip(found, expected, strict=True)), (name, found)


def test_testp_and_copysign() -> None:
    a = edge_floats("float32")
    finite = evaluate("testp.finite.f32 %d, %a;", "bool", {"a": a})
    assert np.array_equal(finite, np.isfinite(a))
    tiny = evaluate("testp.subnormal.f32 %d, %a;", "bool", {"a": a})
    assert np.array_equal(tiny, (a != 0) & (np.abs(a) < np.finfo(np.float32).tiny))
    b = np.roll(a, 7)
    found = evaluate("copysign.f32 %d, %a, %b;", "uint32", {"a": a, "b": b})
    assert np.array_equal(found, np.copysign(b, a).view(np.uint32) & 0xFFFFFFFF)
