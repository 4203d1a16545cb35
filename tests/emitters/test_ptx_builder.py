import numpy as np
import pytest

from emitters.ptx import Entry, Module, Parameter, SharedLayout, at, hexadecimal, negated, vector
from emitters.target import ARCHS, arch_named
from tuner.simulator import Launch, parse, simulate


def new_entry(min_blocks: int | None = None) -> Entry:
    parameters = [Parameter("out", "u64"), Parameter("n", "u32"), Parameter("scale", "f32")]
    return Entry("kernel", parameters, threads=64, min_blocks=min_blocks)


def test_registers_of_each_class_are_numbered_and_declared():
    ptx = new_entry()
    assert (ptx.new_r(), ptx.new_r(), ptx.new_rd(), ptx.new_p(), ptx.new_f(), ptx.new_fd(), ptx.new_h()) == (
        "%r0",
        "%r1",
        "%rd0",
        "%p0",
        "%f0",
        "%fd0",
        "%h0",
    )
    text = ptx.text()
    for declaration in (".reg .b32 %r<2>;", ".reg .b64 %rd<1>;", ".reg .pred %p<1>;", ".reg .f32 %f<1>;"):
        assert declaration in text
    assert ".reg .f64 %fd<1>;" in text
    assert ".reg .b16 %h<1>;" in text


def test_classes_that_are_not_used_are_not_declared():
    assert ".reg" not in new_entry().text()


def test_an_instruction_reads_as_in_the_isa():
    ptx = new_entry()
    tid = ptx.r("mov.u32", "%tid.x")
    inside = ptx.p("setp.lt.u32", tid, 10)
    ptx.op("st.global.v2.b32", at("%rd9", 16), vector(["%r1", "%r2"]), guard=negated(inside))
    lines = [line.strip() for line in ptx.text().splitlines()]
    assert "mov.u32 %r0, %tid.x;" in lines
    assert "setp.lt.u32 %p0, %r0, 10;" in lines
    assert "@!%p0 st.global.v2.b32 [%rd9+16], {%r1, %r2};" in lines


def test_negating_twice_gives_the_predicate_itself():
    inside = new_entry().new_p()
    assert negated(negated(inside)) == inside


@pytest.mark.parametrize(("offset", "address"), [(0, "[%r1]"), (4, "[%r1+4]"), (-8, "[%r1-8]")])
def test_addresses_show_their_offset(offset, address):
    assert at("%r1", offset) == address


def test_constants_are_unsigned_words():
    assert hexadecimal(-1) == "0xFFFFFFFF"
    assert hexadecimal(0xC0C0C0C0) == "0xC0C0C0C0"


def test_labels_that_repeat_are_numbered():
    ptx = new_entry()
    assert [ptx.new_label("LOOP"), ptx.new_label("LOOP"), ptx.new_label("DONE")] == ["LOOP", "LOOP_1", "DONE"]


def test_a_parameter_that_was_not_declared_is_refused():
    ptx = new_entry()
    with pytest.raises(
        ValueError, match=r"must be one of out \(u64\), n \(u32\), scale \(f32\), got m \(u32\)"
    ):
        ptx.size("m")
    with pytest.raises(ValueError, match=r"got n \(u64\)"):
        ptx.pointer("n")


def test_min_blocks_never_comes_without_maxntid():
    assert ".minnctapersm" not in new_entry().text()
    text = new_entry(min_blocks=2).text()
    assert text.index(".maxntid 64, 1, 1") < text.index(".minnctapersm 2")


@pytest.mark.parametrize("name", ARCHS)
def test_version_and_target_follow_the_arch(name):
    text = Module(arch_named(name), ["a kernel", "of two lines"]).text()
    lines = text.splitlines()
    assert lines[:2] == ["// a kernel", "// of two lines"]
    assert f".version {ARCHS[name].ptx_version}" in lines
    assert f".target {name}" in lines


def test_shared_regions_are_aligned_and_do_not_overlap():
    layout = SharedLayout()
    assert [layout.take(10), layout.take(100, 128), layout.take(4, 4)] == [0, 128, 228]
    assert layout.nbytes == 232


def test_a_module_of_two_entries_runs():
    module = Module(arch_named("sm_80"), ["two entries"])
    for name, factor in (("double", 2), ("triple", 3)):
        ptx = module.entry(name, [Parameter("out", "u64"), Parameter("n", "u32")], threads=32)
        out, n = ptx.pointer("out"), ptx.size("n")
        tid = ptx.r("mov.u32", "%tid.x")
        static = ptx.static_shared(f"{name}_words", 128)
        word = ptx.r("mad.lo.u32", tid, 4, static)
        ptx.op("st.shared.b32", at(word), ptx.r("mul.lo.u32", tid, factor))
        address = ptx.rd("mad.wide.u32", tid, 4, out)
        done = ptx.new_label("DONE")
        ptx.branch(done, guard=ptx.p("setp.ge.u32", tid, n))
        ptx.op("st.global.b32", at(address), ptx.r("ld.shared.b32", at(word)))
        ptx.place(done)
        ptx.op("ret")
    parsed = parse(module.text())
    for name, factor in (("double", 2), ("triple", 3)):
        out = np.zeros(20, np.int32)
        report = simulate(
            parsed, [Launch(name, (1, 1, 1), (32, 1, 1), 0, ("out", 20))], {"out": out}, outputs=("out",)
        )
        assert report.clean
        assert report.buffers["out"].tolist() == [factor * i for i in range(20)]
