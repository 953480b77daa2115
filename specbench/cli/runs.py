"""`specbench run --runs N`: whole runs, each in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.cli.interrupts import resumable
from specbench.cli.options import RUNS, Call
from specbench.errors import UserError

if TYPE_CHECKING:
    from specbench.cli.progress import ProgressView
    from specbench.log.run import Run
    from specbench.measure.suite.recipe import Suite


def run_several(runs: Suite, call: Call, view: ProgressView) -> tuple[Path, Run]:
    """Make the runs `run-1`, `run-2`, ... in one folder. Returns it and their pool.

    With `--resume`, runs that are there are completed, and the others made.

    Raises:
        UserError: a run failed, or the folder has runs and `--resume` is not given.
    """
    from specbench.log.store import pooled_in
    from specbench.measure.folder import claim_folder, new_run
    from specbench.measure.suite.runs import run_suite

    if call.resume and call.output is None:
        raise UserError(
            "--resume of several runs needs their folder.", "Name it with --output DIR."
        )
    folder = call.output or claim_folder(new_run(runs.runs[0].spec, (), None, RUNS).path)
    words = sys.argv[1:]
    with resumable(folder, "--output", words):
        result = run_suite(
            runs,
            folder,
            view,
            command=words,
            is_resumed=call.resume,
            is_forced=call.force,
            is_offline=call.offline,
        )
    for name, reason in result.failures.items():
        raise UserError(
            f"The run {folder / name} failed: {reason}",
            "Repair the cause, then repeat the command with --output and --resume.",
        )
    return folder, pooled_in(folder, result.runs)
