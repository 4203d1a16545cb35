"""What was asked wrongly gives one line and exit code 2, and leaves nothing half-written."""

import os
import re
import stat
from pathlib import Path

import pytest
from commands import refused, tune
from fake_device import FakeDevice
from toy_study import run as run_study

from tuner.cli import run

RUN = ("run", "--kernel", "toy", "--trials", "2")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("run", "--kernel", "toyy"), r"unknown kernel 'toyy'; did you mean toy\b"),
        (("run", "--kernel", "gemn"), r"unknown kernel 'gemn'; did you mean gemm\b"),
        (("run",), r"Missing option '--kernel'"),
        ((*RUN, "--arch", "sm_88"), r"unknown arch 'sm_88'; known are sm_80, .*sm_120"),
        ((*RUN, "--arch", "sm_86"), r"no GPU of sm_86 has figures to predict with; known are .*rtx4090 "),
        ((*RUN, "--arch", "sm_80", "--device", "sim:rtx4090"),
         r"--arch must be that of the device, sim:rtx4090 is sm_89, got sm_80"),
        ((*RUN, "--device", "smi:rtx4090"), r"unknown device 'smi:rtx4090'; did you mean sim:GPU"),
        ((*RUN, "--device", "sim:rtx4091"), r"unknown GPU 'rtx4091'; did you mean .*rtx4090"),
        ((*RUN, "--device", "cuda:x"), r"cuda"),
        ((*RUN, "--device", "replay:nothing.json"), r"replay"),
        ((*RUN, "--sampler", "tpee"), r"unknown sampler 'tpee'; did you mean tpe\b"),
        ((*RUN, "--trials", "0"), r"^--trials must be at least 1, got 0$"),
        ((*RUN, "--trials", "many"), r"Invalid value for '--trials'"),
        ((*RUN, "--workers", "0"), r"^--workers must be at least 1, got 0$"),
        ((*RUN, "--look-ahead", "0"), r"^--look-ahead must be at least 1, got 0$"),
        ((*RUN, "--seed", "-1"), r"^--seed must be within 0\.\.2\^63-1, got -1$"),
        ((*RUN, "--timeout", "0"), r"^--timeout must be above 0 s, got 0$"),
        ((*RUN, "--until", "1"), r"^--until must be above 0 and below 1, got 1$"),
        ((*RUN, "--until", "0.9", "--sampler", "tpe"),
         r"^--until needs a sampler that tells how sure it is, auto, got tpe$"),
        ((*RUN, "--objective", "power"), r"^--objective must be time or energy, got power$"),
        ((*RUN, "--objective", "energy"),
         r"^--objective energy needs NVML's energy counter; see tune doctor$"),
        ((*RUN, "--baseline"), r"^--baseline must have a GPU to be timed on, got sim:rtx4090; use cuda$"),
        ((*RUN, "--ptxas", "/no/such/ptxas"), r"^no ptxas: /no/such/ptxas is not a program"),
        ((*RUN, "--ptxas", "/bin/true"), r"^no ptxas: /bin/true does not tell a ptxas version; pip install"),
        (("check", "--kernel", "toy", "--ptxas", "/bin/true"), r"^no ptxas: /bin/true does not tell"),
        (("mutate", "--kernel", "toy", "--ptxas", "/bin/true"), r"^no ptxas: /bin/true does not tell"),
        (("time", "--kernel", "toy", "--ptxas", "/bin/true"), r"^no ptxas: /bin/true does not tell"),
        ((*RUN, "--trails", "3"), r"No such option: --trails.*--trials"),
        (("rnu",), r"No such command 'rnu'"),
        ((*RUN, "--shape", "5"), r"^n must be a multiple of 2, got 5$"),
        ((*RUN, "--shape", "4x4"), r"^a problem of toy is n \(1 sizes\), got 4x4$"),
        ((*RUN, "--shape", "big"), r"^a problem of toy is whole numbers joined by x, as n, got 'big'$"),
        (("run", "--kernel", "gemm", "--shape", "5"),
         r"^a problem of ternary_gemm_s8 is mxnxk \(3 sizes\), got 5$"),
        (("run", "--kernel", "gemm", "--shape", "128x100x32"), r"^n must be a multiple of 16, got 100$"),
        (("run", "--kernel", "gemm", "--shape", "0x16x16"), r"^m must be at least 1, got 0$"),
        (("emit", "--kernel", "gemm", "--set", "tile_x=3"), r"has no parameter 'tile_x'; did you mean tile_"),
        (("emit", "--kernel", "gemm", "--set", "foo=3"), r"has no parameter 'foo'; known are tile_m, "),
        (("emit", "--kernel", "gemm", "--set", "tile_m=17"), r"^tile_m must be one of 16, 32, .*, got 17$"),
        (("emit", "--kernel", "gemm", "--set", "tile_m"), r"^a setting is name=value, got 'tile_m'$"),
        (("space", "--kernel", "toy", "--set", "threads=512", "--set", "per_thread=8"),
         r"^constraint block: a block does at most 2048, got threads=512, per_thread=8$"),
        (("check", "--kernel", "toy", "--sample", "2", "--set", "threads=64"),
         r"^--sample draws schedules, --set gives one"),
        (("check", "--kernel", "toy", "--blocks", "3"), r"^--blocks needs --shape"),
        (("check", "--kernel", "toy", "--sample", "0"), r"^--sample must be at least 1, got 0$"),
        (("check", "--kernel", "toy", "--seed", "-1"), r"^--seed must be at least 0, got -1$"),
        (("check", "--kernel", "toy", "--workers", "0"), r"^--workers must be at least 1, got 0$"),
        (("mutate", "--kernel", "toy", "--seed", "-1"), r"^--seed must be at least 0, got -1$"),
        (("mutate", "--kernel", "toy", "--workers", "-1"), r"^--workers must be at least 1, got -1$"),
        (("mutate", "--kernel", "toy", "--mutants", "0"), r"^--mutants must be at least 1, got 0$"),
        (("space", "--kernel", "toy", "--set", "threads=64", "--set", "threads=128"),
         r"^threads must be set once, got 'threads=128' again$"),
        (("space", "--kernel", "toy", "--study", "mine"),
         r"^--study chooses trials for --coverage; add that, or leave --study out$"),
        (("space", "--kernel", "toy", "--coverage", "--constraints"),
         r"^--coverage and --constraints ask for different things; use one of them$"),
        (("results", "--failures", "--importance"),
         r"^--failures and --importance ask for different things; use one of them$"),
        ((*RUN, "--device", "replay:"), r"there is no file ''; give a cache"),
        ((*RUN, "--warm-start", ""), r"^--warm-start must be auto, .*, and there is no file without a name$"),
        (("results", "--out", ""), r"^Invalid value for '--out': a directory must have a name, got ''; "),
        ((*RUN, "--out", ""), r"^Invalid value for '--out': a directory must have a name, got ''; \. is"),
        (("emit", "--kernel", "toy", "-o", ""), r"^--output must name a file, got \., a directory$"),
        (("emit", "--kernel", "toy", "-o", "/"), r"^--output must name a file, got /, a directory$"),
        (("emit", "--kernel", "toy", "-o", ".."), r"^cannot write \.\.: "),
        (("results", "--out", "nowhere"), r"^there is no directory nowhere"),
        (("promote", "best", "--out", "nowhere"), r"^there is no directory nowhere"),
        (("frozen", "list", "--out", "nowhere"), r"^there is no directory nowhere"),
        (("frozen", "export", "there", "--out", "nowhere"), r"nothing to export"),
    ],
)  # fmt: skip
def test_a_bad_request_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    said = refused(capsys, *arguments)
    assert re.search(line, said), said
    assert list(tmp_path.iterdir()) == []


def test_an_impossible_gemm_schedule_names_the_constraint(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "emit", "--kernel", "gemm", "--set", "tile_m=256", "--set", "tile_n=256")
    assert said.startswith("constraint registers: ")


def test_an_output_directory_that_is_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    out.write_text("precious")
    assert f"{out} is a file" in refused(capsys, *RUN, "--out", out)
    assert out.read_text() == "precious"


def test_an_output_directory_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Below a file, which not even root can write; and below a read-only directory, for everyone else."""
    (tmp_path / "file").write_text("")
    assert "file" in refused(capsys, *RUN, "--out", tmp_path / "file" / "out")
    if os.geteuid() != 0:
        tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
        assert "ermission denied" in refused(capsys, *RUN, "--out", tmp_path / "out")
        tmp_path.chmod(stat.S_IRWXU)


def test_an_output_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "no" / "kernel.ptx"
    said = refused(capsys, "emit", "--kernel", "toy", "-o", place)
    assert said.startswith(f"cannot write {place}: ")
    assert list(tmp_path.iterdir()) == []
    file = tmp_path / "file"
    file.write_text("precious")
    said = refused(capsys, "emit", "--kernel", "toy", "-o", file / "kernel.ptx")
    assert said == f"cannot write {file / 'kernel.ptx'}: Not a directory; name another file"
    assert file.read_text() == "precious"


@pytest.mark.parametrize("name", ["study.log", "_locks/claims.lock"])
def test_an_output_directory_in_which_a_file_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """As where it was made by another user; a directory in its place stops root too."""
    out = tmp_path / "out"
    (out / name).mkdir(parents=True)
    said = refused(capsys, *RUN, "--out", out)
    assert said == f"cannot write {out / name}: Is a directory; name another directory"


def test_a_frozen_set_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(["run", "--kernel", "toy", "--shape", "4096", "--trials", "2", "--out", str(out)]) == 0
    (out / "frozen").write_text("")
    capsys.readouterr()
    assert run(["promote", "best", "--out", str(out)]) == 2
    said = capsys.readouterr().err
    assert re.search(r"^tune: cannot write in \S+: Not a directory; name another directory\n$", said)


def test_no_ptxas_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tuner.ptxas.DISTRIBUTIONS", ("nvidia-no-such-thing",))
    said = refused(capsys, *RUN, "--out", tmp_path / "out")
    assert re.search(r"^no ptxas: .*pip install nvidia-cuda-nvcc$", said)
    assert list(tmp_path.iterdir()) == []


def test_a_study_name_that_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_study(tmp_path, FakeDevice(), 2, study="mine")
    said = refused(capsys, *RUN, "--out", tmp_path, "--study", "mine")
    assert re.search(r"^study 'mine' has .*give another --study$", said)
    said = refused(capsys, "results", "--out", tmp_path, "--study", "mime")
    assert said == f"no study 'mime' in {tmp_path}; did you mean mine?"


def test_a_tampered_kernel_is_named_with_both_hashes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(["run", "--kernel", "toy", "--shape", "4096", "--trials", "2", "--out", str(out)]) == 0
    assert run(["promote", "best", "--out", str(out)]) == 0
    (pinned,) = (out / "frozen").glob("*/*/*/kernel.ptx")
    pinned.write_text(pinned.read_text().replace("add.s32", "sub.s32"))
    capsys.readouterr()
    said = refused(capsys, "frozen", "list", "--out", out)
    assert re.search(r"kernel\.ptx has been changed: its blake3 is \w{64}, the manifest says \w{64}", said)
    assert run(["frozen", "verify", "--out", str(out)]) == 2
    verified = capsys.readouterr()
    assert verified.err == f"tune: {said}\n"
    assert "has been changed" in verified.out


def test_a_defect_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("emitters.kernel_named", broken)
    with pytest.raises(ZeroDivisionError):
        run(["emit", "--kernel", "toy"])


def test_the_real_command_says_the_same() -> None:
    """In a process of its own: no traceback, and the exit code that a shell sees."""
    done = tune("run", "--kernel", "gemm", "--shape", "128x100x32")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "tune: n must be a multiple of 16, got 100\n"
