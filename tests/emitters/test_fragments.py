from functools import partial

import numpy as np
import pytest
from lane_programs import run_in_lanes

from emitters.fragments.copies import Split
from emitters.fragments.decode import SCALE_SHIFT, byte_columns, extract, to_twos_complement
from emitters.fragments.pair_order import column_at, emit_column_at, emit_position_of, position_of
from emitters.fragments.stores import exchange_with_neighbour
from emitters.fragments.tile import BANK_BYTES, CHUNK, RowTile
from emitters.fragments.weave import Fill, weave
from emitters.ternary import decode, pack


def written(mmas, readies):
    """What `weave` writes: mma numbers as integers, fills as letters."""
    order = []
    weave(
        [partial(order.append, number) for number in range(mmas)],
        [Fill(partial(order.append, chr(97 + i)), ready) for i, ready in enumerate(readies)],
    )
    return order


def test_fills_go_one_by_one_before_mmas():
    assert written(4, [0, 0]) == ["a", 0, "b", 1, 2, 3]


def test_more_fills_than_mmas_are_spread_evenly():
    assert written(2, [0] * 6) == ["a", "b", "c", 0, "d", "e", "f", 1]


def test_a_fill_waits_for_the_mmas_that_read_what_it_overwrites():
    assert written(4, [0, 2, 0]) == ["a", 0, 1, "b", "c", 2, 3]
    assert written(2, [2]) == [0, 1, "a"]


def test_fills_without_mmas_are_written_in_order():
    assert written(0, [0, 3, 1]) == ["a", "b", "c"]


def places(tile):
    """Offset of every chunk of every row, shape (rows, chunks), computed by the emitted instructions."""
    rows, chunks = np.meshgrid(
        np.arange(tile.rows, dtype=np.uint32),
        np.arange(tile.row_bytes // CHUNK, dtype=np.uint32),
        indexing="ij",
    )
    (offsets,) = run_in_lanes(
        lambda ptx, _, words: [tile.place(ptx, words[0], words[1])],
        [rows.reshape(-1), (chunks * CHUNK).reshape(-1)],
        outputs=1,
    )
    return offsets.reshape(rows.shape).astype(int)


SWIZZLED = [RowTile(16, row_bytes, swizzle=True, offset=256) for row_bytes in (32, 64, 128, 256)]
PADDED = [RowTile(16, row_bytes, 16) for row_bytes in (32, 64, 128)]


@pytest.mark.parametrize("tile", SWIZZLED + PADDED, ids=str)
def test_chunks_do_not_overlap_and_stay_in_the_tile(tile):
    offsets = places(tile)
    assert len(set(offsets.reshape(-1))) == offsets.size
    assert offsets.min() >= tile.offset
    assert offsets.max() + CHUNK <= tile.offset + tile.nbytes


@pytest.mark.parametrize("tile", SWIZZLED + PADDED, ids=str)
def test_eight_rows_of_a_chunk_meet_no_bank_twice(tile):
    for first in (0, 8):
        groups = places(tile)[first : first + 8] % BANK_BYTES // CHUNK
        assert all(len(set(column)) == 8 for column in groups.T)


@pytest.mark.parametrize("tile", SWIZZLED + PADDED, ids=str)
def test_placement_repeats_and_flips_as_it_says(tile):
    offsets = places(tile)
    for row in range(16 - tile.period):
        assert (offsets[row + tile.period] == offsets[row] + tile.period * tile.stride).all()
    # Row r + d, where d has no bit of r: xor within the row, add between rows.
    for row, distance in ((0, 5), (2, 4), (8, 7), (1, 6)):
        moved = (offsets[row] ^ tile.flip(distance)) + distance * tile.stride
        assert (offsets[row + distance] == moved).all()


@pytest.mark.parametrize(
    "change", [{"stride_pad": 16}, {"row_bytes": 48}, {"row_bytes": 512}, {"offset": 64}], ids=str
)
def test_an_impossible_swizzle_is_refused(change):
    with pytest.raises(ValueError, match="a swizzled tile has"):
        RowTile(**{"rows": 8, "row_bytes": 64, "swizzle": True} | change)


def test_threads_share_a_tile_without_gap_or_overlap():
    split = Split(RowTile(rows=20, row_bytes=64), threads=32, width=16)
    assert (split.per_row, split.step, split.count) == (4, 8, 3)


@pytest.mark.parametrize(("row_bytes", "threads", "width"), [(24, 32, 16), (24, 32, 8), (1024, 32, 16)])
def test_a_row_that_threads_cannot_share_is_refused(row_bytes, threads, width):
    with pytest.raises(ValueError, match="power of two of copies that divides the threads"):
        Split(RowTile(rows=8, row_bytes=row_bytes), threads, width)


def test_decoding_gives_64_times_the_value_of_every_code():
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 4, (256, 16), dtype=np.uint8)
    codes[:4] = np.arange(4, dtype=np.uint8)[:, None]

    def program(ptx, _, words):
        numbers = to_twos_complement(ptx, words[0])
        columns = [ptx.new_r() for _ in range(4)]
        for column, destination in enumerate(columns):
            extract(ptx, destination, numbers, column)
        return columns

    outputs = run_in_lanes(program, [pack(codes)], outputs=4)
    values = decode(pack(codes)).reshape(256, 4, 4)  # thread, byte, column
    for column, output in enumerate(outputs):
        decoded = output.view(np.int8).reshape(256, 4).astype(int)
        assert (decoded == values[:, :, column] << SCALE_SHIFT).all()


@pytest.mark.parametrize("nbytes", [1, 2, 4])
def test_four_rows_are_transposed_byte_by_byte(nbytes):
    rows = np.random.default_rng(1).integers(0, 1 << 8 * nbytes, (4, 64), dtype=np.uint32)
    outputs = run_in_lanes(lambda ptx, _, words: byte_columns(ptx, words, nbytes), list(rows), outputs=nbytes)
    for column, output in enumerate(outputs):
        expected = [sum(int(rows[i, t] >> 8 * column & 255) << 8 * i for i in range(4)) for t in range(64)]
        assert output.tolist() == expected


def test_pair_order_in_registers_is_that_on_the_host():
    numbers = np.arange(256, dtype=np.uint32)
    columns, positions = run_in_lanes(
        lambda ptx, _, words: [emit_column_at(ptx, words[0]), emit_position_of(ptx, words[0])],
        [numbers],
        outputs=2,
    )
    assert columns.tolist() == [column_at(int(i)) for i in numbers]
    assert positions.tolist() == [position_of(int(i)) for i in numbers]


def test_neighbours_exchange_vectors_so_that_they_hold_a_pair_each():
    """Lane t holds 10t and 10t + 1; then lanes 2s and 2s + 1 share those of lane 2s, and of lane 2s + 1."""
    lanes = np.arange(32, dtype=np.uint32)

    def program(ptx, tid, words):
        odd = ptx.p("setp.ne.u32", ptx.r("and.b32", tid, 1), 0)
        of_even, of_odd = exchange_with_neighbour(ptx, odd, words[:1], words[1:])
        return [*of_even, *of_odd]

    of_even, of_odd = run_in_lanes(program, [10 * lanes, 10 * lanes + 1], outputs=2)
    assert of_even.tolist() == [10 * (t & ~1) + (t & 1) for t in range(32)]
    assert of_odd.tolist() == [10 * (t | 1) + (t & 1) for t in range(32)]
