import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emitters.fragments.pair_order import column_at, position_of
from emitters.ternary import PREPACK_COLUMNS, decode, pack, prepack, prepacked_words, unpack, unprepack


def random_words(k, n, seed=0):
    return np.random.default_rng(seed).integers(0, 1 << 32, k * n // 16, dtype=np.uint32)


def code_of(words, number):
    """Code number `number` as the contract says it."""
    return int(words[number // 16]) >> 2 * (number % 16) & 3


def test_codes_lie_at_the_bits_that_the_contract_names():
    codes = np.random.default_rng(1).integers(0, 4, 64, dtype=np.uint8)
    words = pack(codes)
    assert words.dtype == np.uint32
    assert [code_of(words, i) for i in range(64)] == codes.tolist()
    assert unpack(words).tolist() == codes.tolist()


def test_the_four_codes_are_worth_zero_one_minus_one_zero():
    assert decode(pack(np.arange(16, dtype=np.uint8) % 4)).tolist() == [0, 1, -1, 0] * 4


def test_a_number_of_codes_that_fills_no_words_is_refused():
    with pytest.raises(ValueError, match="multiple of 16, got 8"):
        pack(np.zeros(8, np.uint8))


def test_pair_order_is_a_permutation_of_each_sixteen_and_its_inverse():
    positions = range(64)
    assert sorted(map(column_at, positions)) == list(positions)
    assert [position_of(column_at(p)) for p in positions] == list(positions)
    assert {column_at(p) // 16 for p in range(16, 32)} == {1}


def test_pair_order_gives_each_lane_four_neighbours():
    # Accumulators of lane t: columns 2t and 2t + 1 of fragment 0, then of fragment 1 (positions 8 further
    # on).
    for t in range(4):
        held = [column_at(p) for p in (2 * t, 2 * t + 1, 8 + 2 * t, 8 + 2 * t + 1)]
        assert held == [4 * t, 4 * t + 1, 4 * t + 2, 4 * t + 3]


@given(
    k=st.integers(1, 9).map(lambda x: 16 * x),
    n=st.integers(1, 9).map(lambda x: 16 * x),
    columns=st.sampled_from(PREPACK_COLUMNS),
    seed=st.integers(0, 99),
)
def test_unprepack_is_the_inverse_of_prepack_but_for_code_three(k, n, columns, seed):
    words = random_words(k, n, seed)
    packed = prepack(words, k, n, columns)
    assert packed.size == prepacked_words(k, n, columns)
    codes = unpack(words)
    assert unpack(unprepack(packed, k, n, columns)).tolist() == np.where(codes == 3, 0, codes).tolist()


@pytest.mark.parametrize("columns", PREPACK_COLUMNS)
def test_prepacked_bits_are_where_the_docstring_says(columns):
    k, n = 80, 112  # neither is whole records
    words = random_words(k, n)
    packed = prepack(words, k, n, columns)
    twos_complement = {0: 0, 1: 1, 2: 3, 3: 0}
    slices, per_lane = -(-k // 32), columns // 16
    rng = np.random.default_rng(2)
    for _ in range(500):
        record, s = int(rng.integers(-(-n // columns))), int(rng.integers(slices))
        lane, w, i = int(rng.integers(32)), int(rng.integers(per_lane)), int(rng.integers(4))
        f, h = int(rng.integers(2)), int(rng.integers(2))
        group, member = divmod(lane, 4)
        word = int(packed[((record * slices + s) * 32 + lane) * per_lane + w])
        bits = word >> 8 * i + 2 * (2 * f + h) & 3
        row = 32 * s + 16 * h + 4 * member + i
        column = record * columns + 16 * w + column_at(8 * f + group)
        inside = row < k and column < n
        assert bits == (twos_complement[code_of(words, row * n + column)] if inside else 0)
