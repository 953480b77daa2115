"""Attacks with kills and signals at any moment of a run, a resumed run or a report.

No record that was reported as done is lost, and a resumed run has every record once. A signal
that asks a run to end leaves `interrupted`.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from random import Random
from unittest.mock import patch

from specbench.cli.interrupts import interrupt_once
from specbench.data.prompts import Prompt
from specbench.log.store import HEADER, read_run
from specbench.machine import environment
from specbench.measure.session import run_plan
from specbench.types import Completion, Record, Request, Step
from tests.faults.processes import POLITE, end, finish, kill_at_a_write, start
from tests.faults.program import run_folder, specbench, written_report
from tests.support.backend import fake_plan
from tests.support.headers import make_header
from tests.support.watching import Watcher

TRIES = 200
PROMPTS = [Prompt(f"maths/{number}", "", ("one", "two")) for number in range(40)]
LONGEST_S = 0.2
"""About the time of the work."""


def attack(random: Random, folder: Path) -> None:
    if random.random() < 0.2:
        _attack_report(random, folder)
    else:
        _attack_run(random, folder)


def _attack_run(random: Random, folder: Path) -> None:
    run, done = folder / "run", folder / "done"
    done.touch()
    before: tuple[Record, ...] = ()
    status: str | None = None
    for number in range(random.randint(1, 3)):
        how = random.choice((signal.SIGKILL, *POLITE))
        ready = folder / f"ready {number}"
        process = start(_measure, run, done, ready)
        end(process, how, ready, random.uniform(0, LONGEST_S))
        if not (run / HEADER).exists():
            assert not done.read_bytes(), "records without a header"
            continue
        stored = read_run(run)
        assert len(stored.records) >= len(done.read_bytes()), "a record that was done is lost"
        assert stored.records[: len(before)] == before, "an older record has changed"
        allowed = {"complete", "running" if how == signal.SIGKILL else "interrupted"}
        if len(stored.records) == len(before):  # it may not have begun
            allowed.add(status or "")
        status = stored.header.status
        assert status in allowed, f"{how.name} left {status}"
        before = stored.records
        done.write_bytes(b"." * len(before))
    finish(_measure, run, done, folder / "ready")
    stored = read_run(run)
    assert stored.header.status == "complete"
    assert stored.records[: len(before)] == before, "an older record has changed"
    assert len(stored.records) == 2 * 2 * len(PROMPTS)
    assert {file.name for file in run.iterdir()} == {"run.json", "samples.jsonl"}


def _attack_report(random: Random, folder: Path) -> None:
    report, expected = folder / "report", folder / "expected"
    _write_report(run_folder(), expected)
    whole = written_report(expected)
    is_killed = kill_at_a_write(random, folder, _write_report, run_folder(), report)
    for file in report.glob("[!.]*"):
        assert file.suffix == ".new" or file.read_bytes() == whole[file.name], "half a file"
    if is_killed:
        finish(_write_report, run_folder(), report)
    assert written_report(report) == whole, "another report"


def _measure(run: Path, done: Path, ready: Path) -> None:
    """Run to the end, new or resumed."""
    for one in POLITE:
        signal.signal(one, interrupt_once)
    environment.capture = lambda: make_header().environment
    plan = fake_plan({"vanilla": _answer, "pld": _answer}, {"maths": PROMPTS}, None)
    descriptor = os.open(done, os.O_WRONLY | os.O_APPEND)

    class Reporting(Watcher):
        def sample_finished(self, record: Record) -> None:
            os.write(descriptor, b".")

    try:
        ready.touch()
        run_plan(plan, run, Reporting(), given=())
    except KeyboardInterrupt:
        os._exit(130)


def _answer(request: Request) -> Completion:
    time.sleep(5e-4)
    return Completion((5, 0), "eos", (Step(1, 1),), 0.1, 0.2)


def _write_report(run: Path, report: Path) -> None:
    with patch("specbench.report.build.make_plots", lambda report: ()):  # they take seconds
        assert specbench("report", run, "--out", report.name, folder=report.parent).code == 0
