"""The cubin reader is held to ptxas' own report and to nvdisasm, on every arch."""

import importlib.metadata
import re
import subprocess
from pathlib import Path

import pytest

from emitters.target import ARCHS, arch_named
from tuner import sass
from tuner.cubin import CubinError, code_hash, read_binary
from tuner.ptxas import Assembler, find_ptxas

SAMPLE = Path(__file__).parent / "samples" / "instruction_mix.ptx"
WORD = re.compile(r"/\* 0x([0-9a-f]{16}) \*/")
LINE = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?(\w+)[^/]*?(?:`\((\S+)\))?\s*;")


def sample(arch: str) -> str:
    return SAMPLE.read_text().replace("VERSION", arch_named(arch).ptx_version).replace("ARCH", arch)


@pytest.fixture(scope="module")
def assembler(tmp_path_factory: pytest.TempPathFactory) -> Assembler:
    return Assembler(cache_dir=tmp_path_factory.mktemp("cubins"))


def disassembled(
    cubin: bytes, entry: str, directory: Path
) -> tuple[list[tuple[str, int, bool]], dict[str, int], list[tuple[int, str]]]:
    """(Mnemonic, stall, never executed) of each instruction; labels; branches as (number, label)."""
    files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
    program = next(file.locate() for file in files if file.name == "nvdisasm")
    path = directory / "sample.cubin"
    path.write_bytes(cubin)
    text = subprocess.run(
        [str(program), "-c", "-hex", path], capture_output=True, text=True, check=True
    ).stdout
    section = text[text.index(f".text.{entry}:") :].splitlines()
    instructions: list[tuple[str, int, bool]] = []
    labels: dict[str, int] = {}
    branches: list[tuple[int, str]] = []
    for number, line in enumerate(section):
        if line.startswith("\t.section"):
            break
        if line.startswith(".L_"):
            labels[line.rstrip(":")] = len(instructions)
        found = LINE.match(line)
        if found:
            _, guard, mnemonic, label = found.groups()
            word = WORD.search(section[number + 1])
            assert word is not None
            if label:
                branches.append((len(instructions), label))
            instructions.append((mnemonic, int(word.group(1), 16) >> 41 & 15, guard in ("!PT", "!UPT")))
    return instructions, labels, branches


@pytest.mark.parametrize("arch", ARCHS)
def test_counts_and_loop_agree_with_nvdisasm(arch: str, assembler: Assembler, tmp_path: Path) -> None:
    binary = assembler.assemble(sample(arch), arch)
    code = binary.function("mix").code
    instructions, labels, branches = disassembled(binary.cubin, "mix", tmp_path)
    assert code.instructions == len(instructions)

    loops = [(labels[label], number + 1) for number, label in branches if labels[label] < number]
    assert code.loop is not None
    assert (code.loop.start // 16, code.loop.end // 16) in loops
    body = instructions[code.loop.start // 16 : code.loop.end // 16]
    assert code.loop.stall_cycles == sum(stall for _, stall, _ in body)
    assert code.loop.mma == sum(name.endswith("MMA") for name, _, _ in body) == 4
    assert code.loop.ldmatrix == 2
    assert code.loop.chains == 3  # two s8 mma's on one accumulator, one f16, one f64
    assert code.loop.instructions_per_mma == len(body) / 4

    named = set(sass.MNEMONICS.values())
    for part, mix in ((instructions, code.mix), (body, code.loop.mix)):
        assert mix.get(sass.NEVER, 0) == sum(never for _, _, never in part)
        expected: dict[str, int] = {}
        for name, _, never in part:
            name = {"REDG": "RED"}.get(name, name)
            if not never:
                name = name if name in named else sass.OTHER
                expected[name] = expected.get(name, 0) + 1
        assert {name: count for name, count in mix.items() if name != sass.NEVER} == expected


@pytest.mark.parametrize("arch", ARCHS)
def test_resources_agree_with_ptxas(arch: str, assembler: Assembler, tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(sample(arch))
    command = [str(find_ptxas()), "-v", f"-arch={arch}", "k.ptx", "-o", "k.cubin"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    report = re.findall(
        r"Function properties for (\w+).*?Used (\d+) registers.*?, (\d+) bytes smem", said, re.DOTALL
    )
    binary = assembler.assemble(sample(arch), arch)
    assert {(f.name, str(f.registers), str(f.shared_bytes)) for f in binary.functions} == set(report)
    assert len(report) == 2
    assert (binary.registers, binary.shared_bytes) == (
        binary.function("mix").registers,
        binary.function("mix").shared_bytes,
    )
    assert binary.shared_bytes == 4096


def test_option_string_is_no_part_of_the_code_hash(tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(sample("sm_89"))
    cubins = []
    for number, options in enumerate((["-arch=sm_89"], ["-v", "-O3", "--gpu-name=sm_89"])):
        command = [str(find_ptxas()), *options, "k.ptx", "-o", f"{number}.cubin"]
        subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
        cubins.append((tmp_path / f"{number}.cubin").read_bytes())
    assert cubins[0] != cubins[1]
    assert code_hash(cubins[0]) == code_hash(cubins[1])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0x1234", "0x1243"),  # an immediate of the code
        (".b8 flag[64]", ".b8 flag[128]"),  # only the shared size
        (
            ".entry second(",
            ".entry second_(",
        ),  # only a name
    ],
)
def test_any_difference_that_matters_changes_the_code_hash(old: str, new: str, assembler: Assembler) -> None:
    text = sample("sm_89")
    assert old in text
    before, after = (assembler.assemble(t, "sm_89").code_hash for t in (text, text.replace(old, new)))
    assert before != after


def test_unrolled_outer_loop_does_not_hide_the_inner_one(assembler: Assembler) -> None:
    """The loop with the mma's is found although an outer loop holds them too."""
    text = sample("sm_89")
    outer = text.replace("loop:\n", "outer:\n    mov.u32 %r6, 0;\nloop:\n").replace(
        "    @%p1 bra loop;\n",
        "    @%p1 bra loop;\n    add.u32 %r1, %r1, -1;\n    setp.gt.s32 %p2, %r1, 0;\n    @%p2 bra outer;\n",
    )
    inner = assembler.assemble(text, "sm_89").function("mix").code.loop
    nested = assembler.assemble(outer, "sm_89").function("mix").code.loop
    assert inner is not None
    assert nested is not None
    assert nested.mma == inner.mma == 4
    assert abs(nested.instructions - inner.instructions) <= 4


def test_spills_are_reported(assembler: Assembler) -> None:
    registers = "\n".join(f"ld.volatile.global.u32 %r{i}, [%rd1 + {4 * i}];" for i in range(64))
    stores = "\n".join(f"st.volatile.global.u32 [%rd1 + {4 * (63 - i)}], %r{i};" for i in range(64))
    text = (
        ".version 7.8\n.target sm_89\n.address_size 64\n"
        ".visible .entry many(.param .u64 A)\n.maxntid 1024, 1, 1\n.maxnreg 24\n{\n"
        f".reg .b64 %rd<2>;\n.reg .b32 %r<64>;\nld.param.u64 %rd1, [A];\n{registers}\n{stores}\nret;\n}}\n"
    )
    binary = assembler.assemble(text, "sm_89")
    mix = binary.functions[0].code.mix
    assert binary.registers == 24
    # Every spilled register is 4 bytes, stored once and loaded once, by an instruction of its own.
    assert binary.spill_bytes == 4 * (mix["STL"] + mix["LDL"]) > 0


def test_cut_or_foreign_files_are_refused(assembler: Assembler) -> None:
    cubin = assembler.assemble(sample("sm_89"), "sm_89").cubin
    for bad, rule in (
        (b"", "not a cubin"),
        (b"MZ" + cubin[2:], "not a cubin"),
        (cubin[:64], "cut short"),
        (cubin[: len(cubin) - 900], "cut short"),
    ):
        with pytest.raises(CubinError, match=rule):
            code_hash(bad)
    with pytest.raises(CubinError, match="no code for entry 'nobody'"):
        read_binary(cubin, 89, ("nobody",), {}, "13.0")


def test_unknown_entry_names_those_there_are(assembler: Assembler) -> None:
    with pytest.raises(KeyError, match="mix, second"):
        assembler.assemble(sample("sm_89"), "sm_89").function("third")


def test_text_of_a_broken_length_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 16 bytes, got 15"):
        sass.scan(bytes(15), 89)
