"""`specbench audit`: is a run lossless, step by step; or a method, on drafts planted for it?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specbench.cli import complete
from specbench.cli.options import Full, Offline, given, quiet_libraries, say
from specbench.errors import UserError
from specbench.log.state import run_folder

Model = Annotated[
    str,
    typer.Option(
        metavar="MODEL", help="The model to audit a method on.", autocompletion=complete.models
    ),
]
_OF_A_RUN = ("dtype", "device", "tokens", "power")


def audit(
    context: typer.Context,
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN]",
            help="A run's folder, or a file in it.",
            callback=lambda path: path and run_folder(path),
            autocompletion=complete.runs,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="Audit a method instead, with drafts planted for it: pld:ngram=2.",
            autocompletion=complete.methods,
        ),
    ] = None,
    model: Model = "tiny",
    dtype: Annotated[
        str | None,
        typer.Option(
            metavar="DTYPE",
            help="Audit in this dtype, and run steps that differ again: float32 finds most.",
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            metavar="DEVICE",
            help="Audit on cpu, cuda or cuda:1 [default: the run's].",
            autocompletion=complete.choice("cpu", "cuda"),
        ),
    ] = None,
    tokens: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Tokens to test per method and temperature; 0: compare recorded answers only.",
            min=0,
        ),
    ] = 2000,
    power: Annotated[
        float | None,
        typer.Option(
            metavar="TV",
            help="Draw as many tokens as finding this total variation needs, such as 0.02.",
        ),
    ] = None,
    full: Full = False,
    offline: Offline = False,
) -> None:
    """Check that outputs are lossless; tell numerics from bugs."""
    if (run is None) is (method is None):
        raise UserError("Audit a run or a method.", "Give RUN, or --method METHOD.")
    useless = ("model",) if run else _OF_A_RUN
    if wrong := [name for name in given(context) if name in useless]:
        raise UserError(
            f"--{wrong[0]} is not for the audit of {'a run' if run else 'a method'}.",
            "Leave it out.",
        )
    if method:
        audit_method(method, model, is_full=full, is_offline=offline)
    if run:
        _audit_run(run, tokens, power, dtype=dtype, device=device, is_full=full, is_offline=offline)


def audit_method(name: str, model: str, *, is_full: bool, is_offline: bool) -> None:
    """Audit a method on a model in float32, print the result and end the program."""
    from specbench.audit.contract import run_contract
    from specbench.audit.load import load_subject
    from specbench.audit.terminal import print_contract
    from specbench.report.export.terminal import report_console

    quiet_libraries()
    subject, is_lossless = load_subject(name, model, is_offline=is_offline)
    result = run_contract(name, subject, is_lossless=is_lossless, say=say)
    print_contract(result, report_console(), is_full=is_full)
    raise typer.Exit(1 if result.status == "bug" else 0)


def _audit_run(
    run: Path,
    tokens: int,
    power: float | None,
    *,
    dtype: str | None,
    device: str | None,
    is_full: bool,
    is_offline: bool,
) -> None:
    from specbench.audit.replay import Replay
    from specbench.audit.run import audit as audit_run
    from specbench.audit.store import store_audit
    from specbench.audit.terminal import print_audit
    from specbench.audit.white_box import make_effort
    from specbench.log.store import read_run
    from specbench.report.export.terminal import report_console

    effort = make_effort(tokens, power)
    stored = read_run(run)
    quiet_libraries()
    found = audit_run(
        stored,
        lambda methods: Replay(
            stored, dtype=dtype, device=device, has_methods=methods, is_offline=is_offline
        ),
        is_recheck=dtype is not None,
        effort=effort,
        say=say,
    )
    print_audit(found, stored.header, report_console(), is_full=is_full)
    store_audit(found, stored, say)
    raise typer.Exit(1 if found.has_bug else 0)
