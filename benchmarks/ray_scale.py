"""Cost of the driver of a cluster: 64 workers that need no time, and a run of a million records.

    python -m benchmarks.ray_scale [NUM_RECORDS]

Drives a run of nine methods to the end in a temporary folder, as `specbench run --ray --quiet` does
between warm-up and report. The workers are in this process and answer at once, in a random order;
one in a thousand jobs ends with the loss of its worker. Prints records per second, and the memory
of the process after each tenth of the run.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.report_scale import METHODS, NUM_NODES, NUM_TOKENS
from specbench.cli.progress import ProgressView
from specbench.data.prompts import Prompt
from specbench.log.backend import WorkerHeader
from specbench.log.store import SAMPLES, RunFolder
from specbench.measure.base import BackendInfo
from specbench.measure.cluster.cluster import Event, Finished, Job, Lost, Ready, WorkerState
from specbench.measure.cluster.driver import ClusterRunner
from specbench.measure.requests import count_records
from specbench.measure.spec import RunSpec
from specbench.types import Record, RecordKey
from tests.support.backend import answering, fake_plan
from tests.support.headers import make_header

NUM_WORKERS, LOSS = 64, 0.001
PROMPTS_PER_PASS = 480
STATE = WorkerState(WorkerHeader("", (), make_header().environment), BackendInfo())


@dataclass
class InstantCluster:
    """Workers whose jobs are done at once."""

    draw: random.Random = field(default_factory=lambda: random.Random(1))
    events: list[Event] = field(default_factory=list)
    num_named: int = NUM_WORKERS

    def submit(self, worker: str, job: Job) -> None:
        if self.draw.random() < LOSS:
            self.num_named += 1
            self.events.append(Lost(worker, "simulated"))
            self.events.append(Ready(f"worker-{self.num_named}", STATE))
            return
        self.events.append(Finished(worker, answers(job, worker)))

    def next_event(self, timeout_s: float | None = None) -> Event | None:
        place = self.draw.randrange(len(self.events))
        self.events[place], self.events[-1] = self.events[-1], self.events[place]
        return self.events.pop()


def answers(job: Job, worker: str) -> tuple[Record, ...]:
    """The records of a sample, of the usual size."""
    return tuple(
        Record(
            key=RecordKey(method, *job.sample.key(0)),
            status="ok",
            prompt_tokens=80,
            token_ids=TOKEN_IDS,
            text=TEXT,
            stop_reason="budget",
            prefill_s=0.03,
            decode_s=0.02 * len(LENGTHS[method]),
            accept_lengths=LENGTHS[method],
            num_nodes=NODES[method],
            worker=worker,
        )
        for method in METHODS
    )


def lengths_of(mat: float) -> tuple[int, ...]:
    """Accept lengths of an answer, all of the same size but the last."""
    whole, rest = divmod(NUM_TOKENS - 1, max(1, round(mat)))
    return (max(1, round(mat)),) * whole + (rest,) * (rest > 0)


TOKEN_IDS, TEXT = tuple(range(NUM_TOKENS)), "word " * 90
LENGTHS = {method: lengths_of(mat) for method, mat in METHODS.items()}
NODES = {method: (NUM_NODES,) * len(LENGTHS[method]) for method in METHODS}


def main() -> None:
    """Measure and print."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    repeats = -(-wanted // (len(METHODS) * PROMPTS_PER_PASS))
    prompts = [Prompt(f"gsm8k/{n}", "", ("A question.",)) for n in range(PROMPTS_PER_PASS)]
    methods = dict.fromkeys(METHODS, answering(1))
    plan = fake_plan(
        methods, {"gsm8k": prompts}, RunSpec(repeats=repeats, max_new_tokens=NUM_TOKENS)
    )
    idle = deque(f"worker-{number + 1}" for number in range(NUM_WORKERS))
    process, total = psutil.Process(), count_records(plan)
    with tempfile.TemporaryDirectory() as scratch, RunFolder(Path(scratch)) as folder:
        runner = ClusterRunner(
            plan, InstantCluster(), folder, ProgressView(), idle, lambda event: None
        )
        began, memory = time.perf_counter(), list[float]()
        for number, _ in enumerate(runner.run(), 1):
            if number % (total // 10) == 0:
                memory.append(process.memory_info().rss / 2**20)
        seconds = time.perf_counter() - began
        size = (Path(scratch) / SAMPLES).stat().st_size / 2**20
    print(f"{number} records of {NUM_WORKERS} workers, {size:.0f} MB: {seconds:.1f} s, "
          f"{number / seconds:.0f} records/s")  # fmt: skip
    print(f"memory after each tenth: {', '.join(f'{one:.0f}' for one in memory)} MB")


if __name__ == "__main__":
    main()
