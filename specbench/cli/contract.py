"""`specbench contract`: check that a method keeps its contract."""

from __future__ import annotations

from typing import Annotated

import typer

from specbench.cli import complete
from specbench.cli.options import Full, Offline, quiet_libraries, say


def contract(
    name: Annotated[
        str, typer.Argument(metavar="METHOD", help="A method, with options: pld:ngram=2.")
    ],
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL", help="The model to check with.", autocompletion=complete.models
        ),
    ] = "tiny",
    full: Full = False,
    offline: Offline = False,
) -> None:
    """Check a method: drafts, acceptance, output, ends and state."""
    from specbench.audit.contract import run_contract
    from specbench.audit.contract_terminal import print_contract
    from specbench.audit.load import load_subject
    from specbench.report.export.terminal import report_console

    quiet_libraries()
    subject, is_lossless = load_subject(name, model, is_offline=offline)
    result = run_contract(name, subject, is_lossless=is_lossless, say=say)
    print_contract(result, report_console(), is_full=full)
    raise typer.Exit(1 if result.verdict == "bug" else 0)
