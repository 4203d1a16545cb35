"""Block formats against the `gguf` package, and encoders against their error bound."""

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from emitters import quants

ROWS, BLOCKS = 1000, 2


def random_bytes(
    rng: np.random.Generator, nbytes: int, halves: tuple[int, ...], rows: int = ROWS
) -> NDArray[np.uint8]:
    """Blocks of uniformly random bytes whose halves, at these offsets, are random but finite."""
    data = rng.integers(0, 256, (rows, BLOCKS, nbytes), dtype=np.uint8)
    for offset in halves:
        bits = rng.integers(0, 0x7C00, (rows, BLOCKS), dtype=np.uint16)
        bits |= rng.integers(0, 2, bits.shape, dtype=np.uint16) << np.uint16(15)
        data[..., offset : offset + 2] = bits[..., None].view(np.uint8)
    return data.reshape(rows, -1)


def extreme_bytes(nbytes: int, halves: tuple[int, ...]) -> NDArray[np.uint8]:
    """Blocks of all zeros and all ones with the largest, smallest, subnormal, zero and negative halves."""
    patterns = (0x7BFF, 0xFBFF, 0x0001, 0x8001, 0x0400, 0x0000, 0x8000)
    data = np.zeros((2 * len(patterns), BLOCKS, nbytes), np.uint8)
    data[len(patterns) :] = 0xFF
    for offset in halves:
        for row in range(len(data)):
            half = np.array([patterns[(row + offset // 2) % len(patterns)]], np.uint16)
            data[row, :, offset : offset + 2] = half.view(np.uint8)
    return data.reshape(len(data), -1)


FORMATS = {
    "q4_k": (gguf.GGMLQuantizationType.Q4_K, quants.Q4_K_BYTES, (0, 2), quants.q4_k_grouped),
    "q6_k": (gguf.GGMLQuantizationType.Q6_K, quants.Q6_K_BYTES, (208,), quants.q6_k_grouped),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["random", "extreme"])
def test_decoder_agrees_with_gguf(name: str, kind: str) -> None:
    kind_id, nbytes, halves, grouped = FORMATS[name]
    rng = np.random.default_rng(7)
    data = random_bytes(rng, nbytes, halves) if kind == "random" else extreme_bytes(nbytes, halves)
    ours = grouped(data)
    theirs = gguf.dequantize(data, kind_id).astype(np.float64)
    # gguf works in f32: a product and, for Q4_K, a difference, each rounded once.
    magnitude = np.abs(ours.scale[..., None] * ours.code) + np.abs(ours.offset[..., None])
    allowed = 2.0**-23 * magnitude.reshape(theirs.shape)
    assert (np.abs(ours.weights - theirs) <= allowed).all()


@pytest.mark.parametrize("name", FORMATS)
def test_a_flipped_bit_of_a_block_changes_what_gguf_and_we_read_alike(name: str) -> None:
    kind_id, nbytes, halves, grouped = FORMATS[name]
    rng = np.random.default_rng(8)
    one = random_bytes(rng, nbytes, halves, rows=1)[:, :nbytes]
    for offset in halves:
        one[0, offset : offset + 2] = (0x00, 0x2C)
    flipped = np.repeat(one, 8 * nbytes, axis=0)
    for bit in range(8 * nbytes):
        flipped[bit, bit // 8] ^= 1 << bit % 8
    ours = grouped(flipped).weights != grouped(one).weights
    theirs = gguf.dequantize(flipped, kind_id) != gguf.dequantize(one, kind_id)
    assert (ours == theirs).all()


def test_q4_k_fields_survive_packing() -> None:
    rng = np.random.default_rng(9)
    scales = rng.integers(0, 64, (50, 3, 8), dtype=np.uint8)
    mins = rng.integers(0, 64, (50, 3, 8), dtype=np.uint8)
    code = rng.integers(0, 16, (50, 3, 256), dtype=np.uint8)
    ones = np.ones((50, 3), np.float16)
    grouped = quants.q4_k_grouped(quants.pack_q4_k(ones, ones, scales, mins, code))
    assert (grouped.scale == scales).all()
    assert (grouped.offset == mins).all()
    assert (grouped.code.reshape(code.shape) == code).all()


def test_q6_k_fields_survive_packing() -> None:
    rng = np.random.default_rng(10)
    scales = rng.integers(-128, 128, (50, 3, 16)).astype(np.int8)
    code = rng.integers(0, 64, (50, 3, 256), dtype=np.uint8)
    grouped = quants.q6_k_grouped(quants.pack_q6_k(np.ones((50, 3), np.float16), scales, code))
    assert (grouped.scale == scales).all()
    assert (grouped.code.reshape(code.shape) + 32 == code).all()


def typical_and_extreme_weights() -> NDArray[np.float64]:
    rng = np.random.default_rng(11)
    typical = rng.standard_normal((200, 512))
    outlier = typical.copy()
    outlier[::2, 5] = 300.0
    outlier[1::2, 300] = -300.0
    rows = [typical, outlier, np.abs(typical), -np.abs(typical), typical * 1e-6, typical * 1e4]
    return np.concatenate([*rows, np.zeros((1, 512)), np.full((1, 512), 3.0), np.full((1, 512), -3.0)])


ENCODERS = {
    "q4_k": (quants.encode_q4_k, quants.q4_k_grouped),
    "q6_k": (quants.encode_q6_k, quants.q6_k_grouped),
    "soa": (quants.encode_soa, quants.soa_grouped),
}


@pytest.mark.parametrize("name", ENCODERS)
def test_encoder_stays_within_half_a_step(name: str) -> None:
    encode, grouped_of = ENCODERS[name]
    weights = typical_and_extreme_weights()
    grouped = grouped_of(encode(weights))
    half_step = np.repeat(0.5 * grouped.scale.reshape(len(weights), -1), grouped.code.shape[-1], axis=1)
    error = np.abs(grouped.weights - weights)
    assert (error <= half_step * (1 + 1e-12) + 1e-300).all()


@pytest.mark.parametrize("name", ["q4_k", "q6_k"])
def test_gguf_reads_what_we_encode(name: str) -> None:
    encode, grouped_of = ENCODERS[name]
    weights = typical_and_extreme_weights()
    data = encode(weights)
    theirs = gguf.dequantize(data, FORMATS[name][0])
    groups = weights.reshape(len(weights), 2, -1, grouped_of(data).code.shape[-1])
    # A step is at most a block's largest reach over the codes, and one more 63rd (127th) for rounding it up.
    reach = np.ptp(np.concatenate([groups, np.zeros_like(groups)], axis=-1), axis=-1).max(axis=-1)
    coarse = reach * ((1 / 15 + 2 / 63) if name == "q4_k" else (1 / 31 + 2 / 127)) + 2.0**-18
    assert (np.abs(theirs - weights) <= np.repeat(coarse, 256, axis=1)).all()


@pytest.mark.parametrize("encode", [quants.encode_q4_k, quants.encode_q6_k, quants.encode_soa])
def test_encoder_names_the_block_it_cannot_hold(encode: object) -> None:
    assert callable(encode)
    weights = np.zeros((3, 512))
    weights[2, 300] = np.nan
    with pytest.raises(quants.QuantError, match=r"finite, got nan in block 1 of row 2"):
        encode(weights)
    weights[2, 300] = -1e9
    with pytest.raises(quants.QuantError, match=r"f16 .* block 1 of row 2"):
        encode(weights)


def test_conversion_to_soa_stays_within_its_bound_and_keeps_codes() -> None:
    rng = np.random.default_rng(12)
    data = random_bytes(rng, quants.Q4_K_BYTES, (0, 2))
    blocks = data.reshape(ROWS, BLOCKS, -1)
    for offset in (0, 2):
        small = rng.uniform(-2.0, 2.0, (ROWS, BLOCKS)) * 2.0 ** rng.integers(-20, 9, (ROWS, BLOCKS))
        blocks[..., offset : offset + 2] = small.astype(np.float16)[..., None].view(np.uint8)
    soa = quants.q4_k_to_soa(data)
    grouped = quants.soa_grouped(soa)
    assert (grouped.code == quants.q4_k_grouped(data).code).all()
    error = np.abs(grouped.weights - quants.decode_q4_k(data))
    bound = quants.soa_conversion_bound(data)
    assert (error <= bound).all()
    assert error.max() > 0.25 * bound[np.unravel_index(error.argmax(), error.shape)], (
        "a bound far above is no bound"
    )


def test_conversion_is_exact_where_products_fit_f16() -> None:
    rng = np.random.default_rng(13)
    scales = rng.integers(0, 64, (20, 2, 8), dtype=np.uint8)
    code = rng.integers(0, 16, (20, 2, 256), dtype=np.uint8)
    data = quants.pack_q4_k(np.full((20, 2), 0.25), np.full((20, 2), -0.5), scales, scales[..., ::-1], code)
    assert (quants.decode_soa(quants.q4_k_to_soa(data)) == quants.decode_q4_k(data)).all()


def test_conversion_refuses_a_product_beyond_f16() -> None:
    data = quants.pack_q4_k(
        np.full((2, 2), 2000.0),
        np.zeros((2, 2)),
        np.array([[[1] * 8, [1] * 8], [[1] * 8, [1, 1, 1, 1, 1, 63, 1, 1]]], np.uint8),
        np.zeros((2, 2, 8), np.uint8),
        np.zeros((2, 2, 256), np.uint8),
    )
    with pytest.raises(quants.QuantError, match=r"got 126000 in group 5 of block 1 of row 1"):
        quants.q4_k_to_soa(data)


def test_ragged_blocks_are_refused() -> None:
    with pytest.raises(quants.QuantError, match=r"blocks \* 144"):
        quants.decode_q4_k(np.zeros((1, 143), np.uint8))
    with pytest.raises(quants.QuantError, match="a multiple of 256"):
        quants.encode_q6_k(np.zeros((1, 255)))
