"""`tune doctor`: what this machine has, what is missing, and how to get it."""

import typer

from tuner.commands.options import AsJson


def doctor(as_json: AsJson = False) -> None:
    """Say what of driver, GPU, ptxas and CuPy is here, whether they fit together, and what to install."""
    from tuner.commands.output import print_json, print_table
    from tuner.doctor import diagnose

    diagnosis = diagnose()
    if as_json:
        print_json(diagnosis.to_json())
        return
    rows = [
        (finding.subject, str(finding.status), finding.said, finding.remedy) for finding in diagnosis.findings
    ]
    print_table(["", "", "found", "to do"], rows)
    ready = "works" if diagnosis.cuda_ready else "does not work"
    typer.echo(f"--device cuda {ready} here; --device sim:rtx4090 needs no GPU")
