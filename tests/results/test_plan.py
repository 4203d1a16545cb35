"""Launch plans: what they say for a problem, and that JSON keeps all of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from results.launch import KernelLaunch, Memset, launch_for
from results.plan import KernelStep, LaunchPlan, MemsetStep

formulas = st.sampled_from(["0", "1", "m", "4 * m * n", "ceil_div(n, 128)", "k % 64 == 0"])
names = st.text("abcdefgh_", min_size=1, max_size=8)
memsets = st.builds(MemsetStep, names, st.integers(0, 255), formulas)
kernels = st.builds(
    KernelStep,
    names,
    st.tuples(formulas, formulas, formulas),
    st.tuples(*[st.integers(1, 1024)] * 3),
    st.integers(0, 232448),
    st.lists(names | formulas, max_size=6).map(tuple),
)
plans = st.builds(LaunchPlan, st.lists(memsets | kernels, max_size=4).map(tuple), formulas, formulas)

SPLIT = LaunchPlan(
    steps=(
        MemsetStep("c", 0, "4 * m * n"),
        KernelStep(
            "ternary_gemm_s8",
            grid=("ceil_div(m, 128)", "ceil_div(n, 256)", "4"),
            block=(32, 4, 2),
            shared_bytes=50176,
            arguments=("a", "w", "c", "workspace", "m", "n", "k", "ceil_div(k, 4)", "scale"),
        ),
    ),
    workspace_bytes="m * n // 2",
    valid="n % 64 == 0 and k >= 128",
)
SIZES = {"m": 300, "n": 320, "k": 1280}


@given(plans)
def test_plan_survives_json(plan: LaunchPlan) -> None:
    assert LaunchPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_plan_answers_for_a_problem() -> None:
    (step,) = SPLIT.kernel_steps
    assert step.threads == 256
    assert step.grid_for(SIZES) == (3, 2, 4)
    assert SPLIT.workspace_for(SIZES) == 48000
    assert SPLIT.is_valid(SIZES)
    assert not SPLIT.is_valid({**SIZES, "n": 272})
    assert LaunchPlan(()).is_valid({})
    assert LaunchPlan(()).workspace_for({}) == 0


def test_launch_has_a_number_for_every_formula_and_keeps_operands_by_name() -> None:
    launch = launch_for(SPLIT, SIZES, ["a", "w", "c", "scale"])
    assert launch.workspace_bytes == 48000
    assert launch.steps == (
        Memset("c", 0, 4 * 300 * 320),
        KernelLaunch(
            "ternary_gemm_s8",
            grid=(3, 2, 4),
            block=(32, 4, 2),
            shared_bytes=50176,
            arguments=("a", "w", "c", "workspace", 300, 320, 1280, 320, "scale"),
        ),
    )


def test_step_of_an_unknown_kind_is_refused() -> None:
    value = {"steps": [{"kind": "copy"}], "workspace_bytes": "0", "valid": "1"}
    with pytest.raises(ValueError, match="a step is a memset or a kernel, got 'copy'"):
        LaunchPlan.from_json(value)


@pytest.mark.parametrize("byte", [-1, 256])
def test_memset_takes_one_byte(byte: int) -> None:
    with pytest.raises(ValueError, match=rf"byte must be within 0..255, got {byte}"):
        MemsetStep("c", byte, "m")
