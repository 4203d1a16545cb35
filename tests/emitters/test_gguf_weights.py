"""Tensors of GGUF files that the `gguf` package wrote."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from float_proof import kernel_of
from gguf_files import write_gguf

from emitters.gguf_weights import GgufWeightsError, load_weights, weights_problem
from emitters.kernel import ProblemError
from emitters.quants import decode_q4_k, encode_q4_k, encode_q6_k, q4_k_to_soa

ROWS, N_IN = 6, 512


@pytest.fixture(scope="module")
def weights() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((ROWS, N_IN))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, weights: np.ndarray) -> Path:
    overflowing = weights.astype(np.float16)
    overflowing[4, 7] = np.inf
    broken = encode_q4_k(weights).copy()
    broken[3, 144 + 2 : 144 + 4] = np.array([np.nan], np.float16).view(np.uint8)
    return write_gguf(
        tmp_path_factory.mktemp("gguf") / "model.gguf",
        {
            "blk.0.attn_q.weight": (encode_q4_k(weights), "Q4_K"),
            "blk.0.ffn_down.weight": (encode_q6_k(weights), "Q6_K"),
            "blk.0.ffn_up.weight": (weights.astype(np.float16), None),
            "ragged.weight": (weights[:, :500].astype(np.float16), None),
            "norm.weight": (weights[0].astype(np.float16), None),
            "overflowing.weight": (overflowing, None),
            "broken.weight": (broken, "Q4_K"),
        },
    )


@pytest.mark.parametrize(
    ("kernel", "tensor", "encode"),
    [
        ("q4k_gemv", "blk.0.attn_q.weight", encode_q4_k),
        ("q6k_soa_gemv", "blk.0.ffn_down.weight", encode_q6_k),
        ("q4k_soa_wmma", "blk.0.attn_q.weight", lambda weights: q4_k_to_soa(encode_q4_k(weights))),
    ],
)
def test_blocks_arrive_byte_for_byte(
    file: Path, weights: np.ndarray, kernel: str, tensor: str, encode: Any
) -> None:
    loaded = load_weights(kernel_of(kernel), file, tensor)
    assert loaded.problem.sizes == {"n_out": ROWS, "n_in": N_IN}
    assert loaded.operand == "W"
    np.testing.assert_array_equal(loaded.weights, encode(weights))


def test_a_problem_of_a_tensor_has_its_weights_and_another_has_not(file: Path, weights: np.ndarray) -> None:
    kernel = kernel_of("q4k_gemv")
    problem = weights_problem(kernel, file, "blk.0.attn_q.weight")
    own = kernel.data(problem, np.random.default_rng(2))
    np.testing.assert_allclose(decode_q4_k(own.buffers["W"]), weights, atol=0.3)
    assert own.buffers["x"].shape == (N_IN,)
    other = kernel.data(kernel.spec.problem(ROWS, N_IN), np.random.default_rng(2))
    np.testing.assert_array_equal(other.buffers["x"], own.buffers["x"])
    assert (other.buffers["W"] != own.buffers["W"]).any()


def test_the_beginning_of_a_tensor_is_its_first_rows(file: Path) -> None:
    kernel = kernel_of("q4k_gemv")
    problem = weights_problem(kernel, file, "blk.0.attn_q.weight")
    assert problem.data is not None
    part = problem.data.beginning(kernel, problem, 4)
    assert str(part) == f"4x{N_IN}"
    whole = kernel.data(problem, np.random.default_rng(2)).buffers["W"]
    np.testing.assert_array_equal(kernel.data(part, np.random.default_rng(2)).buffers["W"], whole[:4])
    assert str(problem.data.beginning(kernel, problem, 1000)) == f"{ROWS}x{N_IN}"


def test_a_row_can_say_which_bytes_they_were(file: Path, weights: np.ndarray) -> None:
    problem = weights_problem(kernel_of("q4k_soa_wmma"), file, "blk.0.attn_q.weight")
    assert problem.data is not None
    assert problem.data.description == {
        "file": "model.gguf",
        "tensor": "blk.0.attn_q.weight",
        "hash": blake3(encode_q4_k(weights).tobytes()).hexdigest(),  # as in the file, not as converted
    }


@pytest.mark.parametrize(
    ("kernel", "tensor", "message"),
    [
        (
            "q4k_gemv",
            "blk.0.attn_k.weight",
            r"no tensor 'blk.0.attn_k.weight'; did you mean blk.0.attn_q.weight",
        ),
        ("q4k_gemv", "zzz", r"no tensor 'zzz'; it has blk.0.attn_q.weight, "),
        (
            "q4k_gemv",
            "blk.0.ffn_down.weight",
            r"takes tensors of type Q4_K, got .* of type Q6_K, .* q6k_soa_gemv would",
        ),
        (
            "q4k_gemv",
            "broken.weight",
            r"broken.weight of .*: dmin must be finite, is not in block 1 of row 3",
        ),
        ("q4k_soa_wmma", "broken.weight", r"broken.weight of .*: dmin\*min .* of block 1 of row 3"),
        ("wmma_gemv", "overflowing.weight", r"weights must be finite, got inf at 7 of row 4"),
        ("rmsnorm", "norm.weight", r"rmsnorm takes no weights from a file; q4k_gemv"),
    ],
)
def test_what_does_not_fit_is_said(file: Path, kernel: str, tensor: str, message: str) -> None:
    with pytest.raises(GgufWeightsError, match=message):
        load_weights(kernel_of(kernel), file, tensor)


def test_a_file_that_is_none_is_said(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with pytest.raises(GgufWeightsError, match=r"cannot read .*model.gguf: No such file"):
        load_weights(kernel_of("q4k_gemv"), path, "x")
    path.write_bytes(b"not a model" * 10)
    with pytest.raises(GgufWeightsError, match="must be a whole GGUF file"):
        load_weights(kernel_of("q4k_gemv"), path, "x")


@pytest.mark.parametrize("part", [0.0, 0.001, 0.1, 0.5, 0.99])
def test_a_file_that_is_cut_short_is_said(tmp_path: Path, file: Path, part: float) -> None:
    path, whole = tmp_path / "model.gguf", file.read_bytes()
    path.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(GgufWeightsError, match="must be a whole GGUF file"):
        load_weights(kernel_of("q4k_gemv"), path, "blk.0.attn_q.weight")


def test_a_missing_extra_is_said(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(GgufWeightsError, match=r"pip install 'ptx-tuner\[gguf\]'"):
        load_weights(kernel_of("q4k_gemv"), file, "blk.0.attn_q.weight")


def test_a_matrix_of_halves_arrives_for_wmma_gemv(file: Path, weights: np.ndarray) -> None:
    loaded = load_weights(kernel_of("wmma_gemv"), file, "blk.0.ffn_up.weight")
    assert loaded.operand == "A"
    np.testing.assert_array_equal(loaded.weights, weights.astype(np.float16))


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        ("norm.weight", GgufWeightsError, "norm.weight must be a matrix, got 1 axes"),
        ("ragged.weight", ProblemError, "n_in must be a positive multiple of 8"),
    ],
)
def test_a_tensor_of_another_shape_is_refused(
    file: Path, tensor: str, error: type[ValueError], message: str
) -> None:
    with pytest.raises(error, match=message):
        load_weights(kernel_of("wmma_gemv"), file, tensor)
