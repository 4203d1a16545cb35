"""What becomes of each mutant, of a kernel and at the command line."""

import json
import re

import numpy as np
import pytest
from small_gemm import EMITTED, SMALL, TARGET

from emitters.gemm import GEMM_S8
from emitters.kernel import schedule_values
from tuner.cli import run
from tuner.devices.device import Candidate
from tuner.mutation import Fate, mutate
from tuner.mutation.judging import Judge
from tuner.mutation.problems import more_problems
from tuner.mutation.sampling import every_mutant, sample
from tuner.ptxas import Assembler


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
