"""`specbench audit`: compare a run's output with vanilla's, step by step."""

from __future__ import annotations

from typing import Annotated

import typer

from specbench.cli import complete
from specbench.cli.options import Full, Offline, RunArgument, quiet_libraries, say


def audit(
    run: RunArgument,
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
            stored, dtype=dtype, device=device, has_methods=methods, is_offline=offline
        ),
        is_recheck=dtype is not None,
        effort=effort,
        say=say,
    )
    print_audit(found, stored.header, report_console(), is_full=full)
    store_audit(found, stored, say)
    raise typer.Exit(1 if found.has_bug else 0)
