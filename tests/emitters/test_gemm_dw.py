"""The weight gradient: contract, data, text, what ptxas makes of it, and schedules run in the simulator."""

import dataclasses
from collections import Counter

import gemm_proof
import numpy as np
import pytest
from lane_programs import run_in_lanes

from emitters import kernel_named
from emitters.fragments.transposed import emit_position_of, position_of
from emitters.gemm_dw import HSLM_DW_S8
from emitters.gemm_dw_schedule import DW_RULES, DwGeometry
from emitters.kernel import EmitError, Inputs, ProblemError
from emitters.quantisers import dw_error_bound, quantise_columns
from emitters.target import ARCHS, Target
from results.plan import MemsetStep
from search_spaces import space_for
from tuner.ptxas import Assembler
from tuner.simulator import Launch, simulate

SM_80, SM_89 = Target.of("sm_80"), Target.of("sm_89")
# Where other tests name a tile_k it is 64.
TILE_K = [32, pytest.param(64, marks=pytest.mark.slow), 128]
SMALL = {"tile_m": 32, "tile_n": 64, "warps_m": 1, "warps_n": 2}
LATE = {"transpose": "fragment", "copy_bytes": 16, "stages": 3}
EARLY = {"transpose": "copy", "copy_bytes": 4, "stages": 1}
LAYERS = ["256x736x27", "736x256x27", "256x736x1782", "736x256x1782"]
# 128x128x64 with warp tiles of 64x64.
LONG = {"tile_k": 64, "warps_n": 2, "stages": 3, "transpose": "fragment", "copy_bytes": 16}


def changed(**change):
    return dataclasses.replace(HSLM_DW_S8.baseline, **change)


def assert_right(schedule, problems=None, kernel=HSLM_DW_S8):
    assert gemm_proof.findings(kernel, schedule, SM_80, problems) == []


# --- contract and data ---


def test_it_is_called_by_its_alias():
    assert kernel_named("gemm-dw") is HSLM_DW_S8


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((24, 16, 5), "m must be a multiple of 16, got 24"),
        ((16, 100, 5), "n must be a multiple of 16, got 100"),
        ((16, 16, 0), "rows must be at least 1, got 0"),
        ((16, 16, 131072), r"rows must be at most 131071, so that sums fit s32 .*, got 131072"),
        ((1 << 26, 16, 1), r"m must be at most 2\^25, so that offsets .* fit 32 bits"),
        ((16, 16), "a problem of .* is mxnxrows"),
    ],
)
def test_problems_outside_the_limits_are_refused(sizes, message):
    with pytest.raises(ProblemError, match=message):
        HSLM_DW_S8.spec.problem(*sizes)


def test_the_reference_is_the_formula():
    problem = HSLM_DW_S8.spec.problem(16, 32, 7)
    inputs = HSLM_DW_S8.inputs(problem, np.random.default_rng(3))
    expected = HSLM_DW_S8.reference(problem, inputs, HSLM_DW_S8.baseline)
    x, dy = inputs.buffers["X"].astype(int), inputs.buffers["dY"].astype(int)
    assert (x.min(), x.max(), dy.min(), dy.max()) == (-128, 127, -128, 127)
    for m, n in ((0, 0), (15, 31), (2, 17)):
        assert expected.values["dW"][m, n] == sum(x[r, m] * dy[r, n] for r in range(7))


def test_demand_counts_every_operand_once():
    demand = HSLM_DW_S8.demand(HSLM_DW_S8.spec.problem(64, 32, 27))
    assert (demand.operations, demand.unit) == (2 * 64 * 32 * 27, "mma_s8")
    assert (demand.read_bytes, demand.write_bytes) == (27 * (64 + 32), 4 * 64 * 32)


def test_positions_in_registers_are_those_on_the_host():
    numbers = np.arange(256, dtype=np.uint32)
    (positions,) = run_in_lanes(lambda ptx, _, words: [emit_position_of(ptx, words[0])], [numbers], outputs=1)
    assert positions.tolist() == [position_of(int(number)) for number in numbers]
    assert sorted(positions.tolist()) == numbers.tolist()


@pytest.mark.parametrize("change", [LATE, EARLY, LATE | {"raster": 8}, LATE | {"split_k": 4}], ids=str)
def test_edge_problems_reach_the_edges(change):
    schedule = changed(**change)
    sizes = [tuple(problem.sizes.values()) for problem in HSLM_DW_S8.edge_problems(schedule)]
    assert any(rows == 1 for _, _, rows in sizes)
    assert any(m > schedule.tile_m and m % schedule.tile_m for m, _, _ in sizes)
    assert any(n > schedule.tile_n and n % schedule.tile_n for _, n, _ in sizes)
    shares = [-(-rows // schedule.tile_k) / schedule.split_k for _, _, rows in sizes]
    assert any(share >= schedule.stages + 2 for share in shares)
    assert {1, schedule.tile_k - 1} <= {rows % schedule.tile_k for _, _, rows in sizes}
    if schedule.raster > 1:
        assert any(m > schedule.raster * schedule.tile_m for m, _, _ in sizes)


# --- rules ---


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"transpose": "global"}, "transpose: transpose must be fragment or copy"),
        ({"tile_m": 96}, "tile-rows: "),
        ({**LATE, "tile_n": 32}, "warp-columns: .* got tile_n=32, warps_n=4"),
        ({**LATE, "tile_m": 256, "tile_n": 16, "warps_n": 1, "warps_m": 1, "copy_bytes": 4}, "row-copy: "),
        ({**LATE, "fragment_load": "ld.shared"}, "transposed-load: "),
        ({**LATE, "tile_m": 16, "warps_m": 1, "swizzle": True, "stride_pad": 0}, "transposed-swizzle: "),
        ({**EARLY, "stages": 2}, "transposed-copy: "),
        ({"tile_m": 256, "tile_n": 256, "warps_m": 2, "warps_n": 2}, "registers: "),
        ({**LATE, "stages": 6, "tile_k": 128}, "shared-memory: "),
    ],
    ids=str,
)
def test_a_broken_rule_is_named_with_its_reason(change, rule):
    with pytest.raises(EmitError, match=rule):
        HSLM_DW_S8.emit(changed(**change), SM_89)


def test_every_rule_has_a_reason():
    assert len({rule.name for rule in DW_RULES}) == len(DW_RULES)
    assert all(len(rule.reason) > 20 for rule in DW_RULES)


@pytest.mark.parametrize("arch", ARCHS)
def test_the_baseline_keeps_every_rule(arch):
    HSLM_DW_S8.emit(HSLM_DW_S8.baseline, Target.of(arch))


# --- text ---


def test_golden_text():
    emitted = HSLM_DW_S8.emit(changed(**LONG), SM_89)
    found = Counter(
        word
        for line in emitted.ptx.splitlines()
        if line.startswith("    ") and line.endswith(";")
        for word in line.split()[1 if "@" in line else 0 :][:1]
    )
    assert found["mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"] == 64
    assert found["ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"] == 24
    assert found["prmt.b32"] == 96
    assert found["cp.async.cg.shared.global"] == 32
    assert found["st.global.v4.b32"] == 32
    assert len(emitted.ptx) == 32743
    assert emitted.source_hash == "5254a96568487cad012fce6b36a63884a808e01243cb44030343e4368420e21a"


def test_a_split_zeroes_the_gradient_first():
    memset, launch = HSLM_DW_S8.emit(changed(split_k=8), SM_89).plan.steps
    assert isinstance(memset, MemsetStep)
    assert (memset.buffer, memset.byte, memset.nbytes) == ("dW", 0, "4 * m * n")
    assert launch.grid[2] == "8"


# --- simulated ---


@pytest.mark.parametrize("swizzle", [False, True], ids=["pad", "swizzle"])
@pytest.mark.parametrize("tile_k", TILE_K)
@pytest.mark.parametrize(("stages", "copy_bytes"), [(1, 16), (1, 4), (2, 8), (5, 16)])
def test_late_transposition_is_right(swizzle, tile_k, stages, copy_bytes):
    change = {"swizzle": swizzle, "tile_k": tile_k, "stages": stages, "copy_bytes": copy_bytes}
    assert_right(changed(**SMALL | LATE | {"stride_pad": 0 if swizzle else 16} | change))


@pytest.mark.parametrize("fragment_load", ["ldmatrix", "ld.shared"])
@pytest.mark.parametrize("swizzle", [False, True], ids=["pad", "swizzle"])
@pytest.mark.parametrize("tile_k", TILE_K)
@pytest.mark.parametrize("copy_bytes", [4, 8, 16])
def test_early_transposition_is_right(fragment_load, swizzle, tile_k, copy_bytes):
    change = {"swizzle": swizzle, "tile_k": tile_k, "copy_bytes": copy_bytes, "fragment_load": fragment_load}
    assert_right(changed(**SMALL | EARLY | {"stride_pad": 0 if swizzle else 16} | change))


@pytest.mark.parametrize("way", [LATE, EARLY], ids=["late", "early"])
@pytest.mark.parametrize(
    "change",
    [
        {"split_k": 3},
        {"split_k": 8, "raster": 2},
        {"raster": 8},
        {"min_blocks": 3},
        {"tile_m": 16, "tile_n": 16, "warps_n": 1},
        {"tile_m": 128, "tile_n": 32, "warps_m": 8, "warps_n": 1},
        {"tile_m": 64, "tile_n": 64, "warps_m": 2},
        {"tile_m": 16, "tile_n": 256, "warps_n": 4},
        {"tile_m": 256, "tile_n": 32, "warps_m": 4, "warps_n": 1, "swizzle": True, "stride_pad": 0},
        {"tile_m": 256, "tile_n": 64, "warps_m": 2, "warps_n": 4, "tile_k": 64},
        {"stride_pad": 48},
    ],
    ids=str,
)
def test_single_parameters_are_right(change, way):
    assert_right(changed(**SMALL | way | change))


def test_schedules_drawn_from_the_space_are_right():
    space = space_for(HSLM_DW_S8.id, SM_80)
    for index in np.random.default_rng(2024).integers(len(space), size=6):
        assert_right(HSLM_DW_S8.schedule(space.values(int(index))))


@pytest.mark.parametrize("shape", LAYERS)
@pytest.mark.parametrize(
    "change", [{}, LONG, LONG | {"tile_n": 64, "split_k": 8}], ids=["baseline", "late", "split"]
)
def test_every_row_of_the_padded_layers_is_right(shape, change):
    assert_right(changed(**change), [HSLM_DW_S8.spec.parse_problem(shape)])


@pytest.mark.parametrize(
    "change",
    [
        LATE | {"tile_k": 128},
        pytest.param(LATE | {"tile_k": 128, "split_k": 8}, marks=pytest.mark.slow),
        pytest.param(EARLY, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_longest_reduction_of_extremes_does_not_overflow(change):
    """128 * 128 * 131071 = 2^31 - 16384: one row more would not fit."""
    kernel = dataclasses.replace(HSLM_DW_S8, inputs=_extremes)
    problem = kernel.spec.problem(16, 16, 131071)
    inputs = _extremes(problem, None)
    largest = kernel.reference(problem, inputs, kernel.baseline).values["dW"][0, 0]
    assert largest == 128 * 128 * 131071 > 2**31 - 1 - 128 * 128
    schedule = changed(**{"tile_m": 16, "tile_n": 16, "warps_m": 1, "warps_n": 1, **change})
    assert_right(schedule, [problem], kernel)


def _extremes(problem, _rng):
    """Columns of -128 and 127 in turn."""
    across = np.where(np.arange(16) % 2, 127, -128).astype(np.int8)
    rows = np.ascontiguousarray(np.broadcast_to(across, (problem["rows"], 16)))
    return Inputs({"X": rows, "dY": rows})


def test_the_quantised_gradient_is_within_its_bound():
    rng = np.random.default_rng(5)
    problem = HSLM_DW_S8.spec.problem(64, 48, 1782)
    x, dy = (
        rng.standard_normal((1782, width)) * 10.0 ** rng.uniform(-3, 3, (1, width)) for width in (64, 48)
    )
    qx, qy = quantise_columns(x), quantise_columns(dy)
    kernel = dataclasses.replace(
        HSLM_DW_S8, inputs=lambda _problem, _rng: Inputs({"X": qx.code, "dY": qy.code})
    )
    schedule = changed(**LONG)
    report = gemm_proof.run(kernel, schedule, kernel.emit(schedule, SM_80), problem)
    assert report.clean
    error = np.abs(np.outer(qx.scale, qy.scale) * report.buffers["dW"] - x.T @ dy)
    assert (error <= dw_error_bound(x, dy, qx, qy)).all()


@pytest.mark.slow
@pytest.mark.parametrize("shape", ["1280x3456x4096", "3456x1280x4096"])
def test_usual_problems_are_right_in_every_row(shape):
    assert_right(changed(**LONG), [HSLM_DW_S8.spec.parse_problem(shape)])


@pytest.mark.parametrize("swizzle", [False, True], ids=["pad", "swizzle"])
def test_late_transposition_meets_no_bank_conflict(swizzle):
    schedule = changed(**LONG | {"swizzle": swizzle, "stride_pad": 0 if swizzle else 16})
    problem = HSLM_DW_S8.spec.problem(128, 128, 512)
    emitted = HSLM_DW_S8.emit(schedule, SM_89)
    buffers = {**HSLM_DW_S8.inputs(problem, np.random.default_rng(0)).buffers}
    buffers["dW"] = np.zeros((128, 128), np.int32)
    step = emitted.plan.kernel_steps[0]
    arguments = ("X", "dY", "dW", *problem.sizes.values())
    launch = Launch(step.entry, (1, 1, 1), step.block, step.shared_bytes, arguments)
    counters = simulate(emitted.ptx, [launch], buffers, outputs=("dW",)).counters[0]
    for traffic in (counters.matrix_loads, counters.async_writes):
        assert traffic.wavefronts == traffic.ideal > 0


# --- assembled ---


@pytest.fixture(scope="module")
def assembler(tmp_path_factory):
    return Assembler(cache_dir=tmp_path_factory.mktemp("cubins"))


@pytest.mark.parametrize("arch", ["sm_80", "sm_120"])
def test_ptxas_accepts_schedules_of_the_space(arch, assembler):
    target = Target.of(arch)
    space = space_for(HSLM_DW_S8.id, target)
    for index in np.random.default_rng(1).integers(len(space), size=8):
        emitted = HSLM_DW_S8.emit(HSLM_DW_S8.schedule(space.values(int(index))), target)
        assembler.assemble(emitted.ptx, arch)  # a warning is an error


def test_instructions_an_mma_in_the_main_loop(assembler):
    binary = assembler.assemble(HSLM_DW_S8.emit(changed(**LONG), SM_89).ptx, "sm_89")
    loop = binary.functions[0].code.loop
    assert binary.spill_bytes == 0
    assert loop.mma == 4 * 8 * 2, "one k-step a turn of the loop"
    assert loop.mix["PRMT"] == loop.mma, "one a fragment register"
    assert loop.instructions <= 3.1 * loop.mma


def test_patches_leave_no_thread_idle_where_there_are_enough():
    geometry = DwGeometry(changed(**EARLY, tile_k=64))
    assert geometry.patch_rows(128) * geometry.threads <= 128 * 64 // 4
