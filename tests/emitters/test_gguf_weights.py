"""Tensors of GGUF files that the `gguf` package wrote."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from float_proof import kernel_of

from emitters.gguf_weights import GgufWeightsError, load_weights
from emitters.kernel import Inputs, ProblemError
from emitters.quants import decode_q4_k, encode_q4_k, encode_q6_k, q4_k_to_soa

ROWS, N_IN = 6, 512


@pytest.fixture(scope="module")
def weights() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((ROWS, N_IN))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory, weights: np.ndarray) -> Path:
    path: Path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    types = gguf.GGMLQuantizationType
    writer.add_tensor("blk.0.attn_q.weight", encode_q4_k(weights), raw_dtype=types.Q4_K)
    writer.add_tensor("blk.0.ffn_down.weight", encode_q6_k(weights), raw_dtype=types.Q6_K)
    writer.add_tensor("blk.0.ffn_up.weight", weights.astype(np.float16))
    writer.add_tensor("ragged.weight", weights[:, :500].astype(np.float16))
    writer.add_tensor("norm.weight", weights[0].astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


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


def test_inputs_hold_the_tensor_for_its_own_problem_only(file: Path, weights: np.ndarray) -> None:
    kernel = kernel_of("q4k_gemv")
    loaded = load_weights(kernel, file, "blk.0.attn_q.weight")
    inputs_of = loaded.inputs_of(kernel)
    own = inputs_of(loaded.problem, np.random.default_rng(2))
    np.testing.assert_allclose(decode_q4_k(own.buffers["W"]), weights, atol=0.3)
    assert own.buffers["x"].shape == (N_IN,)
    other: Inputs = inputs_of(kernel.spec.problem(3, 256), np.random.default_rng(2))
    assert other.buffers["W"].shape == (3, 144)


@pytest.mark.parametrize(
    ("kernel", "tensor", "message"),
    [
        ("q4k_gemv", "blk.0.attn_k.weight", r"no tensor 'blk.0.attn_k.weight'; it has blk.0.attn_q.weight"),
        ("q4k_gemv", "blk.0.ffn_down.weight", r"takes tensors of type Q4_K, got .* of type Q6_K"),
        ("rmsnorm", "norm.weight", r"rmsnorm takes no weights from a file; q4k_gemv"),
    ],
)
def test_what_does_not_fit_is_said(file: Path, kernel: str, tensor: str, message: str) -> None:
    with pytest.raises(GgufWeightsError, match=message):
        load_weights(kernel_of(kernel), file, tensor)


def test_a_file_that_is_none_is_said(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    with pytest.raises(GgufWeightsError, match="must be a GGUF file"):
        load_weights(kernel_of("q4k_gemv"), path, "x")
    path.write_bytes(b"not a model" * 10)
    with pytest.raises(GgufWeightsError, match="must be a GGUF file"):
        load_weights(kernel_of("q4k_gemv"), path, "x")


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
