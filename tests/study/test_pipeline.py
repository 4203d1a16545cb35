"""The way of a candidate, part by part: which exception becomes which outcome, and what the gate sees."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_device import FakeDevice

from emitters import kernel_named
from emitters.kernel import EmittedKernel, Expected, ParameterValue, ProblemError
from emitters.target import Target
from results.plan import LaunchPlan, MemsetStep
from results.trial import Outcome, Verdict
from tuner.devices.device import Candidate, DeviceError
from tuner.devices.errors import CandidateCrashError
from tuner.gate import prove, prove_on
from tuner.pipeline import (
    BuildJob,
    Built,
    Halted,
    HaltedError,
    ProveJob,
    Proven,
    WholeJob,
    build,
    check_serves,
    gate,
    judge,
    perform,
    time_on,
    verify_on,
    whole,
)
from tuner.ptxas import Assembler

SOUND: dict[str, ParameterValue] = {
    "threads": 64,
    "per_thread": 2,
    "padding": 0,
    "label": "left",
    "flaw": "none",
}
TARGET = Target.of("sm_89")


def job(kernel: str = "toy", sizes: tuple[int, ...] | None = (256,), **schedule: ParameterValue) -> BuildJob:
    return BuildJob(kernel, {**SOUND, **schedule}, TARGET, sizes, Assembler())


def candidate(kernel: str = "toy", **schedule: ParameterValue) -> Candidate:
    built = build(job(kernel, **schedule))
    assert built.candidate is not None
    return built.candidate


def with_text(given: Candidate, old: str, new: str, plan: LaunchPlan | None = None) -> Candidate:
    """The same candidate with other PTX or another plan."""
    assert old in given.emitted.ptx
    emitted = given.emitted
    ptx = emitted.ptx.replace(old, new, 1)
    changed = EmittedKernel(emitted.kernel, emitted.arch, emitted.schedule, ptx, plan or emitted.plan)
    return replace(given, emitted=changed)


def test_a_sound_candidate_goes_all_the_way() -> None:
    built = build(job())
    assert built.candidate is not None
    assert built.failure is None
    assert built.source_hash == built.candidate.emitted.source_hash
    assert built.seconds.keys() == {"emit", "assemble"}
    proven = gate(ProveJob(built.candidate, (256,), 0, "sim:rtx4090"))
    assert proven.failure is None
    assert proven.verdict is not None
    assert proven.verdict.is_right
    assert proven.measurement is not None
    assert proven.measurement.source.word == "predicted"
    assert {"gate", "verify", "measure"} <= proven.seconds.keys()


def test_without_a_device_the_gate_is_all() -> None:
    proven = gate(ProveJob(candidate(), (256,), 0, None))
    assert proven.measurement is None
    assert proven.verdict == Verdict(0, ("2", "258"))


@pytest.mark.parametrize(
    ("schedule", "outcome", "words"),
    [
        ({"flaw": "refused by the emitter"}, Outcome.EMIT, "flaw must be none"),
        ({"flaw": "refused by ptxas"}, Outcome.ASSEMBLE, "PTX line"),
        ({"flaw": "defect"}, Outcome.CRASH, "ZeroDivisionError: a defect of the emitter (at toy_kernels.py:"),
        ({"colour": "red"}, Outcome.EMIT, "flawed has no parameter 'colour'"),
    ],
)
def test_what_goes_wrong_while_building(
    schedule: dict[str, ParameterValue], outcome: Outcome, words: str
) -> None:
    built = build(job("flawed", **schedule))
    assert built.candidate is None
    assert built.failure is not None
    assert built.failure.outcome is outcome
    assert words in built.failure.message


def test_ptxas_that_takes_too_long_is_an_outcome(tmp_path: Path) -> None:
    slow = tmp_path / "ptxas"
    slow.write_text(
        f"#!/bin/sh\ncase $1 in --version) exec {Assembler().ptxas} --version;; esac\nexec sleep 60\n"
    )
    slow.chmod(0o755)
    assembler = Assembler(slow, timeout_s=0.3, cache_dir=tmp_path / "cache")
    built = build(BuildJob("toy", SOUND, TARGET, None, assembler))
    assert built.failure is not None
    assert built.failure.outcome is Outcome.ASSEMBLE
    assert "longer than 0.3 s" in built.failure.message


def test_a_cache_that_cannot_be_written_ends_the_run(tmp_path: Path) -> None:
    assembler = Assembler(cache_dir=tmp_path / "cache")
    (tmp_path / "cache").rmdir()
    (tmp_path / "cache").write_text("a file in its place")
    broken = BuildJob("toy", {**SOUND, "padding": 32}, TARGET, None, assembler)
    with pytest.raises(HaltedError, match="cannot be"):
        build(broken)
    answer = perform(broken)
    assert isinstance(answer, Halted)
    assert str(tmp_path) in answer.message


def test_a_schedule_that_cannot_serve_the_problem_is_refused() -> None:
    emitted = candidate().emitted
    limited = EmittedKernel("toy", "sm_89", {}, emitted.ptx, replace(emitted.plan, valid="n % 64 == 0"))
    problem = kernel_named("toy").spec.problem(98)
    with pytest.raises(ProblemError, match=r"this schedule serves problems with n % 64 == 0, got 98"):
        check_serves(limited, problem)
    check_serves(limited, kernel_named("toy").spec.problem(128))


@pytest.mark.parametrize(
    ("flaw", "fault", "words"),
    [
        ("wrong", None, "mismatches: y["),
        ("race", "race", "the other party"),
        ("out_of_bounds", "out_of_bounds", "PTX line"),
    ],
)
def test_the_gate_stops_at_the_first_wrong_problem(flaw: str, fault: str | None, words: str) -> None:
    verdict = prove(candidate("flawed", flaw=flaw), 0)
    failure = judge(verdict)
    assert failure is not None
    assert failure.outcome is (Outcome.FAULT if fault else Outcome.WRONG)
    assert verdict.fault == fault
    assert words in failure.message
    assert len(verdict.problems) <= 2


def test_elements_that_were_never_written_are_mismatches() -> None:
    """A guard that leaves out the last element, which the data may expect to be anything."""
    given = candidate(per_thread=1)
    lazy = with_text(
        given, "@%p2 st.global.u32", "setp.gt.u32 %p3, %r13, 0;\nand.pred %p2, %p2, %p3;\n@%p2 st.global.u32"
    )
    verdict = prove(lazy, 0)
    assert verdict.mismatches == 1
    assert "1 elements of y were never written" in verdict.first_bad


def test_the_whole_plan_is_run() -> None:
    """A memset after the kernel spoils what that wrote."""
    given = candidate()
    spoiled = replace(given.emitted.plan, steps=(*given.emitted.plan.steps, MemsetStep("y", 0, "4 * n")))
    verdict = prove(with_text(given, "ret;", "ret;", spoiled), 0)
    assert verdict.mismatches >= 2
    assert "y[0] is 0, expected" in verdict.first_bad


def test_an_endless_loop_is_a_fault() -> None:
    verdict = prove(with_text(candidate(), "ret;", "again: bra again;\nret;"), 0)
    assert verdict.fault == "endless"


def test_ptx_that_the_simulator_does_not_know_is_a_defect_of_ours() -> None:
    unknown = with_text(candidate(), "ret;", "tcgen05.fence::before_thread_sync;\nret;")
    proven = gate(ProveJob(unknown, (256,), 0, None))
    assert proven.failure is not None
    assert proven.failure.outcome is Outcome.CRASH
    assert "tcgen05" in proven.failure.message


def test_data_depends_on_the_seed_alone() -> None:
    """A wrong candidate gives the same first mismatch for the same seed, another for another."""
    wrong = candidate("flawed", flaw="wrong")
    first = prove(wrong, 1)
    assert prove(wrong, 1) == first
    assert prove(wrong, 2).first_bad != first.first_bad


def test_a_sample_of_blocks_is_of_one_kernel_only() -> None:
    given = candidate()
    problem = kernel_named("toy").spec.problem(65536)
    assert prove_on(given, (problem,), 0, blocks=5).is_right
    plan = replace(given.emitted.plan, steps=(MemsetStep("y", 0, "4 * n"), *given.emitted.plan.steps))
    with pytest.raises(ValueError, match="none owns its outputs alone"):
        prove_on(with_text(given, "ret;", "ret;", plan), (problem,), 0, blocks=5)
    proven = whole(WholeJob(with_text(given, "ret;", "ret;", plan), (65536,), 0, 5))
    assert proven.failure is not None
    assert proven.failure.outcome is Outcome.CRASH


def test_a_candidate_that_was_run_on_nothing_is_not_right() -> None:
    failure = judge(Verdict(0, ()))
    assert failure is not None
    assert failure.outcome is Outcome.WRONG


def test_a_device_that_is_gone_ends_the_run() -> None:
    def gone(schedule: object) -> None:
        raise DeviceError("no GPU any more")

    problem = kernel_named("toy").spec.problem(256)
    with pytest.raises(HaltedError, match="no GPU any more"):
        time_on(FakeDevice(act=gone), candidate(), problem, 0, None)


def test_what_happens_while_verifying_is_the_candidates() -> None:
    def fails(schedule: object, problem: object) -> Verdict:
        raise CandidateCrashError("the worker printed garbage")

    problem = kernel_named("toy").spec.problem(256)
    proven = verify_on(FakeDevice(verdict_of=fails), candidate(), problem, 0)
    assert proven.failure is not None
    assert (proven.failure.outcome, proven.failure.message) == (Outcome.CRASH, "the worker printed garbage")


def test_answers_travel_between_processes_as_values() -> None:
    built = perform(job())
    assert isinstance(built, Built)
    assert built.candidate is not None
    assert isinstance(perform(ProveJob(built.candidate, (256,), 0, None)), Proven)
    assert isinstance(perform(WholeJob(built.candidate, (256,), 0)), Proven)


def test_nan_is_wrong_where_a_bound_applies() -> None:
    expected = Expected({"y": np.zeros(3)}, {"y": np.full(3, 1e9)})
    assert expected.mismatched("y", np.array([0, np.nan, np.inf], np.float32)).tolist() == [False, True, True]
