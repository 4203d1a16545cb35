"""`tune run --weights`: a study about a tensor of a model file."""

import sys
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from commands import refused

from emitters import gguf_weights, kernel_named
from emitters.gguf_weights import weights_problem
from emitters.kernel import schedule_values
from emitters.quants import encode_q4_k, encode_q6_k
from emitters.target import Target
from results.store import TrialStore
from tuner.cli import run
from tuner.gate import REAL_ROWS
from tuner.pipeline import BuildJob, Halted, ProveJob, Proven, WholeJob, build, perform
from tuner.ptxas import Assembler

sys.path.append(str(Path(__file__).parent.parent / "emitters"))
from gguf_files import write_gguf

TENSOR = "blk.0.attn_q.weight"
ROWS, N_IN = 100, 512


def matrix(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ROWS, N_IN))


def model(path: Path, seed: int = 1) -> Path:
    weights = matrix(seed)
    tensors = {
        TENSOR: (encode_q4_k(weights), "Q4_K"),
        "blk.0.ffn_down.weight": (encode_q6_k(weights), "Q6_K"),
    }
    return write_gguf(path, tensors)


RUN = ("run", "--sampler", "random", "--seed", "3", "--workers", "1", "--kernel", "q4k_gemv")


def tune_run(*arguments: object) -> int:
    return run([str(argument) for argument in (*RUN, *arguments)])


def test_a_tensor_is_tuned_recorded_and_gone_on_with(tmp_path: Path) -> None:
    file, out = model(tmp_path / "model.gguf"), tmp_path / "out"
    about = ("--weights", file, "--tensor", TENSOR, "--out", out)
    assert tune_run(*about, "--trials", 2) == 0
    assert tune_run(*about, "--trials", 3, "--shape", f"{ROWS}x{N_IN}") == 0
    rows = TrialStore(out, read_only=True).trials()
    assert [row.number for row in rows] == [0, 1, 2]
    assert len({row.study for row in rows}) == 1
    expected = blake3(encode_q4_k(matrix()).tobytes()).hexdigest()
    for row in rows:
        assert row.key.problem == f"{ROWS}x{N_IN}"
        assert row.key.data_hash == expected
        assert dict(row.weights) == {"file": "model.gguf", "tensor": TENSOR, "hash": expected}
        assert row.verdict is not None
        assert row.verdict.problems[-1] == f"{REAL_ROWS}x{N_IN}"  # the tensor's first rows
    everything = b"".join(path.read_bytes() for path in out.rglob("*") if path.is_file())
    assert str(tmp_path).encode() not in everything


def test_other_weights_are_another_study(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for seed in (1, 2):
        file = model(tmp_path / f"{seed}.gguf", seed)
        assert tune_run("--weights", file, "--tensor", TENSOR, "--out", out, "--trials", 1) == 0
    rows = TrialStore(out, read_only=True).trials()
    assert len({row.study for row in rows}) == 2
    assert len({row.key.data_hash for row in rows}) == 2


def test_workers_judge_on_the_tensor_itself(tmp_path: Path) -> None:
    """Weights that a file changes under a run end it: the workers do read them."""
    kernel, target = kernel_named("q4k_gemv"), Target.of("sm_89")
    problem = weights_problem(kernel, model(tmp_path / "model.gguf"), TENSOR)
    sizes = tuple(problem.sizes.values())
    built = build(BuildJob(kernel.id, schedule_values(kernel.baseline), target, sizes, Assembler()))
    assert built.candidate is not None
    for job in (
        ProveJob(built.candidate, sizes, 0, "sim:rtx4090", problem.data),
        WholeJob(built.candidate, sizes, 0, data=problem.data),
    ):
        proven = perform(job)
        assert isinstance(proven, Proven)
        assert proven.failure is None
    model(tmp_path / "other.gguf", seed=2).replace(tmp_path / "model.gguf")
    gguf_weights._loaded.cache_clear()
    for job in (
        ProveJob(built.candidate, sizes, 1, "sim:rtx4090", problem.data),
        WholeJob(built.candidate, sizes, 1, data=problem.data),
    ):
        halted = perform(job)
        assert isinstance(halted, Halted)
        assert "has changed since the run began" in halted.message


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--weights", "{file}", "--tensor", TENSOR, "--shape", "100x256"),
         f"--shape must be that of the tensor, {TENSOR} is 100x512, got 100x256; leave it out"),
        (("--weights", "{file}"), "--weights needs --tensor NAME, the tensor to take from {file}"),
        (("--tensor", TENSOR),
         f"--tensor names a tensor of the file of --weights, got --tensor {TENSOR} alone"),
        (("--weights", "{file}", "--tensor", "blk.0.attn_k.weight"),
         f"{{file}} has no tensor 'blk.0.attn_k.weight'; did you mean {TENSOR}"),
        (("--weights", "{file}", "--tensor", "blk.0.ffn_down.weight"),
         "q4k_gemv takes tensors of type Q4_K, got blk.0.ffn_down.weight of type Q6_K"),
        (("--weights", "nothing.gguf", "--tensor", TENSOR), "cannot read nothing.gguf: No such file"),
        (("--weights", "{file}", "--tensor", TENSOR, "--device", "replay:x.json"),
         "--weights and --tensor are for a kernel on a device; a recording has its own data"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    file = model(tmp_path / "model.gguf")
    said = refused(capsys, *RUN, "--trials", 1, *(argument.format(file=file) for argument in arguments))
    assert said.startswith(line.format(file=file)), said
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


def test_a_kernel_without_weights_names_those_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = model(tmp_path / "model.gguf")
    said = refused(capsys, *RUN[:-1], "rmsnorm", "--weights", file, "--tensor", TENSOR)
    assert "rmsnorm takes no weights from a file; q4k_gemv, q4k_soa_wmma, q6k_soa_gemv, wmma_gemv do" in said


def test_the_whole_of_a_tensor_can_be_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = model(tmp_path / "model.gguf")
    arguments = ["check", "--kernel", "q4k_soa_wmma", "--weights", str(file), "--tensor", TENSOR]
    assert run([*arguments, "--workers", "1"]) == 0
    assert " 1 " in capsys.readouterr().out
