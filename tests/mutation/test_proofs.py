"""What proves a mutant equivalent: every rule, and what each asks of a text."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from small_gemm import EMITTED, TARGET, text

from emitters import KERNELS
from emitters.gemm import GEMM_S8
from emitters.kernel import EmittedKernel, schedule_values
from tuner.devices.device import Candidate
from tuner.mutation import Fate
from tuner.mutation.columns import Twins
from tuner.mutation.context import Context
from tuner.mutation.demand import ALL, Demand
from tuner.mutation.equivalence import RULES, reason
from tuner.mutation.guarded import never_looked_at
from tuner.mutation.identities import form
from tuner.mutation.judging import Judge
from tuner.mutation.lanes import MASKS, Lanes
from tuner.mutation.mutant import Mutant
from tuner.mutation.operators import OPERATORS
from tuner.mutation.sampling import every_mutant, sample
from tuner.mutation.source import Source
from tuner.mutation.values import Values
from tuner.ptxas import Assembler

PAST = "blocks past the end, which store nothing"


# --- reasons ---


def reason_for(operator: str, before: str, after: str) -> str | None:
    """The reason for the mutant of the small kernel that turns one text into another, the first of them."""
    found = [m for m in every_mutant(EMITTED)[operator] if m.before == before and m.after == after]
    assert found, f"no mutant {operator}: {before} -> {after}"
    return reason(Context(EMITTED, GEMM_S8.spec), found[0])


def test_reasons() -> None:
    wait = "cp.async.wait_group 1;"
    more = "synchronises as much or more"
    assert reason_for("groups waited for", wait, "cp.async.wait_group 0;") == more
    assert reason_for("groups waited for", wait, "cp.async.wait_group 2;") is None
    assert reason_for("duplicate synchronisation", "bar.sync 0;", "bar.sync 0; bar.sync 0;") == more
    assert reason_for("delete synchronisation", "bar.sync 0;", "(deleted)") is None
    drained = reason_for("delete synchronisation", "cp.async.wait_all;", "(deleted)")
    assert drained == "waits for copies that nobody reads"
    assert reason_for("delete synchronisation", wait, "(deleted)") is None
    step, bytes_now = EMITTED.plan.kernel_steps[0].entry, EMITTED.plan.kernel_steps[0].shared_bytes
    plan = f"step 0: {step}"
    assert reason_for("plan", plan, f"{bytes_now + 16} shared bytes") == "spare shared memory"
    assert reason_for("plan", plan, f"{bytes_now - 16} shared bytes") is None
    assert reason_for("plan", plan, "grid y = (1) + 1") == "blocks that repeat others"
    grid = EMITTED.plan.kernel_steps[0].grid[0]
    assert reason_for("plan", plan, f"grid x = ({grid}) + 1") is None


@pytest.mark.parametrize(
    ("lines", "operator", "after", "why"),
    [
        (["mov.u32 %r0, %tid.x;", "shr.u32 %r1, %r0, 1;"], "sign", "shr.s32 %r1, %r0, 1;", "same value"),
        (["ld.global.b32 %r0, [%rd0];", "shr.u32 %r1, %r0, 1;"], "sign", "shr.s32 %r1, %r0, 1;", None),
        (
            ["ld.global.b32 %r0, [%rd0];", "shr.u32 %r2, %r0, 1;", "and.b32 %r1, %r2, 255;"],
            "sign",
            "shr.s32 %r2, %r0, 1;",
            "differs in bits",
        ),
        (
            ["ld.shared.u8 %r2, [%r0];", "and.b32 %r1, %r2, 15;"],
            "sign",
            "ld.shared.s8 %r2, [%r0];",
            "differs in bits",
        ),
        (
            [
                "mov.u32 %r0, %tid.x;",
                "shl.b32 %r2, %r0, 2;",
                "setp.gt.s32 %p0, %r2, 0;",
                "selp.b32 %r1, 1, 2, %p0;",
            ],
            "constant",
            "setp.gt.s32 %p0, %r2, 1;",
            "same value",
        ),
        (
            [
                "mov.u32 %r0, %tid.x;",
                "shl.b32 %r2, %r0, 2;",
                "setp.gt.s32 %p0, %r2, 0;",
                "selp.b32 %r1, 1, 2, %p0;",
            ],
            "comparison",
            "setp.ge.s32 %p0, %r2, 0;",
            None,
        ),
        (
            ["ld.global.b32 %r1, [%rd0];", "min.u32 %r1, %r1, 7;"],
            "duplicate instruction",
            "min.u32 %r1, %r1, 7; min.u32 %r1, %r1, 7;",
            "changes nothing",
        ),
        (
            ["ld.global.b32 %r1, [%rd0];", "sub.u32 %r1, %r1, 7;"],
            "duplicate instruction",
            "sub.u32 %r1, %r1, 7; sub.u32 %r1, %r1, 7;",
            None,
        ),
    ],
)
def test_reason_of_a_statement(lines: list[str], operator: str, after: str, why: str | None) -> None:
    text = "\n".join(
        [".visible .entry gemm_s8(", "    .reg .b32 %r<64>;", *lines, "st.global.b32 [%rd0], %r1;"]
    )
    kernel = dataclasses.replace(EMITTED, ptx=text)
    mutant = next(m for m in OPERATORS[operator](Source.of(text)) if m.after == after)
    found = reason(Context(kernel, GEMM_S8.spec), mutant)
    assert found is None if why is None else found is not None and found.startswith(why)
    assert found is None or found in RULES


# --- lanes ---


def butterfly(register: str, masks: Sequence[int], first: int) -> list[str]:
    """A sum over lanes, in registers from `first` on; the last of them holds it."""
    lines = []
    for number, mask in enumerate(masks):
        taken, total = f"%f{first + 2 * number}", f"%f{first + 2 * number + 1}"
        lines.append(f"shfl.sync.bfly.b32 {taken}, {register}, {mask}, 0x1F, 0xFFFFFFFF;")
        lines.append(f"add.rn.f32 {total}, {register}, {taken};")
        register = total
    return lines


def test_a_sum_over_all_lanes_is_the_same_in_all_and_over_some_is_not() -> None:
    start = [
        "mov.u32 %r0, %tid.x;",
        "and.b32 %r1, %r0, 31;",
        "ld.global.f32 %f0, [%rd0];",
        "cvt.rn.f32.u32 %f0, %r0;",
    ]
    whole = Lanes(text(*start, *butterfly("%f0", (16, 8, 4, 2, 1), 1)))
    assert whole.kept("%f10") == MASKS
    assert whole.kept("%f8") == MASKS - {1}
    assert whole.kept("%f0") == frozenset()
    assert Lanes(text(*start, *butterfly("%f0", (16, 8, 4, 1), 1))).kept("%f8") == MASKS - {2}
    narrow = [line.replace("0x1F", "0x0F") for line in butterfly("%f0", (16, 8, 4, 2, 1), 1)]
    assert Lanes(text(*start, *narrow)).kept("%f10") != MASKS


@pytest.mark.parametrize("seed", range(40))
def test_what_keeps_under_an_exchange_of_lanes_does(seed: int) -> None:
    rng = np.random.default_rng(seed)
    lines, held = ["mov.u32 %r0, %tid.x;"], {"%r0": np.arange(64)}
    for number in range(1, 14):
        one, other = (f"%r{rng.integers(number)}" for _ in range(2))
        by = int(rng.choice([1, 2, 3, 4, 5, 7, 8, 16, 31]))
        mask = int(rng.choice([1, 2, 4, 8, 16]))
        shuffled = held[one].reshape(2, 32)[:, np.arange(32) ^ mask].ravel()
        kinds = {
            f"add.u32 %r{number}, {one}, {other};": held[one] + held[other],
            f"shr.u32 %r{number}, {one}, {by % 6};": held[one] >> by % 6,
            f"div.u32 %r{number}, {one}, {by};": held[one] // by,
            f"rem.u32 %r{number}, {one}, {by};": held[one] % by,
            f"and.b32 %r{number}, {one}, {by};": held[one] & by,
            f"shfl.sync.bfly.b32 %r{number}, {one}, {mask}, 0x1F, 0xFFFFFFFF;": shuffled,
        }
        line = str(rng.choice(list(kinds)))
        lines.append(line)
        held[f"%r{number}"] = kinds[line]
    lanes = Lanes(text(*lines))
    for name, values in held.items():
        for mask in lanes.kept(name):
            assert np.array_equal(values, values.reshape(2, 32)[:, np.arange(32) ^ mask].ravel()), (
                name,
                mask,
            )


def test_lanes_that_part_keep_nothing() -> None:
    lines = ["mov.u32 %r0, %tid.x;", "setp.gt.u32 %p0, %r0, 5;", "mov.u32 %r1, 1;", "@%p0 bra over;"]
    lines += ["mov.u32 %r1, 2;", "over:", "mov.u32 %r2, %r1;"]
    lanes = Lanes(text(*lines))
    assert lanes.kept("%r2") == lanes.kept("%r1") == frozenset()
    together = [line.replace("%tid.x", "%ctaid.x") for line in lines]
    assert Lanes(text(*together)).kept("%r2") == MASKS


def test_one_lane_is_a_number_within_the_warp() -> None:
    lines = ["mov.u32 %r0, %tid.x;", "and.b32 %r1, %r0, 31;", "and.b32 %r2, %r0, 15;"]
    lines += ["setp.eq.u32 %p0, %r1, 0;", "setp.eq.u32 %p1, %r2, 0;", "setp.eq.u32 %p2, %r1, 32;"]
    lanes = Lanes(text(*lines, "setp.ne.u32 %p3, %r1, 0;"))
    assert [lanes.one_lane(f"%p{number}") for number in range(4)] == [True, False, False, False]


def test_a_lane_is_chosen_among_alike_where_its_predicate_guards_nothing_else() -> None:
    lines = ["mov.u32 %r0, %tid.x;", "and.b32 %r1, %r0, 31;", "mov.u32 %r2, %ctaid.x;"]
    lines += [
        "setp.eq.u32 %p0, %r1, 0;",
        "setp.lt.and.u32 %p1, %r2, 9, %p0;",
        "@%p1 st.shared.u32 [%r2], %r2;",
    ]
    assert Lanes(text(*lines)).chooses_among_alike("%p0")
    others = [
        ("[%r2], %r2", "[%r2], %r1"),
        ("[%r2], %r2", "[%r1], %r2"),
        ("%r2, 9, %p0", "%r1, 9, %p0"),
        ("lt.and", "lt.or"),
        ("@%p1 st", "@!%p1 st"),
        ("@%p1 st.shared.u32 [%r2], %r2", "@%p1 bra over"),
    ]
    for before, after in others:
        changed = [line.replace(before, after) for line in lines]
        assert changed != lines
        assert not Lanes(text(*changed)).chooses_among_alike("%p0")


# --- guards ---


def test_a_constant_is_never_looked_at_where_a_guarded_load_hides_it_from_a_guarded_store() -> None:
    lines = ["ld.global.b32 %r0, [%rd0];", "setp.lt.u32 %p0, %r0, 9;", "setp.lt.u32 %p1, %r0, 5;"]
    lines += ["and.pred %p2, %p0, %p1;", "mov.f32 %f0, 0f00000000;", "@%p0 ld.global.f32 %f0, [%rd1];"]
    lines += ["mul.rn.f32 %f1, %f0, %f0;", "@%p2 st.global.f32 [%rd2], %f1;"]

    def looked_at(changed: list[str]) -> bool:
        source = text(*changed)
        start = next(s for s in source.statements if s.opcode == "mov.f32")
        return not never_looked_at(source, start)

    assert not looked_at(lines)
    others = [
        ("@%p2 st", "@%p1 st"),  # another guard
        ("@%p2 st", "@!%p2 st"),
        ("@%p2 st", "st"),
        ("@%p0 ld", "ld"),
        ("mul.rn.f32 %f1, %f0, %f0;", "shfl.sync.bfly.b32 %f1, %f0, 1, 0x1F, 0xFFFFFFFF;"),
        ("mul.rn.f32 %f1, %f0, %f0;", "fma.rn.f32 %f1, %f0, %f0, %f1;"),  # what is left from before
    ]
    for before, after in others:
        changed = [line.replace(before, after) for line in lines]
        assert changed != lines
        assert looked_at(changed), after
    assert looked_at([*lines[:6], "again:", *lines[6:]])  # another way to come here
    assert looked_at([lines[0], *lines[2:6], lines[1], *lines[6:]])  # the guard is another by then
    assert looked_at([lines[0], *lines[2:4], lines[1], *lines[4:]])  # it was another when it was joined
    store = "wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%r7], {%f2}, 8;"  # at that address
    assert looked_at([*(line.replace("%f0", "%r7") for line in lines[:6]), store])


# --- forms ---


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("div.u32 %r0, %r1, 1;", "mul.lo.u32 %r0, %r1, 1;", True),
        ("div.u32 %r0, %r1, 2;", "mul.lo.u32 %r0, %r1, 2;", False),
        ("add.u32 %r0, %r1, 0;", "shr.u32 %r0, %r1, 0;", True),
        ("mul.hi.u32 %r0, %r1, 1;", "mul.lo.u32 %r0, %r1, 1;", False),
        ("bfe.u32 %r0, %r1, 24, 8;", "bfe.u32 %r0, %r1, 24, 24;", True),
        ("bfe.u32 %r0, %r1, 23, 8;", "bfe.u32 %r0, %r1, 23, 9;", False),
        ("bfe.s32 %r0, %r1, 24, 8;", "bfe.s32 %r0, %r1, 24, 24;", False),
        ("prmt.b32 %r0, %r1, 0x4B000000, 0x7443;", "prmt.b32 %r0, %r1, 0x4B000000, 0x7453;", True),
        ("prmt.b32 %r0, %r1, 0x4B000000, 0x7443;", "prmt.b32 %r0, %r1, 0x4B000000, 0x7473;", False),
        ("prmt.b32 %r0, %r1, 0x4B000000, 0x7443;", "prmt.b32 %r0, %r1, 0x4B000000, 0x7442;", False),
        ("and.b32 %r0, %r1, 0x10;", "and.b32 %r0, %r1, 16;", True),
    ],
)
def test_forms(one: str, other: str, same: bool) -> None:
    first, second = text(one, other).statements
    assert (form(first) == form(second)) is same


# --- what nobody reads ---


def product(target: str, a: str, c: str) -> str:
    return f"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {target}, {a}, {{%r8, %r9}}, {c};"


def test_lower_rows_of_a_product_need_not_be_right_where_only_upper_ones_are_stored() -> None:
    sums, a = "{%f0, %f1, %f2, %f3}", "{%r0, %r1, %r2, %r3}"
    source = text(product(sums, a, sums), "st.global.f32 [%rd0], %f0;")
    demand = Demand(source)
    wanted = [demand.of(name) for name in ("%f0", "%f1", "%f2", "%f3", "%r0", "%r1", "%r2", "%r3", "%r8")]
    assert wanted == [ALL, 0, 0, 0, ALL, 0, ALL, 0, ALL]
    old = source.statements[0]
    below = product("{%f0, %f1, %f3, %f2}", "{%r0, %r3, %r2, %r1}", sums)
    assert demand.unread(old, text(below).statements[0])
    above = product(sums, "{%r2, %r1, %r0, %r3}", sums)
    assert not demand.unread(old, text(above).statements[0])


def test_bits_that_a_funnel_shift_drops_are_not_wanted() -> None:
    lines = ["ld.shared.u32 %r1, [%r9];", "ld.shared.u32 %r2, [%r9+4];", "mov.u32 %r0, %tid.x;"]
    lines += ["and.b32 %r3, %r0, 16;", "shf.r.wrap.b32 %r4, %r1, %r2, %r3;", "st.global.b32 [%rd0], %r4;"]
    source = text(*lines)
    demand = Demand(source, Values(source, {}, 32))
    assert (demand.of("%r1"), demand.of("%r2")) == (ALL, 0xFFFF)


def test_columns_of_a_product_are_alike_where_those_of_its_right_operand_are() -> None:
    sums = "{%f0, %f1, %f2, %f3}"
    lines = [f"mov.f32 %f{i}, 0f00000000;" for i in range(4)]
    lines += ["mov.u32 %r20, %tid.x;", "and.b32 %r21, %r20, 3;", "ld.shared.u32 %r8, [%r21];"]
    lines += ["ld.shared.u32 %r9, [%r21+16];", product(sums, "{%r0, %r1, %r2, %r3}", sums)]
    lines += ["st.global.f32 [%rd0], %f0;"]
    old = text(*lines).statements
    twins = Twins(text(*lines), Lanes(text(*lines)))
    swapped = product("{%f1, %f0, %f2, %f3}", "{%r0, %r1, %r2, %r3}", "{%f0, %f0, %f2, %f3}")
    assert twins.same(old[8], text(swapped).statements[0])
    assert twins.same(old[9], text("st.global.f32 [%rd0], %f1;").statements[0])
    assert not twins.same(old[9], text("st.global.f32 [%rd0], %f2;").statements[0])
    lost = product("{%f1, %f1, %f2, %f3}", "{%r0, %r1, %r2, %r3}", sums)
    assert not twins.same(old[8], text(lost).statements[0])
    for before, after in [("%r20, 3;", "%r20, 7;"), ("%f1, 0f00000000;", "%f1, 0f3F800000;")]:
        other = text(*(line.replace(before, after) for line in lines))
        assert not Twins(other, Lanes(other)).same(old[9], text("st.global.f32 [%rd0], %f1;").statements[0])


def baseline(name: str) -> EmittedKernel:
    return KERNELS[name].emit(KERNELS[name].baseline, TARGET)


# --- blocks past the end ---


def one_block_more(kernel: EmittedKernel) -> Mutant:
    return next(
        m for m in every_mutant(kernel)["plan"] if m.after.startswith("grid x") and m.after.endswith("+ 1")
    )


@pytest.mark.parametrize("name", ["affine_f32", "rmsnorm", "q4k_gemv", "q6k_soa_gemv", "wmma_gemv"])
def test_a_block_past_the_end_of_a_kernel_stores_nothing(name: str) -> None:
    kernel = baseline(name)
    assert reason(Context(kernel, KERNELS[name].spec), one_block_more(kernel)) == PAST


@pytest.mark.parametrize("name", ["affine_f32", "rmsnorm", "q4k_gemv", "q6k_soa_gemv", "wmma_gemv"])
def test_a_block_past_the_end_is_not_trusted_where_a_store_asks_nothing(name: str) -> None:
    kernel = baseline(name)
    source = Source.of(kernel.ptx)
    stores = [s for s in source.statements if s.opcode.startswith("st.global")]
    unasked = {s.number: (dataclasses.replace(s, guard="").text,) for s in stores}
    unasked |= {
        s.number: () for s in source.statements if s.parts[0] == "bra" and s.number < stores[0].number
    }
    changed = dataclasses.replace(kernel, ptx=source.with_lines(unasked))
    assert reason(Context(changed, KERNELS[name].spec), one_block_more(changed)) is None


# --- all together ---


def test_no_mutant_that_the_gate_kills_is_proven_equivalent() -> None:
    for name in ("affine_f32", "rmsnorm"):
        kernel, emitted = KERNELS[name], baseline(name)
        assembler = Assembler()
        binary = assembler.assemble(emitted.ptx, "sm_89")
        judge = Judge(Candidate(name, schedule_values(kernel.baseline), emitted, binary), assembler)
        proven = 0
        for mutant in sample(emitted, 60, np.random.default_rng(5)):
            if reason(judge.context, mutant) is not None:
                proven += 1
                assert judge.judge(mutant).fate is Fate.EQUIVALENT, mutant
        assert proven >= 3
