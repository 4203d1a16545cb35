"""Which trials are exported, and where to: what a person has to decide is asked for in one line."""

from pathlib import Path

from results.comparable import RecordedSpace
from results.export import FORMATS
from tuner.reading import spaces_in, trials_in
from tuner.task import RequestError


def check_output(output: Path | None, file_format: str) -> None:
    """Refuse an unknown format, and a file that is there or that its reader would not find.

    Raises:
        RequestError: With the way out.
    """
    if file_format not in FORMATS:
        raise RequestError(f"--format must be {' or '.join(FORMATS)}, got {file_format}")
    if output is None:
        return
    if output.exists() or output.is_symlink():
        raise RequestError(f"{output} exists, and is not written over; name another --output, or remove it")
    if file_format == "kernel-tuner" and output.suffix != ".json":
        raise RequestError(f"a Kernel Tuner cache must be named FILE.json, got {output.name}")


def exported(
    out: Path,
    file_format: str,
    kernel: str | None = None,
    problem: str | None = None,
    arch: str | None = None,
    device: str | None = None,
    study: str | None = None,
) -> str:
    """The text of a file with the trials of one kernel, problem, arch and device.

    Args:
        out: Directory of the trials.
        file_format: Of `results.export.FORMATS`.
        kernel, problem, arch, device, study: Which trials, where the directory has more.

    Raises:
        RequestError: There are none, or of more than one space.
        ExportError: They do not fit the format.
    """
    given = {"--kernel": kernel, "--shape": problem, "--arch": arch, "--device": device, "--study": study}
    asked = " ".join(f"{option} {value}" for option, value in given.items() if value is not None)
    trials = trials_in(out, kernel, study, problem, arch, device)
    if not trials:
        there = sorted({space_label(space) for space in spaces_in(trials_in(out))})
        has = f"it has {'; '.join(there)}" if there else "`tune run` makes them"
        raise RequestError(f"{out} has no trials{' of ' + asked if asked else ''}; {has}")
    spaces = spaces_in(trials)
    if len(spaces) > 1:
        found = "; ".join(map(space_label, spaces))
        raise RequestError(
            "one kernel, problem, arch, device and policy can be exported at a time, choose with --kernel, "
            f"--shape, --arch, --device or --study; there are {found}"
        )
    return FORMATS[file_format](spaces[0])


def space_label(space: RecordedSpace) -> str:
    """What a recorded space is of, its size, and its studies."""
    studies = sorted({trial.study for trial in space.trials})
    named = studies[0] if len(studies) == 1 else f"{len(studies)} studies"
    return f"{space.label} ({len(space.trials)} schedules, {named})"
