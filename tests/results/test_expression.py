"""Formulas over sizes: they mean what Python means, and nothing else can be said in them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.expression import ExpressionError, ceil_div, evaluate, names_in

sizes = st.fixed_dictionaries({name: st.integers(-(10**6), 10**6) for name in "mnk"})
leaves = st.one_of(st.sampled_from("mnk"), st.integers(0, 10**6).map(str))


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.sampled_from(["+", "-", "*", "<", "<=", ">", ">=", "==", "!=", "and", "or"])
    return st.one_of(
        st.builds("({} {} {})".format, inner, binary, inner),
        st.builds("(-{})".format, inner),
        st.builds("(not {})".format, inner),
        st.builds("min({}, {})".format, inner, inner),
        st.builds("max({}, {}, {})".format, inner, inner, inner),
    )


@given(st.recursive(leaves, grown, max_leaves=12), sizes)
def test_formula_means_what_python_means(text: str, given_sizes: dict[str, int]) -> None:
    expected = eval(text, {"min": min, "max": max}, dict(given_sizes))
    assert evaluate(text, given_sizes) == int(expected)
    assert names_in(text) == set(re.findall(r"\b[mnk]\b", text))


@given(st.integers(-(10**12), 10**12), st.integers(1, 10**6))
def test_ceil_div_rounds_up(numerator: int, denominator: int) -> None:
    quotient = ceil_div(numerator, denominator)
    assert (quotient - 1) * denominator < numerator <= quotient * denominator
    assert evaluate(f"ceil_div({numerator}, d)", {"d": denominator}) == quotient


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ceil_div(m, 128) * ceil_div(n, 128)", 3 * 3),
        ("4 * m * n", 4 * 300 * 272),
        ("n % 64 == 0", 0),
        ("n % 16 == 0 and k >= 96", 1),
        ("m // 7", 42),
        ("-m // 7", -43),
        ("1 <= m <= 300", 1),
        ("not k", 0),
        ("0", 0),
    ],
)
def test_known_values(text: str, value: int) -> None:
    assert evaluate(text, {"m": 300, "n": 272, "k": 96}) == value
    assert type(evaluate(text, {"m": 300, "n": 272, "k": 96})) is int


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("m +", "is not a formula"),
        ("", "is not a formula"),
        ("m = 1", "is not a formula"),
        ("m / 2", "uses Div"),
        ("m ** 2", "uses Pow"),
        ("m.real", "uses Attribute"),
        ("[m]", "uses List"),
        ("lambda: m", "uses Lambda"),
        ("m if n else k", "uses IfExp"),
        ("(m := 3)", "uses NamedExpr"),
        ("1.5 * m", r"has 1.5; only integers are allowed"),
        ("'m'", r"has 'm'; only integers are allowed"),
        ("True", r"has True; only integers are allowed"),
        ("__import__('os')", "calls something other than min, max, ceil_div"),
        ("eval(m)", "calls something other than"),
        ("min(m, key=n)", "calls something other than|uses keyword"),
        ("m(n)", "calls something other than"),
        ("m << 2", "uses LShift"),
    ],
)
def test_nothing_else_parses(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        evaluate(text, {"m": 1, "n": 2, "k": 3})


def test_missing_size_is_named_with_those_there_are() -> None:
    with pytest.raises(ExpressionError, match=r"'m \* rows' needs the size 'rows'; given are: k, m"):
        evaluate("m * rows", {"m": 1, "k": 2})
    with pytest.raises(ExpressionError, match=r"given are: none"):
        evaluate("m", {})


@pytest.mark.parametrize("text", ["m // n", "m % n", "ceil_div(m, n)"])
def test_division_by_zero_is_an_error_of_the_formula(text: str) -> None:
    with pytest.raises(ExpressionError, match="divides by zero for"):
        evaluate(text, {"m": 1, "n": 0})
