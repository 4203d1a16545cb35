"""The command `tune`. Commands parse, build, call, print; here their errors become a line and an exit code.

2 is for what was asked (an unknown name, an impossible schedule, a directory that cannot be written), 1 for a
run that could not go on or a check that failed, 130 for Ctrl-C.
"""

import sys
import warnings
from collections.abc import Sequence
from typing import TextIO

from tuner.threads import use_one_thread


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    use_one_thread()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: Sequence[str]) -> int:
    """Run the command line; the exit code."""
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    import typer

    from tuner.commands import app

    try:
        code = typer.main.get_command(app).main(list(arguments), prog_name="tune", standalone_mode=False)
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone, nobody is left to tell
        return 1
    except typer.TyperException as error:
        _say(error.format_message())
        return 2
    except Exception as error:
        from tuner.commands.errors import exit_code_of

        known = exit_code_of(error)
        if known is None:
            raise
        _say(str(error))
        return known
    return code if isinstance(code, int) else 0


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as one line; where in our code it was raised is nothing to a person."""
    _say(f"warning: {message}")


def _say(message: str) -> None:
    line = " ".join(message.split())
    print(f"tune: {line}", file=sys.stderr)
