"""Every kernel of the table is tuned, promoted, loaded and verified through the command line."""

import json
from pathlib import Path

import pytest

import results.frozen
from emitters import kernel_named
from results.store import TrialStore
from results.trial import Outcome
from tuner.cli import run

SHAPES = {
    "ternary_gemm_s8": "300x272x96",
    "gemm_s8": "300x272x96",
    "hslm_dx_s8": "27x256x736",
    "hslm_dw_s8": "256x736x27",
    "affine_f32": "100003",
    "rmsnorm": "7x4096",
    "q4k_gemv": "100x1024",
    "q4k_soa_wmma": "100x1024",
    "q6k_soa_gemv": "100x1024",
    "wmma_gemv": "100x1024",
    "sdpa_decode": "8x2x64x300x277",
}


def test_the_table_is_all_here() -> None:
    assert {kernel_named(name).id for name in SHAPES} == set(SHAPES)
    assert len(SHAPES) == 11


@pytest.mark.slow
@pytest.mark.parametrize("kernel", SHAPES)
def test_a_kernel_is_tuned_promoted_and_loaded(
    kernel: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry, shape, out = kernel_named(kernel), SHAPES[kernel], str(tmp_path)
    name = (*entry.aliases, entry.id)[0]
    ran = ["run", "--kernel", name, "--shape", shape, "--trials", "6", "--seed", "1", "--out", out]
    assert run(ran) == 0
    assert "% of the bound" in capsys.readouterr().out
    rows = TrialStore(tmp_path, read_only=True).trials()
    assert {row.outcome for row in rows} <= {Outcome.OK, Outcome.DUPLICATE}
    assert sum(row.outcome is Outcome.OK for row in rows) == 6
    assert run(["promote", "best", "--out", out, "--json"]) == 0
    (promoted,) = json.loads(capsys.readouterr().out)
    assert promoted["why_not"] == ""
    problem = entry.spec.parse_problem(shape)
    for called in (entry.id, name):
        kernel_loaded = results.frozen.load(called, *problem.sizes.values(), arch="sm_89", out=tmp_path)
        assert kernel_loaded.is_predicted
        assert kernel_loaded.arguments == entry.spec.arguments
        assert f".entry {entry.id}(" in kernel_loaded.ptx
        best = next(row for row in rows if row.number == promoted["number"])
        assert dict(kernel_loaded.schedule) == dict(best.schedule)
        (main, *_) = [step for step in kernel_loaded.launch().steps if hasattr(step, "entry")]
        assert main.entry == entry.id
        assert set(problem.sizes.values()) <= set(main.arguments)
    assert run(["frozen", "verify", "--out", out]) == 0
