"""The time and memory that the report of a large run takes, and the time of a bootstrap.

    python -m benchmarks.report_scale [NUM_RECORDS]

It writes a simulated run of 100,000 records to a temporary folder: nine methods, six tasks, and 128
tokens per answer. It runs `specbench report` on this run twice, without files and with all files,
each time in a process of its own. It prints the seconds (including imports) and the peak memory of
each process. Then it times the metrics of nine methods on six tasks with 80 samples each, with
2,000 resamples and with one.
"""

from __future__ import annotations

import math
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path

from benchmarks.gate_errors import METHODS, TASKS, simulated_header
from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.log.store import read_run
from specbench.types import Record, RecordKey
from tests.support.records import store

NUM_TOKENS, NUM_NODES, ROUNDS = 128, 60, 5

REPORT = """
import resource, sys, time
began = time.perf_counter()
from specbench.cli.app import app
try:
    app(["report", *sys.argv[1:]])
except SystemExit as end:
    assert not end.code, end.code
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
print(f"{time.perf_counter() - began:.1f} s ({time.process_time():.1f} s of CPU), {peak:.0f} MB")
"""


def records(num_samples: int) -> Iterator[Record]:
    """The records of a run with `num_samples` samples per task, in the order of a run."""
    draw = random.Random(1)
    for task, sample in product(TASKS, range(num_samples)):
        token_ids = tuple(draw.randrange(32_000) for _ in range(NUM_TOKENS))
        for method, mat in METHODS.items():
            lengths: list[int] = []
            while (left := NUM_TOKENS - 1 - sum(lengths)) > 0:
                wanted = 1 if mat == 1.0 else max(1, round(draw.gauss(mat, mat / 3)))
                lengths.append(min(left, wanted))
            step_s = 0.02 * (1 + 0.1 * (mat > 1)) * draw.lognormvariate(0, 0.05)
            yield Record(
                RecordKey(method, 0.0, task, f"{task}/{sample}", 0, 0),
                "ok",
                prompt_tokens=80,
                token_ids=token_ids,
                text="word " * 90,
                stop_reason="budget",
                prefill_s=0.03 * draw.lognormvariate(0, 0.1),
                decode_s=step_s * len(lengths),
                accept_lengths=tuple(lengths),
                num_nodes=(1 if method == "vanilla" else NUM_NODES,) * len(lengths),
                seed=sample,
            )


def write_run(folder: Path, num_samples: int) -> Path:
    """Write a run folder with `num_samples` samples per task, and return its path."""
    return store(folder, simulated_header([*METHODS]), records(num_samples))


def main() -> None:
    """Measure and print."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        large = write_run(root / "large", -(-wanted // (len(METHODS) * len(TASKS))))
        size = (large / "samples.jsonl").stat().st_size / 2**20
        print(f"report of {wanted} records or more ({size:.0f} MB of samples):")
        for name, more in {"printed": [], "with files": ["--out", str(root / "out")]}.items():
            command = [sys.executable, "-c", REPORT, str(large), *more]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            print(f"  {name}: {done.stdout.splitlines()[-1]}")
        table = read_run(write_run(root / "table", 80))
        seconds = {1: math.inf, 2000: math.inf}  # by number of resamples
        for _ in range(ROUNDS):
            for num_resamples in seconds:
                began = time.perf_counter()
                measure(table, Bootstrap(num_resamples))
                took_s = time.perf_counter() - began
                seconds[num_resamples] = min(seconds[num_resamples], took_s)
        print(
            f"nine methods, six tasks, 80 samples: {seconds[2000]:.2f} s with 2,000 resamples, "
            f"{seconds[1]:.2f} s with one"
        )


if __name__ == "__main__":
    main()
