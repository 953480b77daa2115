"""The number of CPU threads that a run chooses, on an idle machine and beside another program.

    python -m benchmarks.busy_threads [NUM_IDLE] [NUM_BUSY]

It runs vanilla on `tiny`. The other program multiplies matrices on all cores, and starts four
seconds earlier. The output has the chosen numbers, and the steps/s beside the program as a share of
the idle median. Nothing else may run.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.false_alarms import busy_machine
from specbench.analysis.records import make_table
from specbench.log.store import read_run

NUM_IDLE, NUM_BUSY = 20, 5
HEAD_START_S = 4.0
COMMAND = (
    "run --method vanilla --dataset gsm8k,alpaca --limit 1 --max-new-tokens 48 --repeats 1 --output"
)


class Chosen(NamedTuple):
    """The threads and the speed of a run."""

    threads: int
    steps_per_s: float


def vanilla_run() -> Chosen:
    """The threads and the speed of a run of vanilla in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        command = [sys.executable, "-m", "specbench", *COMMAND.split(), str(path)]
        subprocess.run(command, check=True, capture_output=True)
        run = read_run(path)
        frame = make_table(run.records).frame
        assert run.header.threads
        seconds = frame["decode_s"].sum()
        return Chosen(run.header.threads.num, float(frame["num_steps"].sum() / seconds))


def main(num_idle: int, num_busy: int) -> None:
    """Print a line for the idle machine, and one for each run beside the program."""
    idle = [vanilla_run() for _ in range(num_idle)]
    usual = median(run.steps_per_s for run in idle)
    print(f"idle: threads {sorted(run.threads for run in idle)}, {usual:.0f} steps/s")
    for _ in range(num_busy):
        with busy_machine(is_busy=True):
            time.sleep(HEAD_START_S)
            run = vanilla_run()
        print(f"busy: threads {run.threads}, {run.steps_per_s / usual:.2f} of the idle speed")


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    main(*numbers, *(NUM_IDLE, NUM_BUSY)[len(numbers) :])
