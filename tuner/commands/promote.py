"""`tune promote`: pin winners in the frozen set."""

import typer

from tuner.commands.options import DEFAULT_OUT, AnyKernel, ArchName, AsJson, Out, Ptxas, Shape, StudyName

promote = typer.Typer(help="Pin winners in the frozen set.", rich_markup_mode=None)


@promote.callback()
def _promote() -> None:
    """Keeps `best` a subcommand while it is the only one."""


@promote.command()
def best(
    kernel: AnyKernel = None,
    shape: Shape = None,
    arch: ArchName = None,
    study: StudyName = None,
    out: Out = DEFAULT_OUT,
    ptxas: Ptxas = None,
    as_json: AsJson = False,
) -> None:
    """Verify the best of each kernel, arch and problem anew, in a fresh process, and pin it."""
    from tuner.commands.output import print_json
    from tuner.promote import promote_best
    from tuner.ptxas import Assembler
    from tuner.reading import trials_in

    trials = trials_in(out, kernel, study, shape, arch)
    said = typer.echo if not as_json else lambda line: typer.echo(line, err=True)
    promotions = promote_best(out, trials, Assembler(ptxas), said)
    if as_json:
        print_json([promotion.to_json() for promotion in promotions])
    if any(promotion.is_failed for promotion in promotions):
        raise typer.Exit(1)
