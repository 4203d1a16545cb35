"""What every float kernel keeps: right on its edge problems for any schedule, the same bytes twice, whole
text."""

from pathlib import Path

import pytest
from float_proof import FLOAT_KERNELS, kernel_of, random_schedules, space_of

from emitters.kernel import ParameterValue, schedule_values
from emitters.target import ARCHS, Target
from tuner.gate import prove
from tuner.pipeline import BuildJob, build
from tuner.ptxas import Assembler

SAMPLED_SLOWLY = 100


@pytest.fixture(scope="module")
def assembler(tmp_path_factory: pytest.TempPathFactory) -> Assembler:
    cache: Path = tmp_path_factory.mktemp("cubins")
    return Assembler(cache_dir=cache)


def hold(kernel: str, arch: str, schedule: dict[str, ParameterValue], assembler: Assembler) -> None:
    """ptxas takes it without a warning; the simulator finds no mismatch and no fault on its edge problems."""
    built = build(BuildJob(kernel, schedule, Target.of(arch), None, assembler))
    assert built.failure is None, f"{schedule}: {built.failure}"
    assert built.candidate is not None
    verdict = prove(built.candidate, seed=1)
    assert verdict.fault is None, f"{schedule}: {verdict.fault_message}"
    assert verdict.mismatches == 0, f"{schedule}: {verdict.first_bad}"


@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
@pytest.mark.parametrize("kernel", FLOAT_KERNELS)
def test_random_schedules_are_right(kernel: str, arch: str, assembler: Assembler) -> None:
    for schedule in random_schedules(kernel, arch, 3, seed=4):
        hold(kernel, arch, schedule, assembler)


@pytest.mark.slow
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kernel", FLOAT_KERNELS)
def test_a_hundred_random_schedules_are_right(kernel: str, arch: str, assembler: Assembler) -> None:
    for schedule in random_schedules(kernel, arch, SAMPLED_SLOWLY, seed=5):
        hold(kernel, arch, schedule, assembler)


@pytest.mark.parametrize("kernel", FLOAT_KERNELS)
def test_baseline_is_in_the_space_and_right(kernel: str, assembler: Assembler) -> None:
    baseline = schedule_values(kernel_of(kernel).baseline)
    for arch in ARCHS:
        assert space_of(kernel, arch).index(baseline) >= 0
    hold(kernel, "sm_89", baseline, assembler)


@pytest.mark.parametrize("kernel", FLOAT_KERNELS)
def test_schedules_serve_every_edge_and_usual_problem(kernel: str) -> None:
    entry = kernel_of(kernel)
    for values in random_schedules(kernel, "sm_89", 50, seed=6):
        schedule = entry.schedule(values)
        plan = entry.emit(schedule, Target.of("sm_89")).plan
        problems = (*entry.edge_problems(schedule), *entry.usual_problems)
        assert all(plan.is_valid(problem.sizes) for problem in problems), values


@pytest.mark.parametrize("kernel", FLOAT_KERNELS)
def test_the_same_schedule_gives_the_same_bytes(kernel: str) -> None:
    entry = kernel_of(kernel)
    for values in random_schedules(kernel, "sm_90", 5, seed=7):
        first, second = (entry.emit(entry.schedule(values), Target.of("sm_90")) for _ in range(2))
        assert first.ptx == second.ptx
        assert first.source_hash == second.source_hash
        assert f"// semantic hash: {entry.spec.semantic_hash}" in first.ptx


@pytest.mark.parametrize("kernel", FLOAT_KERNELS)
def test_space_has_hundreds_of_schedules_for_every_arch(kernel: str) -> None:
    for arch in ARCHS:
        assert len(space_of(kernel, arch)) >= 500


@pytest.mark.parametrize("kernel", FLOAT_KERNELS)
def test_every_parameter_has_every_level_in_some_valid_schedule(kernel: str) -> None:
    space = space_of(kernel, "sm_90")
    for column, parameter in enumerate(space.parameters):
        assert set(space.levels[:, column]) == set(range(len(parameter.values))), parameter.name
