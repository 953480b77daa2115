"""Attacks that stop a run for a while at any moment: the sample with the pause is marked."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from random import Random

from specbench.data.prompts import Prompt
from specbench.log.store import read_run
from specbench.machine import environment
from specbench.measure.session import run_plan
from specbench.types import Completion, Request, Step
from tests.faults.processes import start
from tests.support.backend import fake_plan
from tests.support.headers import make_header
from tests.support.watching import Watcher

TRIES = 200
WORK_S, PAUSE_S = 0.05, 0.5
PROMPTS = [Prompt(f"maths/{number}", "", ("one",)) for number in range(8)]


def attack(random: Random, folder: Path) -> None:
    process = start(_measure, folder / "run", folder / "ready")
    assert process.pid
    while not (folder / "ready").exists():
        time.sleep(1e-3)
    time.sleep(random.uniform(0, len(PROMPTS) * WORK_S * 0.9))
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(PAUSE_S)
    os.kill(process.pid, signal.SIGCONT)
    process.join(60)
    assert process.exitcode == 0, f"it ended with {process.exitcode}"
    records = read_run(folder / "run").records
    assert len(records) == len(PROMPTS)
    slow = [one.wall_s for one in records if (one.wall_s or 0) > PAUSE_S]
    is_marked = any(one.is_paused for one in records)  # or the stop fell between two samples
    assert is_marked or not slow, f"the pause is in a time that is compared: {slow}"


def _measure(run: Path, ready: Path) -> None:
    environment.capture = lambda: make_header().environment

    def answer(request: Request) -> Completion:
        ready.touch()
        began, work = time.perf_counter(), time.thread_time()
        while time.thread_time() - work < WORK_S:
            pass
        return Completion((5, 0), "eos", (Step(1, 1),), 0.0, time.perf_counter() - began)

    plan = fake_plan({"vanilla": answer}, {"maths": PROMPTS}, None)
    run_plan(plan, run, Watcher(), given=())
