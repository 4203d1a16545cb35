"""Mutation operators, of the text and of the plan, and how mutants are drawn."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from small_gemm import EMITTED, SMALL, TARGET, text

from emitters import KERNELS
from emitters.gemm import GEMM_S8
from results.plan import KernelStep, LaunchPlan, MemsetStep
from tuner.mutation.operators import OPERATORS, all_mutants
from tuner.mutation.plan_operators import plan_mutants
from tuner.mutation.sampling import every_mutant, sample
from tuner.mutation.source import Source


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
    assert {mutant.after for mutant in OPERATORS[operator](text(statement))} == mutants


def test_neighbours_are_exchanged_where_that_matters() -> None:
    source = text("add.u32 %r1, %r2, 4;", "add.u32 %r3, %r1, 4;", "add.u32 %r4, %r5, 4;", "bar.sync 0;")
    found = [mutant.line for mutant in OPERATORS["exchange neighbours"](source)]
    assert found == [3, 5]


def test_an_mma_takes_what_is_the_next_ones() -> None:
    one = "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r0, %r1, %r2, %r3}, {%r8, %r9, %r10, %r11}, "
    found = OPERATORS["tensor operands"](
        text(f"{one}{{%r12, %r13}}, {{%r0, %r1, %r2, %r3}};", f"{one}{{%r14, %r15}}, {{%r0, %r1, %r2, %r3}};")
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
