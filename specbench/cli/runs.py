"""`specbench run --runs N`: whole runs, each in a process of its own.

What holds for a whole process, such as where its memory lies, only other processes show.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.cli.interrupts import resumable
from specbench.cli.options import RUNS
from specbench.errors import UserError
from specbench.log.store import HEADER

if TYPE_CHECKING:
    from specbench.cli.progress import ProgressView
    from specbench.measure.spec import RunSpec


def run_several(
    number: int, spec: RunSpec, output: Path | None, *, apart_s: float, view: ProgressView
) -> Path:
    """Make the runs `run-1`, `run-2`, ... in one folder, which is returned.

    With `--resume`, runs that are there are completed, and the others made.

    Args:
        number: of runs.
        spec: the values of each.
        output: the folder; by default a new one in `results/runs`.
        apart_s: seconds to wait between two runs.
        view: receives a line per run.

    Raises:
        UserError: a run failed, or the folder has runs and `--resume` is not given.
    """
    from specbench.measure.folder import claim_folder, new_run

    arguments = sys.argv[1:]
    is_resumed = "--resume" in arguments
    if is_resumed and output is None:
        raise UserError(
            "--resume of several runs needs their folder.", "Name it with --output DIR."
        )
    folder = output or claim_folder(new_run(spec, (), None, RUNS).path)
    if not is_resumed and [*folder.glob(f"*/{HEADER}")]:
        raise UserError(f"{folder} has runs already.", "Add --resume, or give another --output.")
    with resumable(folder, "--output", arguments):
        for i in range(number):
            path = folder / f"run-{i + 1}"
            if i and apart_s:
                view.message(f"Waiting {apart_s:g} s …")
                time.sleep(apart_s)
            view.message(f"Run {i + 1} of {number}: {path}")
            _run_one(arguments, path)
    return folder


def _run_one(arguments: Sequence[str], path: Path) -> None:
    """The same call for one run in `path`; its table is left to the pool."""
    words = [word for word in arguments if word not in ("--resume", "--quiet")]
    words += ["--runs", "1", "--output", str(path), "--quiet"]
    words += ["--resume"] * (path / HEADER).exists()
    done = subprocess.run(
        [sys.executable, "-m", "specbench", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1):  # 1: some samples failed, which the report says
        raise UserError(
            f"The run {path} ended with {done.returncode}: {done.stderr.strip()[-500:]}",
            "Repair the cause, then repeat the command with --output and --resume.",
        )
