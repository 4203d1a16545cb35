"""The commands of `tune`, one file a group. What they need is imported when called: help is instant."""

from typing import Annotated

import typer

from tuner import __version__
from tuner.commands.check import check
from tuner.commands.doctor import doctor
from tuner.commands.export import export
from tuner.commands.frozen import frozen
from tuner.commands.inspect import emit, kernels, space
from tuner.commands.mutate import mutate
from tuner.commands.promote import promote
from tuner.commands.results import report, results
from tuner.commands.run import run
from tuner.commands.sanitize import sanitize
from tuner.commands.timing import time

app = typer.Typer(
    help="Tunes hand-emitted PTX kernels: every candidate proven right, every number with its source.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for command in (run, kernels, space, emit, check, sanitize, mutate, time, results, report, export, doctor):
    app.command()(command)
app.add_typer(promote, name="promote")
app.add_typer(frozen, name="frozen")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tune {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _tune(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
