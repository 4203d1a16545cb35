"""What is known of registers: their values, from loops and branches too, and their bits that matter."""

import numpy as np
import pytest
from small_gemm import text

from tuner.mutation.demand import ALL, Demand
from tuner.mutation.integers import result_of
from tuner.mutation.loops import counters
from tuner.mutation.source import Source
from tuner.mutation.values import ANY, Range, Values

# --- values and bits ---


def random_program(rng: np.random.Generator, length: int = 12) -> list[str]:
    """Straight-line integer arithmetic on the thread number, stored at the end."""
    lines = ["mov.u32 %r0, %tid.x;"]
    for number in range(1, length):
        one, other = (f"%r{rng.integers(number)}" for _ in range(2))
        constant = int(rng.integers(0, 40))
        by = int(rng.integers(0, 12))
        lines.append(
            str(
                rng.choice(
                    [
                        f"add.u32 %r{number}, {one}, {other};",
                        f"sub.s32 %r{number}, {one}, {constant};",
                        f"mul.lo.u32 %r{number}, {one}, {constant};",
                        f"and.b32 %r{number}, {one}, {constant};",
                        f"shl.b32 %r{number}, {one}, {by};",
                        f"shr.u32 %r{number}, {one}, {by};",
                        f"shr.s32 %r{number}, {one}, {by};",
                        f"xor.b32 %r{number}, {one}, {other};",
                        f"min.u32 %r{number}, {one}, {other};",
                        f"max.s32 %r{number}, {one}, {constant};",
                        f"mad.lo.u32 %r{number}, {one}, {constant}, {other};",
                        f"div.u32 %r{number}, {one}, 7;",
                        f"bfe.u32 %r{number}, {one}, {by}, 3;",
                        f"bfi.b32 %r{number}, {one}, {other}, {by}, 4;",
                    ]
                )
            )
        )
    return [*lines, f"st.global.b32 [%rd0], %r{length - 1};"]


def run_program(source: Source, thread: int, flip: tuple[str, int] = ("", 0)) -> dict[str, int]:
    """Registers at the end; `flip` names one and the bits of it that are turned when it is written."""
    held: dict[str, int] = {"%tid.x": thread}
    for statement in source.statements[:-1]:
        values = [held[text] if text in held else int(text, 0) for text in statement.operands[1:]]
        name = statement.operands[0]
        result = result_of(statement, values)
        if name == flip[0]:
            result = int(np.int64(result ^ flip[1]).astype(np.uint32).astype(np.int32))
        held[name] = result
    return held


@pytest.mark.parametrize("seed", range(60))
def test_ranges_hold_every_value(seed: int) -> None:
    source = text(*random_program(np.random.default_rng(seed)))
    values = Values(source, {}, threads=96)
    for thread in range(96):
        for name, value in run_program(source, thread).items():
            known = values.of(name)
            assert known.lo <= value <= known.hi
            assert (value - known.lo) % (known.step or 1) == 0


@pytest.mark.parametrize("seed", range(60))
def test_bits_that_do_not_matter_change_nothing(seed: int) -> None:
    rng = np.random.default_rng([1, seed])
    source = text(*random_program(rng))
    demand = Demand(source)
    last = source.statements[-1].operands[1]
    assert demand.of(last) == ALL
    for number in range(11):
        free = ALL & ~demand.of(f"%r{number}") & int(rng.integers(1 << 32))
        for thread in (0, 5, 95):
            flipped = run_program(source, thread, (f"%r{number}", free))
            assert flipped[last] == run_program(source, thread)[last]


def test_values_know_sizes_remainders_and_loops() -> None:
    source = text(
        "ld.param.u32 %r0, [param_n];",
        "mov.u32 %r1, %ctaid.x;",
        "div.u32 %r2, %r1, %r0;",
        "mul.lo.u32 %r3, %r2, %r0;",
        "sub.u32 %r4, %r1, %r3;",
        "sub.s32 %r0, %r0, 32;",
    )
    values = Values(source, {"n": Range(16, 1 << 24, 16)}, 32)
    counted = values.of("%r0")
    assert (counted.lo % 16, counted.step) == (0, 16)
    assert counted.lo < -(1 << 30)  # it is counted down without an end that the text shows
    assert values.of("%r4") == ANY or values.of("%r4").lo == 0
    single = Values(text(*(s.text for s in source.statements[:-1])), {"n": Range(16, 1 << 24, 16)}, 32)
    assert single.of("%r4").is_natural


def test_low_bits_of_sums_of_multiples_do_not_matter() -> None:
    tensor = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r0, %r1, %r2, %r3}, {%r8, %r9, %r10, %r11}, "
    lines = [f"mov.b32 %r{i}, 0;" for i in range(4)]
    lines += [f"and.b32 %r{i}, %r20, 0xC0C0C0C0;" for i in (12, 13)]
    lines += [f"{tensor}{{%r12, %r13}}, {{%r0, %r1, %r2, %r3}};", "shr.s32 %r30, %r0, 6;"]
    demand = Demand(text(*lines, "st.global.b32 [%rd0], %r30;"))
    assert demand.of("%r0") == ALL & ~63
    loose = [line.replace("%r20, 0xC0C0C0C0", "%r20, 0xE0C0C0C0") for line in lines]
    assert Demand(text(*loose, "st.global.b32 [%rd0], %r30;")).of("%r0") == ALL & ~31
    free = [line.replace("%r20, 0xC0C0C0C0", "%r20, 0xC0C0C0C1") for line in lines]
    assert Demand(text(*free, "st.global.b32 [%rd0], %r30;")).of("%r0") == ALL


# --- loops ---


@pytest.mark.parametrize(
    ("change", "comparison", "kind", "start", "step", "limit"),
    [
        ("add", "lt", "u32", 3, 5, 100),
        ("add", "lt", "u32", 0, 1, 1),
        ("add", "le", "s32", -7, 4, 100),
        ("sub", "gt", "s32", 100, 7, 0),
        ("sub", "ge", "s32", 100, 25, -3),
    ],
)
def test_a_counter_holds_what_its_loop_gives_it(
    change: str, comparison: str, kind: str, start: int, step: int, limit: int
) -> None:
    lines = [f"mov.u32 %r0, {start};", "turn:", f"{change}.{kind} %r0, %r0, {step};"]
    lines += [f"setp.{comparison}.{kind} %p0, %r0, {limit};", "@%p0 bra turn;"]
    known = Values(text(*lines), {}, 32).of("%r0")
    goes_on = {
        "lt": lambda value: value < limit,
        "le": lambda value: value <= limit,
        "gt": lambda value: value > limit,
        "ge": lambda value: value >= limit,
    }[comparison]
    value, held = start, [start]
    while True:
        value += step if change == "add" else -step
        held.append(value)
        if not goes_on(value):
            break
    assert set(held) <= set(known)
    assert len(known) <= len(held) + 1


def test_a_counter_that_an_outer_loop_does_not_set_anew_is_not_bounded() -> None:
    lines = ["mov.u32 %r0, 0;", "mov.u32 %r1, 0;", "outer:", "inner:", "add.u32 %r0, %r0, 3;"]
    lines += ["setp.lt.u32 %p0, %r0, 10;", "@%p0 bra inner;", "add.u32 %r1, %r1, 1;"]
    lines += ["setp.lt.u32 %p1, %r1, 100;", "@%p1 bra outer;"]
    source = text(*lines)
    assert [counted.register for counted in counters(source).values()] == ["%r1"]
    assert Values(source, {}, 32).of("%r0").hi > 300
    lines.insert(3, "mov.u32 %r0, 0;")
    assert Values(text(*lines), {}, 32).of("%r0") == Range(0, 12, 3)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("setp.lt.u32 %p0, %r0, 10;", "setp.lt.u32 %p0, %r2, 10;"),  # another register is compared
        ("@%p0 bra turn;", "bra turn;"),  # nothing is
        ("mov.u32 %r2, 0;", "bra middle; mov.u32 %r2, 0;"),  # entered in the middle
        ("@%p0 bra turn;", "@%p1 bra turn; @%p0 bra turn;"),  # there is another way back
        ("setp.lt.u32 %p0, %r0, 10;", "@%p1 bra over; setp.lt.u32 %p0, %r0, 10; over:"),  # may be passed over
    ],
)
def test_a_loop_that_is_not_bounded_by_its_counter_bounds_nothing(old: str, new: str) -> None:
    lines = ["mov.u32 %r0, 0;", "mov.u32 %r2, 0;", "turn:", "middle:", "add.u32 %r0, %r0, 3;"]
    lines += ["setp.lt.u32 %p0, %r0, 10;", "@%p0 bra turn;"]
    assert old in lines
    changed = [part + ";" for line in lines for part in (new if line == old else line).split(";") if part]
    changed = [line.replace(":;", ":").strip() for line in changed]
    assert Values(text(*changed), {}, 32).of("%r0").hi > 12


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("setp.lt.u32 %p0, %r1, 8", True),
        ("setp.lt.u32 %p0, %r1, 7", None),
        ("setp.ge.s32 %p0, %r1, 8", False),
        ("setp.eq.u32 %p0, %r1, 9", False),
        ("setp.ne.u32 %p0, %r1, 9", True),
        ("setp.gt.and.u32 %p0, %r1, 7, %p1", False),
        ("setp.le.and.u32 %p0, %r1, 7, %p1", None),
        ("setp.gt.or.u32 %p0, %r1, 7, %p1", None),
    ],
)
def test_predicates_that_always_hold_or_never(test: str, expected: bool | None) -> None:
    lines = ["mov.u32 %r0, %tid.x;", "shr.u32 %r1, %r0, 2;", "ld.global.b32 %r2, [%rd0];"]
    source = text(*lines, "setp.eq.u32 %p1, %r2, 0;", f"{test};", "@%p0 st.global.b32 [%rd0], %r0;")
    values = Values(source, {}, 32)
    assert values.truth("%p0") is expected
    assert values.truth("%p1") is None
    assert (Demand(source, values).of("%r0") & 3 == 0) is (expected is False)


def test_a_share_of_what_lies_before_the_end_is_natural() -> None:
    lines = ["ld.param.u32 %r0, [param_n];", "mov.u32 %r1, %ctaid.x;", "mul.lo.u32 %r2, %r1, 8;"]
    lines += [
        "min.u32 %r3, %r2, %r0;",
        "add.u32 %r4, %r2, 8;",
        "min.u32 %r5, %r4, %r0;",
        "sub.u32 %r6, %r5, %r3;",
    ]
    sizes = {"n": Range(1, 1 << 20, 1)}
    assert Values(text(*lines), sizes, 32).of("%r6") == Range(0, 8, 1)
    others = [line.replace("min.u32 %r5, %r4, %r0;", "min.u32 %r5, %r4, 100;") for line in lines]
    assert Values(text(*others), sizes, 32).of("%r6").lo < 0


# --- branches ---


def test_a_branch_that_was_not_taken_bounds_what_comes_after_it() -> None:
    lines = ["mov.u32 %r0, %tid.x;", "ld.global.b32 %r1, [%rd0];", "setp.lt.s32 %p1, %r1, 9;"]
    lines += ["setp.lt.and.u32 %p0, %r0, 5, %p1;", "@!%p0 bra done;", "mov.u32 %r2, %r0;", "done:", "ret;"]
    source = text(*lines)
    values = Values(source, {}, 32)
    inside = next(s.number for s in source.statements if s.operands[:1] == ("%r2",))
    assert values.at(source, inside).of("%r0") == Range(0, 4, 1)
    assert values.at(source, inside).of("%r1").hi == 8
    assert values.at(source, inside + 2).of("%r0") == Range(0, 31, 1)  # the label is reached from elsewhere


@pytest.mark.parametrize(
    ("comparison", "negated", "expected"),
    [
        ("gt.s32 %p0, %r0, 12", "", Range(0, 12, 4)),
        ("gt.s32 %p0, %r0, 12", "!", Range(16, 124, 4)),
        ("ge.u32 %p0, %r0, 13", "", Range(0, 12, 4)),
        ("eq.u32 %p0, %r0, 8", "!", Range(8, 8, 0)),
        ("ne.u32 %p0, %r0, 8", "", Range(8, 8, 0)),
        ("lt.u32 %p0, 13, %r0", "", Range(0, 12, 4)),
    ],
)
def test_every_comparison_bounds(comparison: str, negated: str, expected: Range) -> None:
    lines = ["mov.u32 %r1, %tid.x;", "shl.b32 %r0, %r1, 2;", f"setp.{comparison};"]
    source = text(*lines, f"@{negated}%p0 bra done;", "mov.u32 %r2, %r0;", "done:", "ret;")
    inside = next(s.number for s in source.statements if s.operands[:1] == ("%r2",))
    assert Values(source, {}, 32).at(source, inside).of("%r0") == expected


def test_a_predicate_written_after_it_was_joined_to_another_bounds_nothing() -> None:
    lines = ["mov.u32 %r0, %tid.x;", "and.pred %p2, %p0, %p1;", "setp.lt.u32 %p0, %r0, 5;"]
    lines += ["@!%p2 bra done;", "mov.u32 %r2, %r0;", "done:", "ret;"]

    def bound(changed: list[str]) -> Range:
        source = text(*changed)
        inside = next(s.number for s in source.statements if s.operands[:1] == ("%r2",))
        return Values(source, {}, 32).at(source, inside).of("%r0")

    assert bound(lines) == Range(0, 31, 1)
    assert bound([lines[0], lines[2], lines[1], *lines[3:]]) == Range(0, 4, 1)


def test_a_register_written_after_its_test_is_not_bounded() -> None:
    lines = ["mov.u32 %r0, %tid.x;", "setp.gt.u32 %p0, %r0, 12;", "add.u32 %r0, %r0, 1;", "@%p0 bra done;"]
    source = text(*lines, "mov.u32 %r2, %r0;", "done:", "ret;")
    inside = next(s.number for s in source.statements if s.operands[:1] == ("%r2",))
    assert Values(source, {}, 32).at(source, inside).of("%r0").hi >= 32
