"""Tensor copies against the definition, element by element; what can go wrong with them; and a kernel of CUDA
C++ that feeds wgmma with them.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import cuda_compiler
import numpy as np
import pytest
from numpy.typing import NDArray
from ptx_harness import HEAD, kinds

from tuner.simulator import Launch, PtxError, Report, TensorMap, simulate

START = """.visible .entry k(.param .align 64 .b8 m[128], .param .u64 c)
{
  .reg .pred %p<4>; .reg .b32 %r<32>; .reg .b64 %rd<16>;
  .shared .align 1024 .b8 tile[4096]; .shared .align 8 .b8 bar[8];
  mov.b64 %rd9, m; cvta.param.u64 %rd0, %rd9; ld.param.u64 %rd1, [c]; mov.u32 %r0, %tid.x;
  mov.u32 %r1, tile; mov.u32 %r2, bar; setp.eq.u32 %p1, %r0, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r2], 1; bar.sync 0;
"""
EXPECT = "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {};\n"
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r2], 0; @!%p2 bra W;\n"
OUT = """mad.lo.u32 %r3, %r0, 16, %r1; mad.wide.u32 %rd2, %r0, 16, %rd1;
add.u32 %r8, %r1, BYTES;
L: setp.ge.u32 %p3, %r3, %r8; @%p3 bra END;
ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r3]; st.global.v4.u32 [%rd2], {%r4, %r5, %r6, %r7};
add.u32 %r3, %r3, 512; add.u64 %rd2, %rd2, 512; bra L;
END: ret; }
"""
FILL = """ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%rd2]; st.shared.v4.u32 [%r3], {%r4, %r5, %r6, %r7};"""


def load(corner: tuple[int, ...], more: str = "", target: str = "%r1", mask: str = "") -> str:
    space = "shared::cluster.global.tile.mbarrier::complete_tx::bytes"
    opcode = f"cp.async.bulk.tensor.{len(corner)}d.{space}{more}"
    return f"@%p1 {opcode} [{target}], [%rd0, {{{', '.join(map(str, corner))}}}], [%r2]{mask};\n"


def run_load(described: TensorMap, data: NDArray[Any], body: str, **options: Any) -> Report:
    buffers = {"t": data, "c": np.zeros(4096, np.uint8)}
    launch = Launch("k", (1, 1, 1), (32, 1, 1), 0, (described, "c"))
    return simulate(
        HEAD + START + body + OUT.replace("BYTES", str(described.box_bytes)), [launch], buffers, **options
    )


def element(data: NDArray[Any], described: TensorMap, at: tuple[int, ...]) -> Any:
    """The element of a tensor at its coordinates, zero (or NaN) outside."""
    if any(not 0 <= x < size for x, size in zip(at, described.sizes, strict=True)):
        return np.nan if described.fill == "nan" else 0
    offset = described.offset + at[0] * data.itemsize
    offset += sum(x * stride for x, stride in zip(at[1:], described.strides, strict=True))
    return data.reshape(-1).view(np.uint8)[offset : offset + data.itemsize].view(data.dtype)[0]


def box_in_shared(data: NDArray[Any], described: TensorMap, corner: tuple[int, ...]) -> NDArray[Any]:
    """What a load leaves in shared memory at a multiple of 1024 bytes: dimension 0 fastest, then swizzled."""
    steps = (1, *described.element_strides[1:])
    ranges = [range(0, size, step) for size, step in zip(described.box, steps, strict=True)]
    values = [
        element(data, described, tuple(x + y for x, y in zip(corner, reversed(offset), strict=True)))
        for offset in itertools.product(*reversed(ranges))
    ]
    packed = np.array(values, data.dtype).view(np.uint8).reshape(-1, 16)
    if not described.swizzle:
        return packed.reshape(-1)
    placed = np.zeros_like(packed)
    for piece in range(
        len(packed)
    ):  # 16-byte pieces of rows of 128 bytes: the ISA's figures of swizzle modes
        line, within = divmod(piece, 8)
        period = described.swizzle // 16
        pattern = {32: line % 2, 64: line % 4, 128: line % 8}[described.swizzle]
        placed[8 * line + within // period * period + (within % period ^ pattern)] = packed[piece]
    return placed.reshape(-1)


CASES = [
    (TensorMap("t", "u8", (300,), (), (64,)), (250,)),
    (TensorMap("t", "f32", (20, 9), (80,), (16, 8)), (8, -3)),
    (TensorMap("t", "f32", (20, 9), (80,), (16, 8), fill="nan"), (8, -3)),
    (TensorMap("t", "f16", (40, 12), (80,), (16, 8), swizzle=32), (3, 6)),
    (TensorMap("t", "f16", (40, 12), (80,), (32, 8), swizzle=64), (-5, 2)),
    (TensorMap("t", "f16", (100, 20), (208,), (64, 16), swizzle=128, offset=32), (37, 5)),
    (TensorMap("t", "u16", (24, 9, 5), (64, 640), (8, 4, 3)), (17, 7, 3)),
    (TensorMap("t", "u32", (24, 9, 5), (128, 1280), (4, 6, 3), (1, 2, 3)), (0, 1, 1)),
    (TensorMap("t", "u64", (6, 5, 4, 3), (48, 240, 960), (2, 2, 3, 2)), (3, 4, 1, 1)),
    (TensorMap("t", "f64", (4, 3, 3, 2, 3), (32, 96, 288, 576), (2, 2, 2, 1, 2)), (1, 1, 2, 1, 2)),
]


@pytest.mark.parametrize(("described", "corner"), CASES, ids=lambda value: getattr(value, "dtype", None))
def test_a_box_arrives_as_the_definition_says(described: TensorMap, corner: tuple[int, ...]) -> None:
    dtype = np.dtype({"f": "f", "u": "u"}[described.dtype[0]] + str(described.element_bytes))
    data = np.random.default_rng(1).integers(1, 200, 8192 // dtype.itemsize).astype(dtype)
    body = EXPECT.format(described.box_bytes) + load(corner) + WAIT
    report = run_load(described, data, body)
    assert report.clean, [str(fault) for fault in report.faults]
    found = report.buffers["c"][: described.box_bytes].view(dtype)
    assert np.array_equal(
        found, box_in_shared(data, described, corner).view(dtype), equal_nan=dtype.kind == "f"
    )


BOX = TensorMap("t", "f32", (20, 9), (80,), (16, 8))
TENSOR = np.arange(180, dtype=np.float32)


@pytest.mark.parametrize("corner", [(0, 0), (8, 4), (-4, -2), (30, 0)])
def test_a_store_leaves_out_what_is_outside(corner: tuple[int, int]) -> None:
    body = "mad.lo.u32 %r3, %r0, 16, %r1; mad.wide.u32 %rd2, %r0, 16, %rd1;" + FILL
    body += "fence.proxy.async.shared::cta; bar.sync 0;\n"
    body += "@%p1 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group "
    body += f"[%rd0, {{{corner[0]}, {corner[1]}}}], [%r1];\n"
    body += "@%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0; ret; }"
    box = np.arange(1000, 1128, dtype=np.float32)
    launch = Launch("k", (1, 1, 1), (32, 1, 1), 0, (BOX, "c"))
    report = simulate(HEAD + START + body, [launch], {"t": TENSOR, "c": box}, outputs=())
    assert report.clean, [str(fault) for fault in report.faults]
    expected = TENSOR.reshape(9, 20).copy()
    for (y, x), value in np.ndenumerate(box.reshape(8, 16)):
        if 0 <= y + corner[1] < 9 and 0 <= x + corner[0] < 20:
            expected[y + corner[1], x + corner[0]] = value
    assert np.array_equal(report.buffers["t"].reshape(9, 20), expected)


def test_a_reduction_changes_what_is_there() -> None:
    body = "mad.lo.u32 %r3, %r0, 16, %r1; mad.wide.u32 %rd2, %r0, 16, %rd1;" + FILL
    body += (
        "fence.proxy.async.shared::cta; bar.sync 0;\n@%p1 cp.reduce.async.bulk.tensor.2d.global.shared::cta."
    )
    body += "add.tile.bulk_group [%rd0, {8, 4}], [%r1];\n@%p1 cp.async.bulk.commit_group;"
    body += "@%p1 cp.async.bulk.wait_group 0; ret; }"
    box = np.arange(128, dtype=np.float32)
    launch = Launch("k", (3, 1, 1), (32, 1, 1), 0, (BOX, "c"))
    report = simulate(HEAD + START + body, [launch], {"t": TENSOR, "c": box}, outputs=())
    assert report.clean, [str(fault) for fault in report.faults]
    expected = TENSOR.reshape(9, 20).copy()
    expected[4:, 8:] += 3 * box.reshape(8, 16)[:5, :12]
    assert np.array_equal(report.buffers["t"].reshape(9, 20), expected)


COPY = load((0, 0))
FAULTS = {
    "nobody waits": (EXPECT.format(512) + COPY, "race"),
    "too few bytes are expected": (EXPECT.format(256) + COPY + WAIT, "race"),
    "too many bytes are expected": (EXPECT.format(528) + COPY + WAIT, "endless"),
    "shared memory is not aligned": (
        EXPECT.format(512) + "add.u32 %r9, %r1, 16;" + load((0, 0), target="%r9") + WAIT,
        "misaligned",
    ),
    "the map has other dimensions": (EXPECT.format(512) + load((0,)) + WAIT, "out_of_bounds"),
    "the map is nowhere": ("add.u64 %rd0, %rd0, 64;" + EXPECT.format(512) + COPY + WAIT, "uninitialised"),
    "the map's bytes are read": (
        "ld.param.u32 %r9, [m+8];" + EXPECT.format(512) + COPY + WAIT,
        "uninitialised",
    ),
    "the mbarrier is none": (
        EXPECT.format(512) + COPY.replace("[%r2]", "[%r2+8]").replace("bar[8]", "bar[16]") + WAIT,
        "uninitialised",
    ),
    "a mask names other blocks": (
        EXPECT.format(512) + load((0, 0), ".multicast::cluster", mask=", 3") + WAIT,
        "out_of_bounds",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_goes_wrong_with_a_tensor_copy_is_found(name: str) -> None:
    body, kind = FAULTS[name]
    assert kind in kinds(run_load(BOX, TENSOR, body))


def test_a_copy_to_a_cluster_of_one_is_like_any_other() -> None:
    body = EXPECT.format(512) + load((0, 0), ".multicast::cluster", mask=", 1") + WAIT
    assert run_load(BOX, TENSOR, body).clean


def test_a_tensor_larger_than_its_buffer_is_read_out_of_bounds() -> None:
    tall = TensorMap("t", "f32", (20, 12), (80,), (16, 8))
    report = run_load(tall, TENSOR, EXPECT.format(512) + load((0, 4)) + WAIT)
    assert kinds(report) == ["out_of_bounds"]
    assert (report.faults[0].buffer, report.faults[0].address) == ("t", 720)


def test_maps_lie_in_global_memory_too() -> None:
    body = EXPECT.format(512) + "ld.param.u64 %rd0, [m]; add.u64 %rd0, %rd0, 128;" + COPY + WAIT
    text = (
        HEAD
        + START.replace(".param .align 64 .b8 m[128]", ".param .u64 m")
        + body
        + OUT.replace("BYTES", "512")
    )
    launch = Launch("k", (1, 1, 1), (32, 1, 1), 0, ("maps", "c"))
    other = TensorMap("t", "f32", (4,), (), (4,))
    buffers = {"t": TENSOR, "c": np.zeros(4096, np.uint8)}
    text = text.replace("mov.b64 %rd9, m; cvta.param.u64 %rd0, %rd9; ", "")
    report = simulate(text, [launch], buffers, tensor_maps={"maps": [other, BOX]})
    assert report.clean, [str(fault) for fault in report.faults]
    assert np.array_equal(report.buffers["c"][:64].view(np.float32), TENSOR[:16])
    read = text.replace("ld.param.u64 %rd0, [m];", "ld.param.u64 %rd0, [m]; ld.global.u32 %r9, [%rd0];")
    assert kinds(simulate(read, [launch], buffers, tensor_maps={"maps": [other, BOX]})) == ["uninitialised"]


@pytest.mark.parametrize("space", ["const", "global"])
def test_a_variable_of_the_module_holds_a_map(space: str) -> None:
    start = START.replace(".param .align 64 .b8 m[128], ", "").replace("mov.b64 %rd9, m; cvta.param.u64", "")
    start = start.replace(" %rd0, %rd9;", f" mov.u64 %rd9, held; cvta.{space}.u64 %rd0, %rd9;")
    body = "@%p1 cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd0, {0, 0}];\n"
    body += EXPECT.format(512) + COPY + WAIT
    text = HEAD + f".{space} .align 64 .b8 held[128];\n" + start + body + OUT.replace("BYTES", "512")
    launch = Launch("k", (1, 1, 1), (32, 1, 1), 0, ("c",))
    buffers = {"t": TENSOR, "c": np.zeros(4096, np.uint8)}
    report = simulate(text, [launch], buffers, tensor_maps={"held": [BOX]})
    assert report.clean, [str(fault) for fault in report.faults]
    assert np.array_equal(report.buffers["c"][:64].view(np.float32), TENSOR[:16])
    assert set(kinds(simulate(text, [launch], buffers))) >= {"uninitialised"}


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"dtype": "f8"}, "type must be one of"),
        ({"sizes": (4,) * 6}, "1 to 5 dimensions"),
        ({"strides": ()}, "a stride fewer"),
        ({"strides": (72,)}, "multiples of 16 bytes"),
        ({"box": (300, 8)}, "1 to 256"),
        ({"box": (6, 8)}, "rows must be multiples of 16 bytes, got 24"),
        ({"element_strides": (1, 9)}, "1 to 8"),
        ({"swizzle": 32}, "must fit the swizzle of 32 bytes, got 64"),
        ({"swizzle": 16}, "swizzle must be one of"),
        ({"dtype": "u32", "fill": "nan"}, "nan for floats"),
        ({"offset": 8}, "begin at a multiple of 16"),
    ],
)
def test_rules_of_the_driver_are_checked(arguments: dict[str, Any], reason: str) -> None:
    right = {"buffer": "t", "dtype": "f32", "sizes": (20, 9), "strides": (80,), "box": (16, 8)}
    with pytest.raises(PtxError, match=reason):
        TensorMap(**{**right, **arguments})


def test_an_argument_that_cannot_hold_a_map_is_refused() -> None:
    launch = Launch("k", (1, 1, 1), (32, 1, 1), 0, (BOX, BOX))
    with pytest.raises(PtxError, match="must be 128 bytes aligned to 64"):
        simulate(HEAD + START + "ret; }", [launch], {"t": TENSOR}, outputs=())
    with pytest.raises(PtxError, match="'t', which is no buffer"):
        simulate(HEAD + START + "ret; }", [Launch("k", (1, 1, 1), (32, 1, 1), 0, (BOX, "c"))], {"c": TENSOR})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("tensormap.replace.tile.rank.global.b1024.b32 [%rd0], 2;", "a tensor map is opaque"),
        (COPY.replace(".tile", ".im2col"), "of tensor copies, .tile is"),
    ],
)
def test_what_is_not_simulated_says_so(line: str, reason: str) -> None:
    with pytest.raises(PtxError, match=reason):
        run_load(BOX, TENSOR, line)


# -- CUDA C++ --


def matmul(plant: int, **options: Any) -> tuple[Report, NDArray[np.float64]]:
    text = (Path(__file__).parent / "cuda" / "tensors.cu").read_text()
    ptx = cuda_compiler.compile_cuda(text, "sm_90a", (f"-DPLANT={plant}",))
    rng = np.random.default_rng(2)
    a = rng.integers(-4, 5, (100, 200)).astype(np.float16)
    b = rng.integers(-4, 5, (92, 200)).astype(np.float16)
    c = np.zeros((100, 92), np.float32)
    maps = [TensorMap.of("a", a, (64, 64), swizzle=128), TensorMap.of("b", b, (64, 64), swizzle=128)]
    arguments = (*maps, TensorMap.of("c", c, (64, 64)), 200)
    launch = Launch("tensor_matmul", (2, 2, 1), (128, 1, 1), 0, arguments)
    report = simulate(ptx, [launch], {"a": a, "b": b, "c": c}, **options)
    return report, a.astype(np.float64) @ b.astype(np.float64).T


needs_nvrtc = pytest.mark.skipif(
    not cuda_compiler.available(), reason="NVRTC (nvidia-cuda-nvrtc) is not installed"
)


@needs_nvrtc
def test_tensor_copies_feed_wgmma() -> None:
    report, expected = matmul(0)
    assert report.clean, [str(fault) for fault in report.faults]
    assert np.array_equal(report.buffers["c"], expected)
    assert not report.unwritten


PLANTED = {
    1: ("too few bytes are expected", "race"),
    2: ("too many bytes are expected", "endless"),
    3: ("shared memory is not aligned", "misaligned"),
    4: ("nobody waits for the copies", "race"),
    5: ("all wait for the copies of one stage", "endless"),  # which is two phases ahead in between
    6: ("nobody waits for wgmma", "race"),
    7: ("no proxy fence before the sums are stored", "race"),
    8: ("no barrier before the sums are stored", "race"),
    9: ("the sums are overwritten while they are read", "race"),
}


@needs_nvrtc
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: PLANTED[plant][0])
def test_a_fault_planted_in_the_kernel_is_found(plant: int) -> None:
    report, _ = matmul(plant)
    assert PLANTED[plant][1] in kinds(report), [str(fault) for fault in report.faults]
