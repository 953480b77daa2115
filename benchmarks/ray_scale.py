"""Cost of the driver of a cluster: 64 workers that need no time, and a run of a million records.

    python benchmarks/ray_scale.py [NUM_RECORDS]

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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import psutil

from benchmarks.report_scale import METHODS, NUM_NODES, NUM_TOKENS
from specbench.data.prompts import Prompt
from specbench.log.store import RunFolder
from specbench.run.launch.cluster import Event, Finished, Job, Lost, Opening, Ready, WorkerState
from specbench.run.launch.driver import ClusterRunner
from specbench.run.progress import Tally
from specbench.types import Record, RecordKey
from tests.support.backend import answering, fake_plan

NUM_WORKERS, LOSS = 64, 0.001
PROMPTS_PER_PASS = 480


@dataclass
class InstantCluster:
    """Workers whose jobs are done at once."""

    state: WorkerState
    draw: random.Random = field(default_factory=lambda: random.Random(1))
    events: list[Event] = field(default_factory=list)
    num_named: int = NUM_WORKERS

    def submit(self, worker: str, job: Job) -> None:
        if self.draw.random() < LOSS:
            self.num_named += 1
            self.events.append(Lost(worker, "simulated"))
            self.events.append(Ready(f"worker-{self.num_named}", self.state))
            return
        self.events.append(Finished(worker, answers(job, worker)))

    def next_event(self, timeout_s: float | None = None) -> Event | None:
        place = self.draw.randrange(len(self.events))
        self.events[place], self.events[-1] = self.events[-1], self.events[place]
        return self.events.pop()
