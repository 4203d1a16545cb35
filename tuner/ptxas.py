"""PTX in, cubin out: one ptxas process a candidate, behind a content-addressed cache.

Errors::

    AssemblerError
    ├── NoPtxasError       there is no ptxas to run
    └── AssembleError      ptxas refused the text: an error, a warning, a crash
        └── AssembleTimeoutError

A cache entry is one file, named by the hash of everything that decides its content and carrying the hash of
its own content. It is written aside and renamed, so any number of processes may share a directory; one that
does not match its hash is thrown away and assembled anew.
"""

import contextlib
import importlib.metadata
import json
import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

from blake3 import blake3

from emitters.target import arch_named
from tuner.cubin import Binary, CubinError, read_binary

INSTALL = "pip install nvidia-cuda-nvcc"
DISTRIBUTIONS = ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12")
FLAGS = ("--verbose", "--opt-level=3")
TIMEOUT_S = 60.0
_ENTRY_FORMAT = 1  # raised when the layout of a cache entry changes
_SHOWN_ERRORS = 3
_ABORTED = "aborted due to errors"  # a last line that only says that there were errors

_VERSION = re.compile(r"\bV(\d+\.\d+\.\d+)")
_AT_LINE = re.compile(r"^ptxas .*?, line (\d+); (?:error|warning|fatal)\s*: (.*)$")
_COMPLAINT = re.compile(r"^ptxas .*?\b(?:error|warning|fatal)\s*: ")
_SPILLS = re.compile(r"Function properties for (\S+)\s+.*?(\d+) bytes spill stores, (\d+) bytes spill loads")
_ENTRY = re.compile(r"^\s*(?:\.visible\s+|\.weak\s+)?\.entry\s+([\w$]+)", re.MULTILINE)


class AssemblerError(Exception):
    """Anything that keeps PTX from becoming a cubin."""


class NoPtxasError(AssemblerError):
    """There is no ptxas to run. The message says how to get one."""


class AssembleError(AssemblerError):
    """ptxas refused the text. The message quotes what it said and the line that it said it about."""


class AssembleTimeoutError(AssembleError):
    """ptxas was killed because it took too long."""


def find_ptxas(given: Path | None = None) -> Path:
    """The ptxas to run: the given one, or that of an installed NVIDIA wheel.

    Raises:
        NoPtxasError: The given file cannot be run, or no wheel that has one is installed.
    """
    if given is not None:
        if not (given.is_file() and os.access(given, os.X_OK)):
            raise NoPtxasError(f"no ptxas: {given} is not a program; give another path, or {INSTALL}")
        return given
    for distribution in DISTRIBUTIONS:
        located = ptxas_of(distribution)
        if located is not None:
            return located
    raise NoPtxasError(f"no ptxas: none of the packages {', '.join(DISTRIBUTIONS)} is installed; {INSTALL}")


def ptxas_of(distribution: str) -> Path | None:
    """The ptxas that an installed distribution brings."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    located = (Path(str(file.locate())) for file in files if file.name in ("ptxas", "ptxas.exe"))
    return next(filter(Path.is_file, located), None)


def default_cache() -> Path:
    """Where cubins are kept unless told otherwise: the XDG cache directory of the user."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ptx-tuner" / "cubins"


class Assembler:
    """One ptxas with fixed flags and a cache. Picklable; safe to use from many processes at once.

    Args:
        ptxas: The program; None takes that of the installed wheel.
        timeout_s: After this long a ptxas and what it started are killed.
        cache_dir: Directory of the cubin cache; None takes `default_cache`.

    Raises:
        NoPtxasError: There is no ptxas, or the program is none.
        AssemblerError: The cache directory cannot be made.

    Attributes:
        version: ``13.0.88``.
    """

    def __init__(
        self, ptxas: Path | None = None, timeout_s: float = TIMEOUT_S, cache_dir: Path | None = None
    ) -> None:
        self.ptxas = find_ptxas(ptxas)
        self.timeout_s = timeout_s
        self._banner = self._said_of_itself()
        found = _VERSION.search(self._banner)
        if found is None:
            raise NoPtxasError(f"no ptxas: {self.ptxas} does not tell a ptxas version; {INSTALL}")
        self.version = found.group(1)
        self.cache_dir = default_cache() if cache_dir is None else cache_dir
        try:
            self.cache_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise AssemblerError(
                f"the cubin cache {self.cache_dir} cannot be made ({error.strerror}); give another one"
            ) from None

    def assemble(self, ptx: str, arch: str) -> Binary:
        """The cubin of a PTX text, from the cache or from ptxas.

        Args:
            ptx: The text; its first ``.entry`` is the main one.
            arch: ``sm_89``.

        Raises:
            AssembleError: An error or a warning of ptxas, with the offending PTX line; a crash.
            AssembleTimeoutError: It took longer than `timeout_s`.
        """
        number = arch_named(arch).number
        entries = tuple(_ENTRY.findall(ptx))
        path = self._entry_path(ptx, arch)
        cached = _load(path)
        if cached is not None:
            cubin, spills = cached
            # The hash has held, so what comes out is what ptxas wrote; reading it cannot fail.
            return read_binary(cubin, number, entries, spills, self.version)
        cubin, spills = self._run(ptx, arch)
        try:
            binary = read_binary(cubin, number, entries, spills, self.version)
        except CubinError as error:
            raise AssembleError(f"ptxas wrote something unexpected: {error}") from error
        self._save(path, cubin, spills)
        return binary

    def _said_of_itself(self) -> str:
        try:
            command = [str(self.ptxas), "--version"]
            run = subprocess.run(command, capture_output=True, text=True, timeout=self.timeout_s)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NoPtxasError(f"no ptxas: {self.ptxas} cannot be run ({error}); {INSTALL}") from None
        return run.stdout

    def _entry_path(self, ptx: str, arch: str) -> Path:
        recipe = json.dumps([_ENTRY_FORMAT, self.version, self._banner, arch, FLAGS, ptx])
        name = blake3(recipe.encode()).hexdigest()
        return self.cache_dir / name[:2] / name

    def _save(self, path: Path, cubin: bytes, spills: dict[str, int]) -> None:
        content = json.dumps({"spill_bytes": spills}).encode() + b"\n" + cubin
        try:
            path.parent.mkdir(exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as aside:
                aside.write(blake3(content).hexdigest().encode() + b"\n" + content)
            os.replace(aside.name, path)
        except OSError as error:
            raise AssemblerError(
                f"the cubin cache {self.cache_dir} cannot be written ({error.strerror}); give another one"
            ) from None

    def _run(self, ptx: str, arch: str) -> tuple[bytes, dict[str, int]]:
        """Cubin and spill bytes by entry."""
        with tempfile.TemporaryDirectory(prefix="ptxas-") as directory:
            # The names are fixed because ptxas repeats them in its messages.
            (Path(directory) / "kernel.ptx").write_text(ptx, encoding="utf-8")
            command = [
                str(self.ptxas),
                *FLAGS,
                f"--gpu-name={arch}",
                "kernel.ptx",
                "--output-file=kernel.cubin",
            ]
            process = subprocess.Popen(
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            try:
                said, _ = process.communicate(timeout=self.timeout_s)
            except subprocess.TimeoutExpired:
                raise AssembleTimeoutError(
                    f"ptxas took longer than {self.timeout_s:g} s and was killed; allow it more time"
                ) from None
            finally:
                _kill_group(process)
            if process.returncode < 0:
                raise AssembleError(f"ptxas was ended by {signal.Signals(-process.returncode).name}")
            complaints = [line for line in said.splitlines() if _COMPLAINT.match(line)]
            complaints = [line for line in complaints if _ABORTED not in line] or complaints
            if complaints or process.returncode:
                raise AssembleError(_explained(complaints or said.splitlines(), ptx))
            cubin = (Path(directory) / "kernel.cubin").read_bytes()
        spills = {name: int(stores) + int(loads) for name, stores, loads in _SPILLS.findall(said)}
        return cubin, spills


def _kill_group(process: "subprocess.Popen[str]") -> None:
    """End a process and all that it started, and collect it. Nothing happens to one that has ended."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _explained(complaints: list[str], ptx: str) -> str:
    """What ptxas said, each of the first few complaints with the PTX line that it is about."""
    lines = ptx.splitlines()
    shown: dict[object, str] = {}
    for complaint in complaints:
        found = _AT_LINE.match(complaint)
        number = int(found.group(1)) if found else 0
        if found and 1 <= number <= len(lines):
            text = f"PTX line {number}: {found.group(2).rstrip('.')}: `{lines[number - 1].strip()}`"
            shown.setdefault(number, text)  # what follows on the same line is a consequence of the first
        else:
            shown.setdefault(complaint, complaint.removeprefix("ptxas ").strip())
    parts = list(shown.values())
    if len(parts) > _SHOWN_ERRORS:
        parts[_SHOWN_ERRORS:] = [f"and {len(parts) - _SHOWN_ERRORS} more"]
    return "ptxas: " + "; ".join(parts)


def _load(path: Path) -> tuple[bytes, dict[str, int]] | None:
    """Cubin and spill bytes of a cache entry; None where there is none that is whole."""
    try:
        stored = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise AssemblerError(f"the cubin cache entry {path} cannot be read ({error.strerror})") from None
    digest, _, content = stored.partition(b"\n")
    if blake3(content).hexdigest().encode() != digest:
        path.unlink(missing_ok=True)
        return None
    head, _, cubin = content.partition(b"\n")
    return cubin, json.loads(head)["spill_bytes"]
