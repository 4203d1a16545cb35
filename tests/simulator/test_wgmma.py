"""wgmma: descriptors, swizzles and major orders against a plain product, and what it races with."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from ptx_harness import entry, kinds, run

from tuner.simulator import Report

SIZE = 8192
MODES = {0: 0, 128: 1, 64: 2, 32: 3}
"""Swizzle width in bytes to the two top bits of a matrix descriptor (PTX ISA 9.7.15.5.1)."""


def image(matrix: NDArray[np.float16], width: int, turned: bool) -> tuple[NDArray[np.uint8], int, int]:
    """Return (bytes of a tile in shared memory, leading offset, stride offset) of a matrix (rows, 16).

    The canonical layouts of the ISA: atoms of 8 rows (of 8 columns of k where `turned`) of `width` bytes, 16
    bytes without a swizzle; then address bits 4.. are xored with bits 7...
    """
    rows, depth = matrix.shape
    data = np.zeros(SIZE, np.uint8)
    pitch = width or 16
    across = pitch // 2
    stride = 8 * pitch
    leading = (rows // 8) * stride if not turned else 2 * stride
    if turned and not width:
        leading, stride = (rows // 8) * 8 * pitch, stride
    for row in range(rows):
        for k in range(depth):
            if not turned:
                offset = row // 8 * stride + row % 8 * pitch + 2 * k
                if not width:
                    offset = row // 8 * stride + k // 8 * leading + row % 8 * 16 + k % 8 * 2
            elif width:
                offset = row // across * leading + k // 8 * stride + k % 8 * pitch + row % across * 2
            else:
                offset = row // 8 * stride + k // 8 * leading + k % 8 * 16 + row % 8 * 2
            if width:
                offset ^= ((offset >> 7) & (width // 16 - 1)) << 4
            data[offset : offset + 2] = np.frombuffer(matrix[row, k].tobytes(), np.uint8)
    return data, leading, stride


def descriptor(register: str, base: str, leading: int, stride: int, width: int) -> str:
    fields = leading >> 4 << 16 | stride >> 4 << 32 | MODES[width] << 62
    return f"shr.u32 %r9, {base}, 4; cvt.u64.u32 {register}, %r9; or.b64 {register}, {register}, {fields};\n"


def go(
    a: tuple[NDArray[np.uint8], int, int], b: tuple[NDArray[np.uint8], int, int], width: int, turns: str,
    count: int = 4, after: str = "wgmma.wait_group.sync.aligned 0;", late: str = "",
) -> Report:  # fmt: skip
    names = "{" + ", ".join(f"%f{i}" for i in range(count)) + "}"
    body = "mov.u32 %r0, %tid.x; ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [c];\n"
    body += f".shared .align 1024 .b8 tiles[{2 * SIZE}]; mov.u32 %r4, tiles; add.u32 %r5, %r4, {SIZE};\n"
    body += "mov.u32 %r6, %r0;\nFILL: mad.wide.u32 %rd2, %r6, 16, %rd0; mad.lo.u32 %r7, %r6, 16, %r4;\n"
    body += "ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd2];\n"
    body += "st.shared.v4.u32 [%r7], {%r10, %r11, %r12, %r13};\n"
    body += f"add.u32 %r6, %r6, 128; setp.lt.u32 %p1, %r6, {2 * SIZE // 16}; @%p1 bra FILL;\n"
    body += "fence.proxy.async.shared::cta; bar.sync 0;\n"
    body += descriptor("%rd10", "%r4", a[1], a[2], width) + descriptor("%rd11", "%r5", b[1], b[2], width)
    body += "".join(f"mov.f32 %f{i}, 0f3F800000;" for i in range(count)) + "setp.eq.u32 %p2, %r0, %r0;\n"
    shape = f"m64n{2 * count}k16"
    body += "wgmma.fence.sync.aligned;\n"
    body += f"wgmma.mma_async.sync.aligned.{shape}.f32.f16.f16 {names}, %rd10, %rd11, %p2, 1, 1, {turns};\n"
    body += f"wgmma.commit_group.sync.aligned; {late} {after}\n"
    body += f"mad.wide.u32 %rd3, %r0, {4 * count}, %rd1;\n"
    body += "".join(f"st.global.f32 [%rd3+{4 * i}], %f{i};" for i in range(count)) + "ret;"
    data = np.concatenate([a[0], b[0]])
    return run(entry(body), {"a": data, "c": np.zeros((128, count), np.float32)}, block=128)


def collect(registers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return D (64, N): thread 32w + 4g + t holds rows 16w + g and + 8, columns 2t, 2t + 1 of every 8."""
    count = registers.shape[1]
    d = np.zeros((64, 2 * count), np.float32)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for i in range(count):
            row = 16 * warp + lane // 4 + 8 * (i // 2 % 2)
            d[row, 8 * (i // 4) + 2 * (lane % 4) + i % 2] = registers[thread, i]
    return d


def operands(columns: int) -> tuple[NDArray[np.float16], NDArray[np.float16]]:
    rng = np.random.default_rng(columns)
    return tuple(rng.integers(-4, 5, (rows, 16)).astype(np.float16) for rows in (64, columns))  # type: ignore[return-value]


@pytest.mark.parametrize("width", MODES)
@pytest.mark.parametrize("a_turned", [False, True])
@pytest.mark.parametrize("b_turned", [False, True])
def test_tiles_are_found_in_every_swizzle_and_order(width: int, a_turned: bool, b_turned: bool) -> None:
    a, b = operands(64)
    turns = f"{int(a_turned)}, {int(b_turned)}"
    report = go(image(a, width, a_turned), image(b, width, b_turned), width, turns, count=32)
    assert report.clean, [str(fault) for fault in report.faults]
    expected = a.astype(np.float64) @ b.astype(np.float64).T + 1
    assert np.array_equal(collect(report.buffers["c"]), expected)


def test_writing_a_tile_before_the_wait_is_a_race_even_behind_a_barrier() -> None:
    a, b = operands(8)
    tiles = image(a, 128, False), image(b, 128, False)
    write = "mad.lo.u32 %r7, %r0, 4, %r4; bar.sync 0; st.shared.u32 [%r7], %r0;"
    report = go(*tiles, 128, "0, 0", late=write)
    assert kinds(report) == ["race"]
    after = "wgmma.wait_group.sync.aligned 0;" + write
    assert go(*tiles, 128, "0, 0", after=after).clean


def test_a_tile_outside_shared_memory_is_found() -> None:
    a, b = operands(8)
    far = (image(a, 128, False)[0], 0, 1 << 17)
    assert "out_of_bounds" in kinds(go(far, image(b, 128, False), 128, "0, 0"))
