"""Loads, stores and atomics in every state space, and the faults that they can have."""

from __future__ import annotations

import numpy as np
import pytest
from ptx_harness import entry, kinds, run

from tuner.simulator import Launch, Memset, simulate

IDS = "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.s32 %r3, %r1, %r2, %r0;\n"
POINTERS = "ld.param.u64 %rd0, [a]; ld.param.u64 %rd1, [c];\n"
ELEMENT = "mad.wide.u32 %rd2, %r3, 4, %rd0; mad.wide.u32 %rd3, %r3, 4, %rd1;\n"
START = IDS + POINTERS + ELEMENT


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("bits", [32, 64])
def test_vectors_load_and_store_in_order(width: int, bits: int) -> None:
    names = [f"%r{10 + i}" if bits == 32 else f"%rd{10 + i}" for i in range(width)]
    vector = "{" + ", ".join(names) + "}" if width > 1 else names[0]
    turned = "{" + ", ".join(names[::-1]) + "}" if width > 1 else names[0]
    suffix = f".v{width}" if width > 1 else ""
    size = width * bits // 8
    body = IDS + POINTERS + f"mad.wide.u32 %rd2, %r3, {size}, %rd0; mad.wide.u32 %rd3, %r3, {size}, %rd1;"
    body += f"ld.global.nc.L1::no_allocate.L2::128B{suffix}.b{bits} {vector}, [%rd2];"
    body += f"st.global{suffix}.b{bits} [%rd3], {turned}; ret;"
    a = np.random.default_rng(0).integers(0, 1 << bits, (64, width), dtype=f"uint{bits}")
    report = run(entry(body), {"a": a, "c": np.zeros_like(a)}, grid=2)
    assert report.clean
    assert np.array_equal(report.buffers["c"], a[:, ::-1])


@pytest.mark.parametrize("name", ["s8", "u8", "s16", "u16"])
def test_narrow_loads_extend_to_their_register(name: str) -> None:
    dtype = np.dtype(f"{'int' if name[0] == 's' else 'uint'}{name[1:]}")
    a = np.random.default_rng(0).integers(0, 256, 64, dtype=np.uint8).view(dtype)[:32].copy()
    body = (
        IDS + POINTERS + f"mad.wide.u32 %rd2, %r3, {dtype.itemsize}, %rd0; mad.wide.u32 %rd3, %r3, 4, %rd1;"
    )
    body += f"ld.global.{name} %r5, [%rd2]; st.global.u32 [%rd3], %r5; ret;"
    report = run(entry(body), {"a": a, "c": np.zeros(32, np.int32)})
    assert np.array_equal(report.buffers["c"], a.astype(np.int32))


def test_scratch_is_written_in_place() -> None:
    a = np.arange(32, dtype=np.uint32)
    body = START + "ld.global.u32 %r5, [%rd2]; add.u32 %r5, %r5, 1; st.global.u32 [%rd2], %r5; ret;"
    run(entry(body), {"a": a, "c": np.zeros(32, np.uint32)}, outputs=(), scratch=("a",))
    assert np.array_equal(a, np.arange(1, 33))


def test_inputs_are_never_changed_and_results_are_copies() -> None:
    a = np.arange(32, dtype=np.uint32)
    report = run(
        entry(START + "ld.global.u32 %r5, [%rd2]; add.u32 %r5, %r5, 1; st.global.u32 [%rd2], %r5; ret;"),
        {"a": a, "c": np.zeros(32, np.uint32)},
        outputs=(),
    )
    assert np.array_equal(a, np.arange(32))
    assert np.array_equal(report.buffers["a"], a + 1)


@pytest.mark.parametrize(("size", "past"), [(31, 4), (30, 4)])
def test_read_past_a_buffer_names_buffer_offset_and_by_how_much(size: int, past: int) -> None:
    body = START + "ld.global.u32 %r5, [%rd2]; st.global.u32 [%rd3], %r5; ret;"
    report = run(entry(body), {"a": np.zeros(size, np.uint32), "c": np.zeros(32, np.uint32)})
    (fault,) = report.faults
    assert (fault.kind, fault.buffer, fault.address, fault.space) == (
        "out_of_bounds",
        "a",
        4 * size,
        "global",
    )
    assert f"end {past} bytes past the end of 'a'" in fault.message
    assert fault.thread == (size, 0, 0)
    assert fault.count == 32 - size
    assert "ld.global.u32" in fault.text


def test_access_before_a_buffer_and_to_no_buffer() -> None:
    report = run(
        entry(START + "st.global.u32 [%rd3+-4], %r0; ret;"),
        {"a": np.zeros(32, np.uint32), "c": np.zeros(32, np.uint32)},
    )
    assert kinds(report) == ["out_of_bounds"]
    assert "begin 4 bytes before 'c'" in report.faults[0].message
    report = run(
        entry(START + "cvt.u32.u64 %r9, %rd3; cvt.u64.u32 %rd3, %r9; st.global.u32 [%rd3], %r0; ret;"),
        {"a": np.zeros(32, np.uint32), "c": np.zeros(32, np.uint32)},
    )
    assert kinds(report) == ["out_of_bounds"]
    assert "belongs to no buffer" in report.faults[0].message


def test_after_a_stray_access_the_other_lanes_go_on() -> None:
    body = START + "ld.global.u32 %r5, [%rd2]; st.global.u32 [%rd3], %r5; ret;"
    a = np.arange(20, dtype=np.uint32)
    report = run(entry(body), {"a": a, "c": np.zeros(32, np.uint32)})
    assert np.array_equal(report.buffers["c"][:20], a)
    assert report.buffers["c"][20] not in range(20)


@pytest.mark.parametrize(
    ("type_", "size"), [("u16", 2), ("u32", 4), ("u64", 8), ("v2.u32", 8), ("v4.u32", 16)]
)
def test_misaligned_access_of_every_width(type_: str, size: int) -> None:
    register = {"u16": "%h1", "u64": "%rd9", "v2.u32": "{%r5, %r6}", "v4.u32": "{%r5, %r6, %r7, %r8}"}.get(
        type_, "%r5"
    )
    body = (
        IDS + POINTERS + f"ld.global.{type_} {register}, [%rd0+{size // 2}]; st.global.u32 [%rd1], %r0; ret;"
    )
    report = run(entry(body), {"a": np.zeros(64, np.uint32), "c": np.zeros(1, np.uint32)}, block=1)
    assert kinds(report) == ["misaligned"]
    assert f"no multiple of {size}" in report.faults[0].message


def test_outputs_are_poison_until_written_and_reading_them_is_found() -> None:
    body = START + "ld.global.u32 %r5, [%rd3]; st.global.u32 [%rd3], %r5; ret;"
    report = run(entry(body), {"a": np.zeros(32, np.uint32), "c": np.zeros(32, np.uint32)})
    assert kinds(report) == ["uninitialised"]
    assert report.faults[0].buffer == "c"
    assert report.buffers["c"][0] != 0


def test_elements_never_written_are_counted() -> None:
    body = START + "setp.eq.u32 %p1, %r3, 5; @%p1 bra END; st.global.u32 [%rd3], %r0;\nEND: ret;"
    report = run(entry(body), {"a": np.zeros(32, np.uint32), "c": np.zeros(35, np.uint32)})
    assert report.clean
    assert report.unwritten["c"].count == 4
    assert report.unwritten["c"].first == (5, 32, 33, 34)


def test_memset_makes_bytes_defined() -> None:
    text = entry(START + "ld.global.u32 %r5, [%rd3]; add.u32 %r5, %r5, %r0; st.global.u32 [%rd3], %r5; ret;")
    buffers = {"a": np.zeros(32, np.uint32), "c": np.zeros(32, np.uint32)}
    report = simulate(text, [Memset("c", 1), Launch("k", (1, 1, 1), (32, 1, 1), 0, ("a", "c"))], buffers)
    assert report.clean
    assert np.array_equal(report.buffers["c"], 0x01010101 + np.arange(32))


SHARED = ".shared .align 16 .b8 tile[256];\n"
SLOT = "mov.u32 %r5, tile; mad.lo.u32 %r6, %r0, 4, %r5; "


def test_shared_memory_needs_its_base_address() -> None:
    body = START + SHARED + "shl.b32 %r6, %r0, 2; st.shared.u32 [%r6], %r0; st.global.u32 [%rd3], %r0; ret;"
    report = run(entry(body), {"a": np.zeros(32, np.uint32), "c": np.zeros(32, np.uint32)})
    assert kinds(report) == ["out_of_bounds"]
    assert report.faults[0].space == "shared"


def test_shared_memory_ends_where_static_and_dynamic_parts_end() -> None:
    body = START + SHARED + SLOT + "st.shared.u32 [%r6+252], %r0; st.global.u32 [%rd3], %r0; ret;"
    buffers = {"a": np.zeros(32, np.uint32), "c": np.zeros(32, np.uint32)}
    report = run(entry(body), buffers)
    assert kinds(report) == ["out_of_bounds"]
    assert report.faults[0].thread == (1, 0, 0)
    assert run(entry(body), buffers, shared_bytes=124).clean


def test_dynamic_shared_memory_comes_after_static() -> None:
    before = ".extern .shared .align 16 .b8 dynamic[];"
    body = START + ".shared .align 4 .b8 small[20];\n mov.u32 %r5, dynamic; st.global.u32 [%rd3], %r5; ret;"
    report = run(
        entry(body, before=before),
        {"a": np.zeros(32, np.uint32), "c": np.zeros(32, np.uint32)},
        shared_bytes=64,
    )
    assert report.buffers["c"][0] == 1024 + 32


def test_uninitialised_shared_memory_is_found() -> None:
    body = START + SHARED + SLOT + "ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd3], %r7; ret;"
    report = run(entry(body), {"a": np.zeros(32, np.uint32), "c": np.zeros(32, np.uint32)})
    assert kinds(report) == ["uninitialised"]
    assert report.faults[0].space == "shared"


@pytest.mark.parametrize("type_", ["u32", "v2.u32", "v4.u32"])
def test_misaligned_shared_access(type_: str) -> None:
    register = {"u32": "%r7", "v2.u32": "{%r7, %r8}"}.get(type_, "{%r7, %r8, %r9, %r10}")
    body = START + SHARED + f"mov.u32 %r5, tile; ld.shared.{type_} {register}, [%r5+2]; ret;"
    report = run(entry(body), {"a": np.zeros(32, np.uint32), "c": np.zeros(32, np.uint32)}, block=1)
    assert kinds(report)[0] == "misaligned"


def test_registers_never_written_are_found_with_their_name() -> None:
    body = START + "add.u32 %r7, %r50, 1; st.global.u32 [%rd3], %r7; ret;"
    report = run(entry(body), {"a": np.zeros(32, np.uint32), "c": np.zeros(32, np.uint32)})
    assert kinds(report) == ["uninitialised"]
    assert "%r50" in report.faults[0].message


def test_registers_written_on_one_path_only_raise_no_alarm() -> None:
    body = (
        START
        + "setp.lt.u32 %p1, %r0, 16; @%p1 mov.u32 %r50, 7; @%p1 add.u32 %r7, %r50, 1; @!%p1 mov.u32 %r7, 0;"
    )
    report = run(
        entry(body + "st.global.u32 [%rd3], %r7; ret;"),
        {"a": np.zeros(32, np.uint32), "c": np.zeros(32, np.uint32)},
    )
    assert report.clean
    assert report.buffers["c"].tolist() == [8] * 16 + [0] * 16


def test_generic_addresses_reach_shared_local_and_global() -> None:
    body = START + SHARED + ".local .align 8 .b8 mine[8];\n" + SLOT
    body += "cvt.u64.u32 %rd5, %r6; cvta.shared.u64 %rd5, %rd5; st.u32 [%rd5], %r0; ld.u32 %r7, [%rd5];"
    body += "mov.u64 %rd6, mine; cvta.local.u64 %rd6, %rd6; st.u32 [%rd6+4], %r7; ld.u32 %r8, [%rd6+4];"
    body += (
        "cvta.global.u64 %rd7, %rd3; isspacep.global %p2, %rd7; "
        "isspacep.shared %p3, %rd5; and.pred %p2, %p2, %p3;"
    )
    body += "selp.u32 %r9, 100, 0, %p2; add.u32 %r8, %r8, %r9; st.u32 [%rd7], %r8; ret;"
    report = run(entry(body), {"a": np.zeros(32, np.uint32), "c": np.zeros(32, np.uint32)})
    assert report.clean
    assert np.array_equal(report.buffers["c"], np.arange(32) + 100)


def test_local_memory_has_bounds_and_undefined_bytes() -> None:
    body = (
        START + ".local .align 4 .b8 mine[16];\n mov.u64 %rd5, mine; ld.local.u32 %r7, [%rd5]; "
        "st.local.u32 [%rd5+16], %r0; ret;"
    )
    report = run(entry(body), {"a": np.zeros(32, np.uint32), "c": np.zeros(32, np.uint32)})
    assert kinds(report) == ["uninitialised", "out_of_bounds"]


ATOMICS = {
    "add.u32": lambda old, x: old + x,
    "min.u32": lambda old, x: min(old, x),
    "max.u32": lambda old, x: max(old, x),
    "and.b32": lambda old, x: old & x,
    "or.b32": lambda old, x: old | x,
    "xor.b32": lambda old, x: old ^ x,
    "inc.u32": lambda old, x: 0 if old >= x else old + 1,
    "dec.u32": lambda old, x: x if old == 0 or old > x else old - 1,
}


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("operation", ATOMICS)
def test_atomics_that_meet_act_one_after_the_other(operation: str, space: str) -> None:
    shared = space == "shared"
    place = "[cell]" if shared else "[%rd1+128]"
    body = START + ".shared .align 4 .b8 cell[4];\n ld.global.u32 %r5, [%rd2]; setp.eq.u32 %p1, %r0, 0;"
    body += f"@%p1 st.{space}.u32 {place}, 77; bar.sync 0; atom.{space}.{operation} %r6, {place}, %r5;"
    body += (
        f"st.global.u32 [%rd3], %r6; bar.sync 0; @%p1 ld.{space}.u32 %r7, {place}; "
        f"@%p1 st.global.u32 [%rd1+132], %r7; ret;"
    )
    a = (
        np.full(32, 5, np.uint32)
        if operation[:3] in ("inc", "dec")
        else np.random.default_rng(1).integers(0, 200, 32, dtype=np.uint32)
    )
    report = run(entry(body), {"a": a, "c": np.zeros(34, np.uint32)}, seed=3)
    assert report.clean, [str(fault) for fault in report.faults]
    step, found = ATOMICS[operation], report.buffers["c"]
    # some order of the lanes has to explain what every lane saw and what was left
    state, left = 77, dict(enumerate(found[:32].tolist()))
    if operation[:3] in ("and", "min", "max", "or."):
        assert found[33] == __import__("functools").reduce(step, a.tolist(), 77)
        return
    while left:
        lane = next((lane for lane, old in left.items() if old == state), None)
        assert lane is not None
        state = step(state, int(a[lane])) & 0xFFFFFFFF
        del left[lane]
    assert found[33] == state


@pytest.mark.parametrize(("type_", "dtype"), [("f32", np.float32), ("f64", np.float64)])
def test_float_atomics_add(type_: str, dtype: type) -> None:
    size = np.dtype(dtype).itemsize
    register = "%f1" if type_ == "f32" else "%fd1"
    body = IDS + POINTERS + f"mad.wide.u32 %rd2, %r3, {size}, %rd0; ld.global.{type_} {register}, [%rd2];"
    body += f"red.global.add.{type_} [%rd1], {register}; ret;"
    a = np.arange(32).astype(dtype)
    steps = [Memset("c", 0), Launch("k", (1, 1, 1), (32, 1, 1), 0, ("a", "c"))]
    report = simulate(entry(body), steps, {"a": a, "c": np.zeros(1, dtype)})
    assert report.clean
    assert report.buffers["c"][0] == 496


def test_counters_count_sectors_and_bank_conflicts() -> None:
    body = (
        START + ".shared .align 16 .b8 big[4096];\n mov.u32 %r5, big; "
        "mad.lo.u32 %r6, %r0, 128, %r5; mad.lo.u32 %r7, %r0, 4, %r5;"
    )
    body += "st.shared.u32 [%r6], %r0; ld.global.u32 %r8, [%rd2]; bar.sync 0; ld.shared.u32 %r9, [%r5];"
    body += "mad.wide.u32 %rd5, %r0, 32, %rd0; ld.global.u32 %r10, [%rd5]; st.global.u32 [%rd3], %r9; ret;"
    report = run(entry(body), {"a": np.zeros(256, np.uint32), "c": np.zeros(64, np.uint32)}, grid=2)
    (counted,) = report.counters
    assert (counted.shared_stores.wavefronts, counted.shared_stores.ideal) == (2 * 32, 2)
    assert (counted.shared_loads.wavefronts, counted.shared_loads.ideal) == (2, 2)
    assert (counted.global_loads.sectors, counted.global_loads.nbytes) == (2 * (4 + 32), 2 * 256)
    assert counted.global_stores.sectors == 8
    assert counted.global_stores.nbytes == 256
    assert counted.instructions["ld.global"] == 4
    assert counted.instructions["barrier"] == 2
    assert counted.blocks == 2


@pytest.mark.parametrize(("stride", "expected"), [(16, 4), (32, 8), (80, 4), (64, 16), (128, 32), (144, 4)])
def test_wavefronts_of_16_byte_accesses_go_by_eight_lanes(stride: int, expected: int) -> None:
    body = START + f".shared .align 16 .b8 big[8192];\n mov.u32 %r5, big; mad.lo.u32 %r6, %r0, {stride}, %r5;"
    body += "st.shared.v4.u32 [%r6], {%r0, %r0, %r0, %r0}; st.global.u32 [%rd3], %r0; ret;"
    report = run(entry(body), {"a": np.zeros(32, np.uint32), "c": np.zeros(32, np.uint32)})
    stores = report.counters[0].shared_stores
    assert (stores.wavefronts, stores.ideal) == (expected, 4)
