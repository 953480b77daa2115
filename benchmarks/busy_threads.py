"""The number of CPU threads that a run chooses, on an idle machine and beside another program.

    python -m benchmarks.busy_threads [NUM_IDLE] [NUM_BUSY]

It runs vanilla on `tiny`. The other program multiplies matrices on all cores, and starts four
seconds before the run. The output has the chosen numbers, and the steps/s beside the program as a
share of the median on the idle machine. Nothing else may run.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.made_runs import run_of
from benchmarks.neighbour import ALL_CORES, SETTLE_S, neighbour
from specbench.analysis.records import make_table

NUM_IDLE, NUM_BUSY = 20, 5
HEAD_START_S = 4.0
ARGUMENTS = "--method vanilla --dataset gsm8k,alpaca --limit 1 --max-new-tokens 48 --repeats 1"


class Chosen(NamedTuple):
    """The number of threads that a run chose, and its speed."""

    threads: int
    steps_per_s: float


def vanilla_run() -> Chosen:
    """Run vanilla in a process of its own, and return its threads and its speed."""
    with tempfile.TemporaryDirectory() as folder:
        run = run_of(Path(folder) / "run", ARGUMENTS)
    frame = make_table(run.records).frame
    assert run.header.threads
    seconds = frame["decode_s"].sum()
    return Chosen(run.header.threads.num, float(frame["num_steps"].sum() / seconds))


def main(num_idle: int = NUM_IDLE, num_busy: int = NUM_BUSY) -> None:
    """Print a line for the idle machine, and one for each run beside the program."""
    idle = [vanilla_run() for _ in range(num_idle)]
    idle_steps_per_s = median(run.steps_per_s for run in idle)
    print(f"idle: threads {sorted(run.threads for run in idle)}, {idle_steps_per_s:.0f} steps/s")
    for _ in range(num_busy):
        with neighbour(True, ALL_CORES):
            time.sleep(HEAD_START_S - SETTLE_S)
            run = vanilla_run()
        share = run.steps_per_s / idle_steps_per_s
        print(f"busy: threads {run.threads}, {share:.2f} of the idle speed")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
