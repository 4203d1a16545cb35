"""The cost model held to published times, and the hand-written kernel to what is published about it."""

import sys
from pathlib import Path

import numpy as np
import pytest

from emitters.gemm import TERNARY_GEMM_S8
from tuner.ptxas import Assembler
from tuner.simulator import Launch, simulate

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import hand_written
import published


@pytest.fixture(scope="module")
def rows() -> list[published.Row]:
    return list(published.rows())


def test_every_published_row_is_there(rows: list[published.Row]) -> None:
    kernels = [row.kernel for row in rows]
    assert len(rows) == 18
    assert {kernels.count(kernel) for kernel in set(kernels)} == {6}


@pytest.mark.parametrize(("kernel", "limit"), [("ternary_gemm_s8_v1", 0.15), ("cutlass_3.5.1_s8", 0.25)])
def test_predictions_are_near_the_published_times(
    kernel: str, limit: float, rows: list[published.Row]
) -> None:
    errors = [row.error for row in rows if row.kernel == kernel]
    assert len(errors) == 6
    assert all(error is not None and abs(error) <= limit for error in errors), errors


def test_bf16_is_not_modelled(rows: list[published.Row]) -> None:
    context = [row for row in rows if row.kernel == "cutlass_3.5.1_bf16"]
    assert [row.predicted_us for row in context] == [None] * 6
    assert all("no kernel here computes bf16" in row.remark for row in context)


def test_command_prints_every_row_and_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert published.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum("m x n x k" not in line and " us" in line for line in lines) == 18
    assert sum("%" in line for line in lines[1:19]) == 12
    assert lines[-1] == "every error is within its limit"


def test_command_fails_where_an_error_exceeds_its_limit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(published.LIMITS, "cutlass_3.5.1_s8", 1e-6)
    assert published.main() == 1
    assert "errors exceed their limit" in capsys.readouterr().out


def test_hand_written_kernel_is_right_and_as_described(tmp_path: Path) -> None:
    emitted = hand_written.emit()
    kernel = TERNARY_GEMM_S8
    problem = kernel.spec.problem(256, 128, 96)
    inputs = kernel.inputs(problem, np.random.default_rng(3))
    step = emitted.plan.kernel_steps[0]
    sizes = problem.sizes
    arguments = tuple(sizes.get(name, name) for name in step.arguments)
    report = simulate(
        emitted.ptx,
        [Launch(step.entry, step.grid_for(sizes), step.block, step.shared_bytes, arguments)],
        {**inputs.buffers, "C": np.zeros((256, 128), np.int32)},
        outputs=("C",),
    )
    assert report.clean
    expected = kernel.reference(problem, inputs, kernel.baseline)
    assert not expected.mismatched("C", report.buffers["C"]).any()

    counted = report.counters[0]
    byte_stores = 2 * 3 * 8 * 16  # blocks, k-steps, warps, codes of a thread
    wide_stores = 2 * 3 * 8
    # Eight lanes of a byte store meet in a bank, and two of a 16-byte store, which takes four at best.
    assert counted.shared_stores.wavefronts == 8 * byte_stores + 2 * 4 * wide_stores
    assert counted.matrix_loads.wavefronts == counted.matrix_loads.ideal
    assert step.shared_bytes == 12288
    binary = Assembler(cache_dir=tmp_path).assemble(emitted.ptx, emitted.arch)
    assert binary.registers == pytest.approx(105, rel=0.1)
    assert not emitted.plan.is_valid({"m": 129, "n": 128, "k": 96})
