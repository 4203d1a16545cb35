"""The assembler: where it is found, what it refuses and says, its timeout and its cache."""

import multiprocessing
import os
import pickle
import stat
import time
from pathlib import Path

import pytest

import tuner.ptxas
from tuner.ptxas import (
    AssembleError,
    Assembler,
    AssemblerError,
    AssembleTimeoutError,
    NoPtxasError,
    default_cache,
    find_ptxas,
)

HEAD = ".version 7.8\n.target sm_89\n.address_size 64\n"
STORE = HEAD + (
    ".visible .entry store(.param .u64 out)\n{\n"
    "    .reg .b64 %rd<2>;\n    .reg .b32 %r<2>;\n"
    "    ld.param.u64 %rd1, [out];\n    mov.u32 %r1, VALUE;\n    st.global.u32 [%rd1], %r1;\n    ret;\n}\n"
)


def store(value: int = 7) -> str:
    return STORE.replace("VALUE", str(value))


def program(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def fake(path: Path, body: str) -> Path:
    """A ptxas that tells a version and then does `body`."""
    return program(path, f'if [ "$1" = --version ]; then echo "release 13.0, V13.0.88"; exit 0; fi\n{body}')


@pytest.fixture
def assembler(tmp_path: Path) -> Assembler:
    return Assembler(cache_dir=tmp_path / "cubins")


def entries(assembler: Assembler) -> list[Path]:
    return [path for path in assembler.cache_dir.rglob("*") if path.is_file()]


def test_finds_ptxas_of_the_installed_wheel(assembler: Assembler) -> None:
    assert find_ptxas().name.startswith("ptxas")
    assert [part.isdigit() for part in assembler.version.split(".")] == [True, True, True]


def test_without_a_wheel_the_message_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuner.ptxas, "DISTRIBUTIONS", ("no-such-distribution",))
    with pytest.raises(NoPtxasError, match=r"no ptxas: .*no-such-distribution.*pip install nvidia-cuda-nvcc"):
        find_ptxas()


def test_given_path_must_be_a_program(tmp_path: Path) -> None:
    (tmp_path / "ptxas").write_text("not a program")
    for path in (tmp_path / "ptxas", tmp_path / "absent", tmp_path):
        with pytest.raises(NoPtxasError, match=f"no ptxas: {path} is not a program"):
            Assembler(path, cache_dir=tmp_path / "cubins")


def test_program_that_is_no_ptxas_is_named(tmp_path: Path) -> None:
    other = program(tmp_path / "other", "echo something else")
    with pytest.raises(NoPtxasError, match="does not tell a ptxas version"):
        Assembler(other, cache_dir=tmp_path / "cubins")


def test_error_quotes_the_ptx_line(assembler: Assembler) -> None:
    with pytest.raises(AssembleError, match=r"PTX line 9: .*'\.u33'.*`mov\.u33 %r1, 7;`"):
        assembler.assemble(store().replace("mov.u32", "mov.u33"), "sm_89")
    assert entries(assembler) == []


def test_warning_is_an_error(assembler: Assembler) -> None:
    text = store().replace("(.param .u64 out)\n", "(.param .u64 out)\n.minnctapersm 2\n")
    with pytest.raises(AssembleError, match="minnctapersm is ignored"):
        assembler.assemble(text, "sm_89")
    assert entries(assembler) == []


def test_many_errors_are_counted(assembler: Assembler) -> None:
    bad = "\n".join(f"    mov.u32 %r1, %missing{i};" for i in range(9))
    with pytest.raises(AssembleError, match=r"and 6 more$"):
        assembler.assemble(store().replace("    ret;", f"{bad}\n    ret;"), "sm_89")


def test_text_without_an_entry_is_refused(assembler: Assembler) -> None:
    with pytest.raises(AssembleError, match=r"no \.entry"):
        assembler.assemble(HEAD, "sm_89")


def test_timeout_kills_ptxas_and_its_children(tmp_path: Path) -> None:
    child = tmp_path / "child"
    slow = fake(tmp_path / "ptxas", f"sleep 60 & echo $! > {child}; wait")
    started = time.monotonic()
    with pytest.raises(AssembleTimeoutError, match=r"longer than 0\.5 s"):
        Assembler(slow, timeout_s=0.5, cache_dir=tmp_path / "cubins").assemble(store(), "sm_89")
    assert time.monotonic() - started < 20
    assert _is_gone(int(child.read_text()))


def _is_gone(process: int) -> bool:
    for _ in range(100):
        try:
            state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":  # killed; whoever adopted it has not collected it yet
            return True
        time.sleep(0.05)
    return False


def test_crash_is_named(tmp_path: Path) -> None:
    crashing = fake(tmp_path / "ptxas", "kill -SEGV $$")
    with pytest.raises(AssembleError, match="SIGSEGV"):
        Assembler(crashing, cache_dir=tmp_path / "cubins").assemble(store(), "sm_89")


def test_silent_failure_is_an_error(tmp_path: Path) -> None:
    failing = fake(tmp_path / "ptxas", "echo out of paper; exit 3")
    with pytest.raises(AssembleError, match="out of paper"):
        Assembler(failing, cache_dir=tmp_path / "cubins").assemble(store(), "sm_89")


def test_output_that_is_no_cubin_is_an_error(tmp_path: Path) -> None:
    odd = fake(tmp_path / "ptxas", "echo rubbish > kernel.cubin")
    assembler = Assembler(odd, cache_dir=tmp_path / "cubins")
    with pytest.raises(AssembleError, match="not a cubin"):
        assembler.assemble(store(), "sm_89")
    assert entries(assembler) == []


def test_cubins_of_two_runs_are_the_same_bytes(tmp_path: Path) -> None:
    first, second = (Assembler(cache_dir=tmp_path / name).assemble(store(), "sm_89") for name in "ab")
    assert first == second


def test_cache_answers_without_ptxas(tmp_path: Path, assembler: Assembler) -> None:
    real = find_ptxas()
    counter = tmp_path / "count"
    counting = program(tmp_path / "ptxas", f'[ "$1" = --version ] || echo run >> {counter}\nexec {real} "$@"')
    counted = Assembler(counting, cache_dir=assembler.cache_dir)
    first = counted.assemble(store(), "sm_89")
    again = counted.assemble(store(), "sm_89")
    assert again == first
    assert counter.read_text().splitlines() == ["run"]
    assert counted.assemble(store(8), "sm_89").code_hash != first.code_hash
    assert len(counter.read_text().splitlines()) == 2


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:-1] + bytes([b[-1] ^ 1]), lambda b: b""])
def test_corrupt_entry_is_replaced(damage: object, assembler: Assembler) -> None:
    assert callable(damage)
    whole = assembler.assemble(store(), "sm_89")
    (path,) = entries(assembler)
    good = path.read_bytes()
    path.write_bytes(damage(good))
    assert assembler.assemble(store(), "sm_89") == whole
    assert path.read_bytes() == good


def test_another_version_has_other_entries(tmp_path: Path, assembler: Assembler) -> None:
    real = find_ptxas()
    other = program(
        tmp_path / "ptxas",
        f'if [ "$1" = --version ]; then echo "release 99.1, V99.1.2"; exit 0; fi\nexec {real} "$@"',
    )
    assembler.assemble(store(), "sm_89")
    binary = Assembler(other, cache_dir=assembler.cache_dir).assemble(store(), "sm_89")
    assert binary.ptxas_version == "99.1.2"
    assert len(entries(assembler)) == 2


def _assemble(job: tuple[Assembler, int]) -> str:
    assembler, value = job
    return assembler.assemble(store(value), "sm_89").code_hash


def test_processes_share_one_cache(assembler: Assembler) -> None:
    jobs = [(assembler, value % 3) for value in range(24)]
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        hashes = pool.map(_assemble, jobs, chunksize=1)
    assert len(set(hashes)) == 3
    assert hashes == [_assemble(job) for job in jobs]
    assert len(entries(assembler)) == 3


def test_assembler_survives_pickling(assembler: Assembler) -> None:
    copy = pickle.loads(pickle.dumps(assembler))
    assert copy.assemble(store(), "sm_89") == assembler.assemble(store(), "sm_89")


def test_cache_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(AssemblerError, match=r"cubin cache .*file/cubins cannot be made"):
        Assembler(cache_dir=tmp_path / "file" / "cubins")


def test_cache_that_cannot_be_written_is_named(assembler: Assembler) -> None:
    os.rmdir(assembler.cache_dir)
    assembler.cache_dir.write_text("a file where the directory was")
    with pytest.raises(AssemblerError, match="cannot be"):
        assembler.assemble(store(), "sm_89")


def test_default_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "ptx-tuner" / "cubins"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "ptx-tuner" / "cubins"
