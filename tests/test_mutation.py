"""Mutants: how they are made and drawn, what proves one equivalent, what becomes of each."""

import dataclasses
import json
import re
from collections import Counter

import numpy as np
import pytest

from emitters import KERNELS
from emitters.gemm import GEMM_S8
from emitters.kernel import schedule_values
from emitters.target import Target
from results.plan import KernelStep, LaunchPlan, MemsetStep
from tuner.cli import run
from tuner.devices.device import Candidate
from tuner.mutation import Fate, mutate
from tuner.mutation.context import Context
from tuner.mutation.demand import ALL, Demand
from tuner.mutation.equivalence import RULES, reason
from tuner.mutation.integers import result_of
from tuner.mutation.judging import Judge
from tuner.mutation.operators import OPERATORS, all_mutants
from tuner.mutation.plan_operators import plan_mutants
from tuner.mutation.problems import more_problems
from tuner.mutation.sampling import every_mutant, sample
from tuner.mutation.source import Source
from tuner.mutation.values import ANY, Range, Values
from tuner.ptxas import Assembler

TARGET = Target.of("sm_89")
SMALL = dataclasses.replace(GEMM_S8.baseline, tile_m=32, tile_n=32, warps_m=1, warps_n=2, stages=2)
EMITTED = GEMM_S8.emit(SMALL, TARGET)


def body(*statements: str) -> Source:
    """A text of these statements and the registers that they may use."""
    return Source.of("\n".join(["    .reg .b32 %r<64>;", "    .reg .pred %p<8>;", *statements]))


@pytest.mark.parametrize("name", KERNELS)
def test_every_instruction_of_an_emitted_kernel_is_a_statement(name: str) -> None:
    kernel = KERNELS[name]
    source = Source.of(kernel.emit(kernel.baseline, TARGET).ptx)
    text = {statement.number: statement.text for statement in source.statements}
    for number, line in enumerate(source.lines, 1):
        if line.strip().endswith(";") and not line.strip().startswith((".", "//")):
            assert text[number] == line.strip()


def test_mutants_differ_from_the_kernel_and_from_each_other() -> None:
    found = [mutant for mutants in every_mutant(EMITTED).values() for mutant in mutants]
    kernels = {(mutant.of(EMITTED).ptx, str(mutant.of(EMITTED).plan)) for mutant in found[::7]}
    assert len(kernels) == len(found[::7])
    assert (EMITTED.ptx, str(EMITTED.plan)) not in kernels


@pytest.mark.parametrize(
    ("operator", "statement", "mutants"),
    [
        ("delete synchronisation", "bar.sync 0;", {"(deleted)"}),
        (
            "duplicate synchronisation",
            "cp.async.commit_group;",
            {"cp.async.commit_group; cp.async.commit_group;"},
        ),
        (
            "groups waited for",
            "cp.async.wait_group 1;",
            {f"cp.async.wait_group {groups};" for groups in (0, 2, 3)},
        ),
        ("delete instruction", "add.u32 %r1, %r2, 4;", {"(deleted)"}),
        ("duplicate instruction", "add.u32 %r1, %r1, 4;", {"add.u32 %r1, %r1, 4; add.u32 %r1, %r1, 4;"}),
        ("constant", "shr.u32 %r1, %r2, 4;", {f"shr.u32 %r1, %r2, {by};" for by in (5, 3, 8, 2, 20)}),
        (
            "address",
            "ld.shared.b32 %r1, [%r2];",
            {f"ld.shared.b32 %r1, [%r2+{by}];" for by in (1, 4, -4, 16, -16)},
        ),
        ("exchange operands", "sub.u32 %r1, %r2, %r3;", {"sub.u32 %r1, %r3, %r2;"}),
        ("exchange operands", "add.u32 %r1, %r2, %r3;", set()),
        ("vector", "ld.shared.v2.b32 {%r1, %r2}, [%r3];", {"ld.shared.v2.b32 {%r2, %r1}, [%r3];"}),
        ("register", "mov.u32 %r0, %r63;", {"mov.u32 %r1, %r63;", "mov.u32 %r0, %r62;"}),
        ("opcode", "shl.b32 %r1, %r2, 3;", {"shr.u32 %r1, %r2, 3;"}),
        ("comparison", "setp.eq.u32 %p1, %r2, 0;", {"setp.ne.u32 %p1, %r2, 0;"}),
        ("sign", "min.u32 %r1, %r2, %r3;", {"min.s32 %r1, %r2, %r3;"}),
        ("sign", "add.u32 %r1, %r2, %r3;", set()),
        ("predicate", "@%p1 bra LOOP;", {"@!%p1 bra LOOP;", "bra LOOP;"}),
        (
            "asynchronous copy",
            "cp.async.cg.shared.global [%r1], [%rd1], 16, %r2;",
            {
                "cp.async.cg.shared.global [%r1], [%rd1], 16;",
                "cp.async.cg.shared.global [%r1], [%rd1], 16, 0;",
                "cp.async.ca.shared.global [%r1], [%rd1], 8;",
            },
        ),
        (
            "matrix load",
            "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r2];",
            {"ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%r1}, [%r2];"},
        ),
        ("add or store", "red.global.add.s32 [%rd1], %r1;", {"st.global.u32 [%rd1], %r1;"}),
        ("narrow access", "ld.shared.b32 %r1, [%r2];", {"ld.shared.u16 %r1, [%r2];"}),
    ],
)
def test_operator_makes(operator: str, statement: str, mutants: set[str]) -> None:
    assert {mutant.after for mutant in OPERATORS[operator](body(statement))} == mutants


def test_neighbours_are_exchanged_where_that_matters() -> None:
    source = body("add.u32 %r1, %r2, 4;", "add.u32 %r3, %r1, 4;", "add.u32 %r4, %r5, 4;", "bar.sync 0;")
    found = [mutant.line for mutant in OPERATORS["exchange neighbours"](source)]
    assert found == [3, 5]


def test_an_mma_takes_what_is_the_next_ones() -> None:
    one = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r0, %r1, %r2, %r3}, {%r8, %r9, %r10, %r11}, "
    found = OPERATORS["tensor operands"](
        body(f"{one}{{%r12, %r13}}, {{%r0, %r1, %r2, %r3}};", f"{one}{{%r14, %r15}}, {{%r0, %r1, %r2, %r3}};")
    )
    assert [mutant.after for mutant in found] == [f"{one}{{%r14, %r15}}, {{%r0, %r1, %r2, %r3}};"]


def test_every_operator_has_work_in_some_kernel() -> None:
    found: Counter[str] = Counter()
    for kernel in KERNELS.values():
        source = Source.of(kernel.emit(kernel.baseline, TARGET).ptx)
        found.update({name: len(mutants) for name, mutants in all_mutants(source).items()})
    split = Source.of(GEMM_S8.emit(dataclasses.replace(SMALL, split_k=2), TARGET).ptx)
    found.update({name: len(mutants) for name, mutants in all_mutants(split).items()})
    assert {name for name in OPERATORS if not found[name]} == set()


def test_plan_mutants() -> None:
    kernel = KernelStep("entry", ("ceil_div(m, 32)", "1", "1"), (64, 1, 1), 64, ("A", "m"))
    found = plan_mutants(LaunchPlan((MemsetStep("C", 0, "4 * m"), kernel)))
    assert [mutant.after for mutant in found] == [
        "(deleted)",
        "byte 1",
        "(4 * m) // 2 bytes",
        "(4 * m) - 4 bytes",
        "grid x = max(1, (ceil_div(m, 32)) - 1)",
        "grid x = (ceil_div(m, 32)) + 1",
        "grid x = floor_div(m, 32)",
        "grid y = (1) + 1",
        "grid z = (1) + 1",
        "48 shared bytes",
        "32 shared bytes",
        "0 shared bytes",
        "80 shared bytes",
        "32 threads in x",
        "128 threads in x",
        "arguments A and m exchanged",
    ]
    floored = next(mutant for mutant in found if "floor_div" in mutant.after)
    assert floored.plan is not None
    assert floored.plan.kernel_steps[0].grid_for({"m": 63}) == (1, 1, 1)
    assert floored.plan.kernel_steps[0].grid_for({"m": 64}) == (2, 1, 1)


def test_sample_is_repeatable_and_every_operator_has_its_share() -> None:
    first, again = (sample(EMITTED, 150, np.random.default_rng(3)) for _ in range(2))
    assert first == again != sample(EMITTED, 150, np.random.default_rng(4))
    possible = {name: len(mutants) for name, mutants in every_mutant(EMITTED).items()}
    drawn = Counter(mutant.operator for mutant in first)
    assert all(drawn[name] >= min(count, 150 // len(possible)) for name, count in possible.items())


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
    source = body(*random_program(np.random.default_rng(seed)))
    values = Values(source, {}, threads=96)
    for thread in range(96):
        for name, value in run_program(source, thread).items():
            known = values.of(name)
            assert known.lo <= value <= known.hi
            assert (value - known.lo) % (known.step or 1) == 0


@pytest.mark.parametrize("seed", range(60))
def test_bits_that_do_not_matter_change_nothing(seed: int) -> None:
    rng = np.random.default_rng([1, seed])
    source = body(*random_program(rng))
    demand = Demand(source)
    last = source.statements[-1].operands[1]
    assert demand.of(last) == ALL
    for number in range(11):
        free = ALL & ~demand.of(f"%r{number}") & int(rng.integers(1 << 32))
        for thread in (0, 5, 95):
            flipped = run_program(source, thread, (f"%r{number}", free))
            assert flipped[last] == run_program(source, thread)[last]


def test_values_know_sizes_remainders_and_loops() -> None:
    source = body(
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
    single = Values(body(*(s.text for s in source.statements[:-1])), {"n": Range(16, 1 << 24, 16)}, 32)
    assert single.of("%r4").is_natural


def test_low_bits_of_sums_of_multiples_do_not_matter() -> None:
    tensor = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r0, %r1, %r2, %r3}, {%r8, %r9, %r10, %r11}, "
    lines = [f"mov.b32 %r{i}, 0;" for i in range(4)]
    lines += [f"and.b32 %r{i}, %r20, 0xC0C0C0C0;" for i in (12, 13)]
    lines += [f"{tensor}{{%r12, %r13}}, {{%r0, %r1, %r2, %r3}};", "shr.s32 %r30, %r0, 6;"]
    demand = Demand(body(*lines, "st.global.b32 [%rd0], %r30;"))
    assert demand.of("%r0") == ALL & ~63
    loose = [line.replace("%r20, 0xC0C0C0C0", "%r20, 0xE0C0C0C0") for line in lines]
    assert Demand(body(*loose, "st.global.b32 [%rd0], %r30;")).of("%r0") == ALL & ~31
    free = [line.replace("%r20, 0xC0C0C0C0", "%r20, 0xC0C0C0C1") for line in lines]
    assert Demand(body(*free, "st.global.b32 [%rd0], %r30;")).of("%r0") == ALL


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


# --- judging ---


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Judge:
    assembler = Assembler(cache_dir=tmp_path_factory.mktemp("cubins"))
    binary = assembler.assemble(EMITTED.ptx, "sm_89")
    return Judge(Candidate(GEMM_S8.id, schedule_values(SMALL), EMITTED, binary), assembler)


@pytest.mark.parametrize(
    ("operator", "before", "after", "fate", "why"),
    [
        ("delete synchronisation", r"bar\.sync 0;", r"\(deleted\)", Fate.KILLED, "race"),
        ("constant", r"mov\.b32 %r\d+, 0;", r"mov\.b32 %r\d+, 1;", Fate.KILLED, "mismatch"),
        ("plan", "step 0: gemm_s8", "128 threads in x", Fate.KILLED, "refused"),
        ("matrix load", ".*", ".*", Fate.KILLED, "mismatch"),
        (
            "sign",
            r"shr\.u32 %r\d+, %r\d+, 5;",
            r"shr\.s32 .*",
            Fate.EQUIVALENT,
            "same value for all its operands",
        ),
        ("groups waited for", ".* 1;", ".* 0;", Fate.EQUIVALENT, "synchronises as much or more"),
    ],
)
def test_fate(judge: Judge, operator: str, before: str, after: str, fate: Fate, why: str) -> None:
    judged = judge.judge(
        next(
            mutant
            for mutant in every_mutant(EMITTED)[operator]
            if re.fullmatch(before, mutant.before) and re.fullmatch(after, mutant.after)
        )
    )
    assert (judged.fate, judged.why) == (fate, why)


def test_more_problems_are_valid_new_and_no_larger_than_the_edges(judge: Judge) -> None:
    found = more_problems(judge.candidate, np.random.default_rng(2))
    assert len(set(found)) == len(found) == 100
    edges = GEMM_S8.edge_problems(SMALL)
    most = max(2 * edge["m"] * edge["n"] * edge["k"] for edge in edges)
    for problem in found:
        assert problem["n"] % 16 == problem["k"] % 16 == 0
        assert problem not in edges
        assert 2 * problem["m"] * problem["n"] * problem["k"] <= most
    assert found == more_problems(judge.candidate, np.random.default_rng(2))


def test_an_endless_mutant_stops_at_a_multiple_of_what_the_kernel_takes(judge: Judge) -> None:
    looping = next(m for m in every_mutant(EMITTED)["predicate"] if m.after == "bra MAIN_LOOP;")
    judged = judge.judge(looping)
    assert (judged.fate, judged.why) == (Fate.KILLED, "endless")
    steps = re.search(r"(\d+) instructions have run", judged.detail)
    assert steps is not None
    assert 20_000 <= int(steps[1]) <= 200_000


def test_the_kernel_itself_is_right(judge: Judge) -> None:
    assert judge.fault_of_kernel() == ""


def test_mutants_are_counted(tmp_path) -> None:
    schedule = schedule_values(SMALL)
    found = mutate("gemm_s8", schedule, TARGET, 30, 0, Assembler(cache_dir=tmp_path), workers=1)
    assert len(found.judged) == 30
    assert sum(map(found.count, Fate)) == 30
    assert found.count(Fate.KILLED) >= 15
    assert found.count(Fate.MISSED) == found.count(Fate.ALIVE) == 0
    assert sum(found.reasons(Fate.KILLED).values()) == found.count(Fate.KILLED)
    assert [judged.mutant for judged in found.judged] == sample(EMITTED, 30, np.random.default_rng(0))


def test_command_says_what_became_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    code = run(["mutate", "--kernel", "affine_f32", "--mutants", "12", "--workers", "1", "--json"])
    (one,) = json.loads(capsys.readouterr().out)
    assert len(one["mutants"]) == 12 <= one["possible"]
    fates = {mutant["fate"] for mutant in one["mutants"]}
    assert fates <= {fate.value for fate in Fate}
    assert code == (1 if fates & {"missed", "alive"} else 0)


def test_command_refuses_no_mutants(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["mutate", "--kernel", "gemm", "--mutants", "0"]) == 2
    assert "--mutants must be at least 1, got 0" in capsys.readouterr().err
