"""The input gradient: contract, data, text, what ptxas makes of it, and schedules run in the simulator."""

import dataclasses
from collections import Counter

import gemm_proof
import numpy as np
import pytest
from lane_programs import run_in_lanes

from emitters import kernel_named
from emitters.fragments.decode import even_and_odd, look_up_eight, value_table
from emitters.gemm_dx import HSLM_DX_S8
from emitters.gemm_dx_schedule import DX_RULES, DxGeometry
from emitters.kernel import EmitError, Inputs, ProblemError
from emitters.quantisers import dx_error_bound, quantise_rows
from emitters.target import ARCHS, Target
from emitters.ternary import decode, pack, prepack, transpose_codes, unpack, unprepack
from search_spaces import space_for
from tuner.ptxas import Assembler

SM_80, SM_89 = Target.of("sm_80"), Target.of("sm_89")
# Where other tests name a tile_k it is 64.
TILE_K = [32, pytest.param(64, marks=pytest.mark.slow), 128]
SMALL = {"tile_m": 32, "tile_n": 64, "warps_m": 1, "warps_n": 2}
WAYS = {
    "decoded": {"decode": "shared", "copy_bytes": 4},
    "words": {"decode": "register", "copy_bytes": 8},
    "records": {"decode": "register", "weight_layout": "fragment", "copy_bytes": 16},
}
LAYERS = ["27x256x736", "27x736x256", "1782x256x736", "1782x736x256"]


def changed(**change):
    return dataclasses.replace(HSLM_DX_S8.baseline, **change)


def assert_right(schedule, problems=None, kernel=HSLM_DX_S8):
    assert gemm_proof.findings(kernel, schedule, SM_80, problems) == []


# --- contract and data ---


def test_it_is_called_by_its_alias():
    assert kernel_named("gemm-dx") is HSLM_DX_S8


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 16, 16), "m must be at least 1, got 0"),
        ((4, 100, 32), "n must be a multiple of 16, got 100"),
        ((4, 16, 24), "k must be a multiple of 16, got 24"),
        ((4, 16, 131072), "k must be at most 131071, so that sums fit s32, got 131072"),
    ],
)
def test_problems_outside_the_limits_are_refused(sizes, message):
    with pytest.raises(ProblemError, match=message):
        HSLM_DX_S8.spec.problem(*sizes)


def test_the_reference_is_the_formula():
    problem = HSLM_DX_S8.spec.problem(5, 32, 48)
    inputs = HSLM_DX_S8.inputs(problem, np.random.default_rng(3))
    expected = HSLM_DX_S8.reference(problem, inputs, HSLM_DX_S8.baseline)
    codes = unpack(inputs.buffers["codes"])
    assert set(codes.tolist()) == {0, 1, 2, 3}
    for m, n in ((0, 0), (4, 31), (2, 17)):
        terms = [
            int(inputs.buffers["dY"][m, k]) * ((int(c) & 1) - (int(c) >> 1 & 1))
            for k, c in ((k, codes[n * 48 + k]) for k in range(48))
        ]
        assert expected.values["dX"][m, n] == sum(terms)


def test_demand_counts_every_operand_once():
    demand = HSLM_DX_S8.demand(HSLM_DX_S8.spec.problem(64, 32, 16))
    assert (demand.operations, demand.unit) == (2 * 64 * 32 * 16, "mma_s8")
    assert (demand.read_bytes, demand.write_bytes) == (64 * 16 + 32 * 16 // 4, 4 * 64 * 32)


def test_transposed_codes_are_those_of_the_transposed_matrix():
    words = np.random.default_rng(0).integers(0, 1 << 32, 48 * 80 // 16, dtype=np.uint32)
    transposed = transpose_codes(words, 48, 80)
    assert (unpack(transposed).reshape(80, 48) == unpack(words).reshape(48, 80).T).all()
    assert (transpose_codes(transposed, 80, 48) == words).all()


def test_prepared_weights_come_back_but_for_code_three():
    problem = HSLM_DX_S8.spec.problem(1, 48, 80)
    inputs = HSLM_DX_S8.inputs(problem, np.random.default_rng(1))
    schedule = changed(**SMALL, **WAYS["records"])
    prepared = HSLM_DX_S8.prepare(schedule, problem, inputs).buffers["codes"]
    columns = DxGeometry(schedule).record_columns
    assert (prepared == prepack(transpose_codes(inputs.buffers["codes"], 48, 80), 80, 48, columns)).all()
    back = transpose_codes(unprepack(prepared, 80, 48, columns), 80, 48)
    assert (decode(back) == decode(inputs.buffers["codes"])).all()
    assert HSLM_DX_S8.prepare(HSLM_DX_S8.baseline, problem, inputs) is inputs


def test_sixteen_codes_in_a_row_are_looked_up_in_order():
    codes = np.random.default_rng(4).integers(0, 4, (256, 16), dtype=np.uint8)

    def program(ptx, tid, words):
        table = value_table(ptx, ptx.r("and.b32", tid, 31))
        even, odd = even_and_odd(ptx, words[0])
        values = ptx.new_rs(2)
        look_up_eight(ptx, table, even, odd, *values)
        return values

    outputs = run_in_lanes(program, [pack(codes)], outputs=2)
    decoded = np.stack(outputs, axis=1).view(np.int8).reshape(256, 8)
    assert (decoded == decode(pack(codes)).reshape(256, 16)[:, :8]).all()


# --- rules ---


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"copy_bytes": 16}, "code-copy: .* tile_k / 4 bytes, got tile_k=32, copy_bytes=16"),
        ({"tile_n": 96, "warps_n": 1}, "code-rows: "),
        ({"decode": "global"}, "decode: "),
        ({"weight_layout": "fragment"}, "fragment-decode: "),
        ({"tile_m": 256, "tile_n": 256, "warps_m": 2, "warps_n": 2}, "registers: "),
    ],
    ids=str,
)
def test_a_broken_rule_is_named_with_its_reason(change, rule):
    with pytest.raises(EmitError, match=rule):
        HSLM_DX_S8.emit(changed(**change), SM_89)


@pytest.mark.parametrize(
    ("layout", "copy_bytes", "valid"),
    [("plain", 4, "1"), ("plain", 8, "k % 32 == 0"), ("plain", 16, "k % 64 == 0"), ("fragment", 16, "1")],
)
def test_wide_copies_of_code_rows_carry_their_alignment(layout, copy_bytes, valid):
    schedule = changed(decode="register", tile_k=64, weight_layout=layout, copy_bytes=copy_bytes)
    assert HSLM_DX_S8.emit(schedule, SM_89).plan.valid == valid
    problems = HSLM_DX_S8.edge_problems(schedule)
    plan = HSLM_DX_S8.emit(schedule, SM_89).plan
    assert all(plan.is_valid(problem.sizes) for problem in problems)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_baseline_keeps_every_rule(arch):
    HSLM_DX_S8.emit(HSLM_DX_S8.baseline, Target.of(arch))


# --- text ---


def test_golden_text():
    schedule = changed(tile_k=64, stages=3, warps_n=2, copy_bytes=16, decode="register")
    emitted = HSLM_DX_S8.emit(schedule, SM_89)
    found = Counter(
        word
        for line in emitted.ptx.splitlines()
        if line.startswith("    ") and line.endswith(";")
        for word in line.split()[1 if "@" in line else 0 :][:1]
    )
    assert found["mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"] == 64
    assert found["ldmatrix.sync.aligned.m8n8.x4.shared.b16"] == 12
    assert found["ld.shared.v4.b32"] == 16
    assert found["cp.async.cg.shared.global"] == 20
    assert found["st.global.v4.b32"] == 32
    assert len(emitted.ptx) == 34913
    assert emitted.source_hash == "4743dc760eb3f2c0e2f12628d84f9af2a9b4bf94358c44750f40453060d48bbc"


# --- simulated ---


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fragment_load", ["ldmatrix", "ld.shared"])
@pytest.mark.parametrize("swizzle", [False, True], ids=["pad", "swizzle"])
@pytest.mark.parametrize("tile_k", TILE_K)
@pytest.mark.parametrize("stages", [1, 2, 5])
def test_every_way_of_w_is_right(way, fragment_load, swizzle, tile_k, stages):
    change = {"fragment_load": fragment_load, "swizzle": swizzle, "tile_k": tile_k, "stages": stages}
    change |= {"stride_pad": 0 if swizzle else 16} | SMALL | WAYS[way]
    assert_right(changed(**change))


@pytest.mark.parametrize(
    "change",
    [
        {"split_k": 3},
        {"split_k": 8, "raster": 2},
        {"raster": 8},
        {"min_blocks": 3},
        {"tile_m": 48, "warps_m": 1},
        {"tile_m": 16, "tile_n": 16, "warps_n": 1},
        {"tile_m": 16, "tile_n": 16, "warps_n": 2},
        {"tile_m": 128, "tile_n": 32, "warps_m": 8, "warps_n": 1},
        {"tile_n": 256, "warps_n": 4},
        {"tile_k": 128, "copy_bytes": 16, "tile_n": 128},
    ],
    ids=str,
)
@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize("way", ["decoded", "words"])
def test_single_parameters_are_right(change, stages, way):
    assert_right(changed(**{**SMALL, "tile_k": 64, **WAYS[way], "stages": stages, **change}))


def test_schedules_drawn_from_the_space_are_right():
    space = space_for(HSLM_DX_S8.id, SM_80)
    for index in np.random.default_rng(2024).integers(len(space), size=6):
        assert_right(HSLM_DX_S8.schedule(space.values(int(index))))


@pytest.mark.parametrize("shape", LAYERS)
@pytest.mark.parametrize("way", ["baseline", *WAYS])
def test_every_row_of_the_padded_layers_is_right(shape, way):
    change = {} if way == "baseline" else {"tile_k": 64, "stages": 3, "split_k": 2, **WAYS[way]}
    assert_right(changed(**change), [HSLM_DX_S8.spec.parse_problem(shape)])


@pytest.mark.parametrize(
    "way", [pytest.param(way, marks=() if way == "records" else pytest.mark.slow) for way in WAYS]
)
def test_the_longest_reduction_of_extremes_does_not_overflow(way):
    """Prepacked weights are 64 times the real ones: 64 * 128 * K must stay below 2^31 at the largest K."""
    kernel = dataclasses.replace(HSLM_DX_S8, inputs=_extremes)
    schedule = changed(**SMALL | {"tile_k": 128, "stages": 2} | WAYS[way])
    assert_right(schedule, [kernel.spec.problem(1, 64, 131056 // 64 * 64)], kernel)


def _extremes(problem, _rng):
    """dY is -128 throughout; even rows of w are -1, odd ones +1."""
    words = np.empty((problem["n"], problem["k"] // 16), np.uint32)
    words[0::2], words[1::2] = 0xAAAAAAAA, 0x55555555
    return Inputs({"dY": np.full((problem["m"], problem["k"]), -128, np.int8), "codes": words.reshape(-1)})


def test_the_quantised_gradient_is_within_its_bound():
    rng = np.random.default_rng(5)
    problem = HSLM_DX_S8.spec.problem(27, 256, 736)
    dy = rng.standard_normal((27, 736)) * 10.0 ** rng.uniform(-3, 3, (27, 1))
    quantised = quantise_rows(dy)
    words = HSLM_DX_S8.inputs(problem, rng).buffers["codes"]
    kernel = dataclasses.replace(
        HSLM_DX_S8, inputs=lambda _problem, _rng: Inputs({"dY": quantised.code, "codes": words})
    )
    schedule = HSLM_DX_S8.baseline
    report = gemm_proof.run(kernel, schedule, kernel.emit(schedule, SM_80), problem)
    assert report.clean
    weights = decode(words).reshape(256, 736)
    error = np.abs(quantised.scale[:, None] * report.buffers["dX"] - dy @ weights.T.astype(np.float64))
    assert (error <= dx_error_bound(quantised, weights)).all()


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["4096x1280x3456", "4096x3456x1280"])
def test_the_baseline_is_right_in_every_row_of_the_usual_problems(shape):
    assert_right(HSLM_DX_S8.baseline, [HSLM_DX_S8.spec.parse_problem(shape)])


# --- assembled ---


@pytest.fixture(scope="module")
def assembler(tmp_path_factory):
    return Assembler(cache_dir=tmp_path_factory.mktemp("cubins"))


@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
def test_ptxas_accepts_schedules_of_the_space(arch, assembler):
    target = Target.of(arch)
    space = space_for(HSLM_DX_S8.id, target)
    for index in np.random.default_rng(1).integers(len(space), size=8):
        emitted = HSLM_DX_S8.emit(HSLM_DX_S8.schedule(space.values(int(index))), target)
        assembler.assemble(emitted.ptx, arch)  # a warning is an error


@pytest.mark.parametrize(("way", "most"), [("decoded", 2.95), ("words", 4.0), ("records", 2.8)])
def test_instructions_an_mma_in_the_main_loop(way, most, assembler):
    change = {"tile_k": 64, "stages": 3, "warps_n": 2} | WAYS[way] | {"copy_bytes": 16}
    binary = assembler.assemble(HSLM_DX_S8.emit(changed(**change), SM_89).ptx, "sm_89")
    loop = binary.functions[0].code.loop
    assert binary.spill_bytes == 0
    assert loop.mma == 4 * 8 * 2, "one k-step a turn of the loop"
    assert loop.instructions <= most * loop.mma


def test_every_rule_has_a_reason():
    assert len({rule.name for rule in DX_RULES}) == len(DX_RULES)
    assert all(len(rule.reason) > 20 for rule in DX_RULES)
