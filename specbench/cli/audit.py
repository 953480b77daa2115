"""`specbench audit`: compare a run's output with vanilla's, step by step."""

from __future__ import annotations

from typing import Annotated

import typer

from specbench.cli.options import Offline, RunArgument, quiet_libraries, say


def audit(
    run: RunArgument,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="DTYPE", help="Compute differing steps again in this dtype: float32."),
    ] = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", help="Draws per context at T > 0; 0 for none.")
    ] = 100,
    offline: Offline = False,
) -> None:
    """Check that outputs are lossless; tell numerics from bugs."""
    from specbench.audit.run import audit as audit_run
    from specbench.audit.terminal import print_audit
    from specbench.log.store import read_run
    from specbench.report.export.terminal import report_console
    from specbench.run.replay import Replay

    stored = read_run(run)
    quiet_libraries()
    found = audit_run(
        stored,
        lambda methods: Replay(stored, dtype=dtype, has_methods=methods, is_offline=offline),
        is_recheck=dtype is not None,
        num_seeds=seeds,
        say=say,
    )
    print_audit(found, stored.header, report_console())
    raise typer.Exit(1 if found.has_bug else 0)
