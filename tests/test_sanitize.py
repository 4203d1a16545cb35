"""`tune sanitize`, and the same from Python: faults with both parties, one line for what cannot run."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from tuner.arguments import ArgumentError
from tuner.cli import run
from tuner.sanitize import sanitize

sys.path.insert(0, str(Path(__file__).parent / "simulator"))
import cuda_compiler
from cuda_cases import CASES

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
# Each block turns 128 words round, through shared memory; `n` guards the store.
REVERSE = (
    HEAD
    + """.visible .entry reverse(.param .u64 x, .param .u64 y, .param .u32 n)
{
  .reg .pred %p1;
  .reg .b32 %r<8>;
  .reg .b64 %rd<4>;
  .shared .align 4 .b8 tile[512];
  ld.param.u64 %rd1, [x];
  ld.param.u64 %rd2, [y];
  ld.param.u32 %r6, [n];
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, tile;
  mad.lo.u32 %r3, %r1, 4, %r2;
  mad.wide.u32 %rd3, %r1, 4, %rd1;
  ld.global.u32 %r4, [%rd3];
  st.shared.u32 [%r3], %r4;
  bar.sync 0;
  sub.u32 %r5, 127, %r1;
  mad.lo.u32 %r3, %r5, 4, %r2;
  ld.shared.u32 %r4, [%r3];
  mad.wide.u32 %rd3, %r1, 4, %rd2;
  setp.lt.u32 %p1, %r1, %r6;
  @%p1 st.global.u32 [%rd3], %r4;
  ret;
}
"""
)
# Stores its parameters as they are: a float, a half in a struct of two bytes, a long.
SCALARS = (
    HEAD
    + """.visible .entry scalars(.param .f32 f, .param .align 2 .b8 h[2], .param .s64 l, .param .u64 out)
{
  .reg .f32 %f1;
  .reg .b16 %h1;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [out];
  ld.param.f32 %f1, [f];
  st.global.f32 [%rd1], %f1;
  ld.param.u16 %h1, [h];
  st.global.u16 [%rd1+4], %h1;
  ld.param.s64 %rd2, [l];
  st.global.s64 [%rd1+8], %rd2;
  ret;
}
"""
)
TWO = REVERSE + ".visible .entry other()\n{\n  ret;\n}\n"
ARGS = ("--arg", "random:u32:128", "--arg", "out:u32:128", "--arg", "128")
ONE = ("--grid", "1", "--block", "128")


@pytest.fixture
def reverse(tmp_path: Path) -> Path:
    path = tmp_path / "reverse.ptx"
    path.write_text(REVERSE)
    return path


def said(capsys: pytest.CaptureFixture[str], *arguments: object, code: int) -> str:
    assert run(["sanitize", *map(str, arguments)]) == code
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_a_clean_kernel_ends_with_0_and_saves_its_output(
    reverse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.arange(7, 135, dtype=np.uint32)
    np.save(tmp_path / "x.npy", x)
    out = tmp_path / "saved.array"
    text = said(
        capsys, reverse, *ONE, "--arg", f"in:{tmp_path / 'x.npy'}", "--arg", "result=out:u32:2x64",
        "--arg", "128", "--save", f"result={out}", code=0,
    )  # fmt: skip
    assert "reverse (sm_80), grid 1,1,1, block 128,1,1: no fault" in text
    assert np.array_equal(np.load(out), x[::-1].reshape(2, 64))
    # 128 words in and out, 32 bytes a sector; 4 warps of conflict-free words
    assert "global loads     512  16  sectors        16" in text
    assert "shared stores    512   4  wavefronts      4" in text


def test_a_missing_barrier_shows_both_lines_and_both_threads_of_the_race(
    reverse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reverse.write_text(REVERSE.replace("  bar.sync 0;\n", "\n"))
    text = said(capsys, reverse, *ONE, *ARGS, code=1)
    assert "race: " in text
    assert "line 22    ld.shared.u32 %r4, [%r3];  block (0, 0, 0), thread (0, 0, 0)" in text
    assert "line 18    st.shared.u32 [%r3], %r4;  block (0, 0, 0), thread (127, 0, 0)" in text
    assert "address shared 0x600 (shared memory begins at 0x400)" in text
    assert "1 fault\n" in text


def test_a_read_past_the_end_shows_address_buffer_and_by_how_much(
    reverse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(
        capsys, reverse, *ONE, "--arg", "random:u32:100", "--arg", "out:u32:128", "--arg", "128", code=1
    )
    assert (
        "out_of_bounds: 4 bytes at offset 400 end 4 bytes past the end of 'x' (400 bytes) (28 times)" in text
    )
    assert "line 17    ld.global.u32 %r4, [%rd3];  block (0, 0, 0), thread (100, 0, 0)" in text
    assert "address x + 400 bytes" in text


def test_a_missing_syncthreads_in_cuda_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if not cuda_compiler.available():
        pytest.skip("NVRTC (nvidia-cuda-nvrtc) is not installed")
    (case,) = (case for case in CASES if case.entry == "transpose")
    lines = cuda_compiler.compile_cuda(case.text).splitlines()
    start = next(number for number, line in enumerate(lines) if ".entry transpose(" in line)
    barrier = next(
        n for n in range(start, len(lines)) if "bar.sync" in lines[n] or "barrier.sync" in lines[n]
    )
    path, buffers = tmp_path / "case.ptx", case.buffers(np.random.default_rng(7))
    arguments: list[str] = []
    for argument in case.arguments:
        if isinstance(argument, str):
            np.save(tmp_path / f"{argument}.npy", buffers[argument])
            arguments += ["--arg", f"{argument}=in:{tmp_path / argument}.npy"]
        else:
            arguments += ["--arg", str(argument)]
    sizes = ("--grid", ",".join(map(str, case.grid)), "--block", ",".join(map(str, case.block)))
    path.write_text("\n".join(lines))
    said(capsys, path, "--entry", "transpose", *sizes, *arguments, code=0)
    path.write_text("\n".join([*lines[:barrier], "", *lines[barrier + 1 :]]))
    found = json.loads(said(capsys, path, "--entry", "transpose", *sizes, *arguments, "--json", code=1))
    race = found["faults"][0]
    assert {fault["kind"] for fault in found["faults"]} == {"race"}
    assert "ld.shared" in lines[race["line"] - 1]
    assert "st.shared" in lines[race["other_line"] - 1]
    assert race["thread"] != race["other_thread"]


def test_what_was_never_written_is_said_and_is_no_fault(
    reverse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, reverse, *ONE, *ARGS[:-1], "126", code=0)
    assert "never written: 2 elements of y, the first 126, 127" in text


def test_json_holds_faults_counters_and_traffic(reverse: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(said(capsys, reverse, *ONE, *ARGS, "--json", code=0))
    assert (found["entry"], found["clean"], found["faults"]) == ("reverse", True, [])
    assert found["instructions"]["barrier"] == found["instructions"]["ld.global"] == 4
    assert found["traffic"]["global_stores"] == {"bytes": 512, "sectors": 16, "ideal_sectors": 16}
    assert found["buffers"]["y"] == {"dtype": "uint32", "shape": [128]}


def test_scalars_are_typed_by_their_parameter() -> None:
    def stored(*arguments: str) -> bytes:
        found = sanitize(SCALARS, [*arguments, "zeros:u8:16"], grid=(1, 1, 1), block=(1, 1, 1))
        assert found.report.clean
        return found.report.buffers["out"].tobytes()

    expected = np.float32(0.5).tobytes() + np.float16(1.5).tobytes() + bytes(2) + np.int64(-3).tobytes()
    assert stored("0.5", "1.5", "-3") == expected
    assert stored("f32:5e-1", "f16:1.5", "s64:-3") == expected
    assert stored("1", "bf16:1.5", "0x10")[:6] == np.float32(1).tobytes() + b"\xc0\x3f"


def test_one_buffer_can_be_passed_twice_and_arrays_come_from_python() -> None:
    x = np.arange(128, dtype=np.uint32)
    found = sanitize(REVERSE, [x, "same:x", 128], grid=(1, 1, 1), block=(128, 1, 1))
    assert found.report.clean
    assert np.array_equal(found.report.buffers["x"], x[::-1])
    assert np.array_equal(x, np.arange(128))  # the caller's array is not written to


def test_random_buffers_repeat_by_their_seed() -> None:
    def drawn(spec: str) -> list[int]:
        found = sanitize(REVERSE, [spec, "out:u32:128", 128], grid=(1, 1, 1), block=(128, 1, 1))
        return [int(value) for value in found.report.buffers["x"]]

    assert drawn("random:u32:128") == drawn("random:u32:128:0") != drawn("random:u32:128:1")


def _line(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert run(["sanitize", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("tune: ")
    assert captured.err.count("\n") == 1
    return captured.err.removeprefix("tune: ").rstrip("\n")


def test_ptx_that_cannot_be_run_gives_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "k.ptx"
    assert _line(capsys, path, *ONE) == f"cannot read {path}: No such file or directory"
    path.write_bytes(b"\x7fELF\xff\xfe")
    assert _line(capsys, path, *ONE) == f"{path} must be PTX text, got bytes that are no UTF-8; a cubin?"
    for text, line in {
        "": "a PTX module begins with .version and .target; they are missing",
        "__global__ void k() {}": "PTX line 1: __global__ void k() {}: a module-level directive was expected",
        REVERSE.replace("mad.wide", "modd.wide"): "instruction modd is not simulated",
        REVERSE.replace("%r3, %r5, 4, %r2", "%r3, %r5, 4"): "mad.lo.u32 takes 4 operands, got 3",
        REVERSE[:-3]: "PTX line 4: .entry reverse(.param .u64 x, .param .u64 y, .param .u32 n): the body of",
        REVERSE.replace("tile[512]", "tile[999999]"): "must be 0 to 232448 bytes, got 999999",
    }.items():
        path.write_text(text)
        assert line in _line(capsys, path, *ONE, *ARGS)


def test_an_entry_that_is_not_there_names_those_that_are(
    reverse: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = _line(capsys, reverse, "--entry", "revers", *ONE, *ARGS)
    assert wrong == "no entry is named 'revers'; the module's entries: reverse"
    reverse.write_text(TWO)
    several = _line(capsys, reverse, *ONE, *ARGS)
    assert several == "a module of several entries needs one by name; the module's entries: reverse, other"
    reverse.write_text(HEAD)
    assert "the module has no entry" in _line(capsys, reverse, *ONE, *ARGS)


def test_a_file_of_one_long_line_gives_a_short_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "cache.json"
    other.write_text(json.dumps({f"key{number}": number for number in range(1000)}))
    line = _line(capsys, other, *ONE, *ARGS)
    assert line.startswith('PTX line 1: {"key0": 0, ')
    assert len(line) < 250


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["zeros:u32:128", "128"],
         "entry reverse has 3 parameters (.u64 x, .u64 y, .u32 n), got 2 arguments; give one for each"),
        (["zeros:u32:128", "out:u32:128", "0.5"], "argument n is a .u32 of 4 bytes, which cannot be f32:0.5"),
        (["zeros:u32:128", "out:u32:128", "u64:5"], "argument n is a .u32 of 4 bytes, which cannot be u64:5"),
        (["zeros:u32:128", "out:u32:128", "u32:-5"], "argument n is a .u32; a u32 does not hold '-5'"),
        (["zeros:u32:128", "out:u32:128", str(2**32)], "is a .u32, which does not hold 4294967296"),
        (["zeros:u32:128", "out:u32:128", "zeros:u32:1"],
         "argument n of reverse is a .u32; buffer 'n' needs a 64-bit parameter"),
        (["zeros:u32:128", "out:u32:128", "many"],
         "argument n (.u32) must be a number, or a buffer as in:FILE.npy or out:f32:1024, got 'many'"),
        (["zeros:u33:128", "out:u32:128", "1"], "a type is one of u8, "),
        (["zeros:u32:8y", "out:u32:128", "1"], "a shape is whole numbers joined by x, a seed or a swizzle"),
        (["random:u32:8:1x2", "out:u32:128", "1"], "a swizzle is one, got '1x2' in 'random:u32:8:1x2'"),
        (["zeros:u32", "out:u32:128", "1"], "the form is zeros:TYPE:SHAPE, got 'zeros:u32'"),
        (["zeros:u32:99999999x99999", "out:u32:128", "1"], "a buffer has at most 17179869184 bytes, got "),
        (["nothing:u32:4", "out:u32:128", "1"], "an argument is in:, out:, zeros:, random:, same:, map:, "),
        (["same:y", "out:u32:128", "1"], "'same:y' names no earlier buffer; known are none"),
        (["a=zeros:u32:1", "a=out:u32:128", "1"], "two buffers are named 'a'; same:a passes one"),
        (["in:/no/such.npy", "out:u32:128", "1"], "cannot read /no/such.npy: No such file or directory"),
        (["in:columns.npy", "out:u32:128", "1"], "columns.npy must be C-contiguous; save numpy.ascontiguous"),
        (["in:text.npy", "out:u32:128", "1"], "text.npy must be a .npy file of numbers: "),
        (["in:big.npy", "out:u32:128", "1"], "big.npy must hold numbers in this machine's byte order"),
        (["in:two.npz", "out:u32:128", "1"], "two.npz must be a .npy file, got an archive"),
        (["zeros:u32:128", "out:u32:128", "bytes:three.npy"], "is 4 bytes of .u32, got 3 bytes"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit_give_one_line(
    reverse: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("columns.npy", np.asfortranarray(np.zeros((4, 4), np.uint32)))
    np.save("big.npy", np.zeros(4, ">u4"))
    np.save("three.npy", np.zeros(3, np.uint8))
    np.savez("two.npz", a=np.zeros(4), b=np.zeros(4))
    Path("text.npy").write_text("1 2 3")
    given = [part for one in arguments for part in ("--arg", one)]
    assert line in _line(capsys, reverse, *ONE, *given)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            ("--grid", "1,x", "--block", "128"),
            "--grid must be up to three whole numbers, as 8,4,1, got '1,x'",
        ),
        (("--grid", "0", "--block", "128"), "grid must be from 1,1,1 to 2147483647,65535,65535, got 0,1,1"),
        (("--grid", "1", "--block", "1,1,65"), "block must be from 1,1,1 to 1024,1024,64, got 1,1,65"),
        (("--grid", "1", "--block", "1024,2"), "a block has at most 1024 threads, got 2048"),
        ((*ONE, "--shared", "-1"), "dynamic shared memory must be at least 0 bytes, got -1"),
        ((*ONE, "--shared", "231937"), "shared memory of a block must be 0 to 232448 bytes, got 232449 with"),
        ((*ONE, "--seed", "-1"), "a seed must be at least 0, got -1"),
        (
            (*ONE, "--save", "y=/no/a.npy", "--save", "y=/no/b.npy"),
            "a buffer is saved once, each to a file of its own, got 'y=/no/b.npy' again",
        ),
        (
            (*ONE, "--save", "x=/no/a.npy", "--save", "y=/no/a.npy"),
            "a buffer is saved once, each to a file of its own, got 'y=/no/a.npy' again",
        ),
        ((*ONE, "--save", "y"), "what to save is NAME=FILE.npy, got 'y'"),
        ((*ONE, "--save", "z=z.npy"), "no buffer is named 'z'; buffers: x, y"),
        ((*ONE, "--save", "y=/no/such/y.npy"), "cannot write /no/such/y.npy: No such file or directory"),
    ],
)
def test_sizes_and_files_that_do_not_fit_give_one_line(
    reverse: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], line: str
) -> None:
    assert line in _line(capsys, reverse, *options, *ARGS)


def test_python_raises_what_the_command_says() -> None:
    with pytest.raises(ArgumentError, match="has 3 parameters"):
        sanitize(REVERSE, [], grid=(1, 1, 1), block=(32, 1, 1))
    with pytest.raises(ArgumentError, match="x must be C-contiguous"):
        sanitize(REVERSE, [np.zeros((4, 4)).T, "out:u32:1", 1], grid=(1, 1, 1), block=(32, 1, 1))


@pytest.mark.skipif(not cuda_compiler.available(), reason="NVRTC is not installed")
def test_tensor_maps_are_described_by_their_buffers(tmp_path: Path) -> None:
    source = (Path(__file__).parent / "simulator" / "cuda" / "tensors.cu").read_text()
    a = np.random.default_rng(3).integers(-4, 5, (64, 64)).astype(np.float16)
    np.save(tmp_path / "a.npy", a)
    found = sanitize(
        cuda_compiler.compile_cuda(source, "sm_90a"),
        [
            f"a=map:in:{tmp_path / 'a.npy'},box=64x64,swizzle=128",
            "map:same:a,box=64x64,swizzle=128",
            "c=map:out:f32:64x64,box=64x64",
            64,
        ],
        grid=(1, 1, 1),
        block=(128, 1, 1),
    )
    assert found.report.clean, [str(fault) for fault in found.report.faults]
    assert np.array_equal(found.report.buffers["c"], a.astype(np.float64) @ a.astype(np.float64).T)


@pytest.mark.parametrize(
    ("argument", "reason"),
    [
        ("map:zeros:f16:64x64", "map:BUFFER,box=SHAPE"),
        ("map:zeros:f16:64x64,box=64x64,turns=3", "swizzle, steps, fill, type as options"),
        ("map:zeros:f16:64x64,box=64x60,swizzle=128", "must be multiples of 16 bytes, got 120"),
        ("map:zeros:f16:64x64,box=64x64,swizzle=128x1", "a swizzle is one, got '128x1'"),
        ("map:same:a,box=64", "no earlier buffer"),
        ("map:zeros:f16:64x64,box=64x8,box=64x64", "each once"),
    ],
)
def test_tensor_maps_that_cannot_be_give_one_line(argument: str, reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason) as raised:
        sanitize(REVERSE, [argument, "out:u32:128", 128], grid=(1, 1, 1), block=(128, 1, 1))
    assert "\n" not in str(raised.value)
