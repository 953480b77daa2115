"""Attacks with kills, signals and pauses at any moment of a run, a resumed run or a report.

No record that was reported as done is lost, and a resumed run has every record once. A signal that
asks a run to end leaves the status `interrupted`. A sample during which a run was stopped for a
while is marked.
"""

import os
import signal
import time
from functools import partial
from pathlib import Path
from random import Random

from specbench.cli.interrupts import interrupt_once
from specbench.log.store import HEADER, read_run
from specbench.types import Completion, Record, Request, Step
from tests.faults.processes import POLITE, end, finish, kill_at_a_write, send, start
from tests.faults.program import contents, fake_run, run_folder, specbench, without_plots
from tests.support.watching import Watcher

TRIES = 300
NUM_PROMPTS, WORK_S = 40, 5e-4
LONGEST_S = 0.2
"""The longest time until a signal, which is about the time of the work."""
NUM_PAUSED, SLOW_WORK_S, PAUSE_S = 2, 0.05, 0.5


def attack(random: Random, folder: Path) -> None:
    (folder / "done").touch()
    kinds = (_attack_report, _attack_run, _attack_run, _attack_run, _attack_pause, _attack_pause)
    random.choice(kinds)(random, folder)


def _attack_run(random: Random, folder: Path) -> None:
    run, done = folder / "run", folder / "done"
    before: tuple[Record, ...] = ()
    status: str | None = None
    for number in range(random.randint(1, 3)):
        how = random.choice((signal.SIGKILL, *POLITE))
        ready = folder / f"ready {number}"
        process = start(_measure, folder, ready, NUM_PROMPTS, WORK_S)
        end(process, how, ready, random.uniform(0, LONGEST_S))
        if not (run / HEADER).exists():
            assert not done.read_bytes(), "records were reported without a header"
            continue
        stored = read_run(run)
        assert len(stored.records) >= len(done.read_bytes()), "a record that was done is lost"
        assert stored.records[: len(before)] == before, "an older record has changed"
        allowed = {"complete", "running" if how == signal.SIGKILL else "interrupted"}
        if len(stored.records) == len(before):  # the run may not have begun
            allowed.add(status or "")
        status = stored.header.status
        assert status in allowed, f"{how.name} left {status}"
        before = stored.records
        done.write_bytes(b"." * len(before))
    finish(start(_measure, folder, folder / "ready", NUM_PROMPTS, WORK_S))
    stored = read_run(run)
    assert stored.header.status == "complete"
    assert stored.records[: len(before)] == before, "an older record has changed"
    assert len(stored.records) == 2 * 2 * NUM_PROMPTS
    assert {file.name for file in run.iterdir()} == {"run.json", "samples.jsonl"}


def _attack_pause(random: Random, folder: Path) -> None:
    process = start(_measure, folder, folder / "ready", NUM_PAUSED, SLOW_WORK_S)
    send(process, signal.SIGSTOP, folder / "ready", random.uniform(0, 0.36))
    time.sleep(PAUSE_S)
    send(process, signal.SIGCONT, None, 0)
    finish(process)
    records = read_run(folder / "run").records
    assert len(records) == 2 * 2 * NUM_PAUSED
    times = [record.wall_s or 0 for record in records]
    # All samples have the same work, which a busy machine slows. A pause makes one of them longer.
    slow = [seconds for seconds in times if seconds > min(times) + 0.9 * PAUSE_S]
    is_marked = any(
        record.is_paused for record in records
    )  # the stop may have fallen between two samples
    assert is_marked or not slow, f"the pause is in a time that is compared: {slow}"


def _attack_report(random: Random, folder: Path) -> None:
    report, expected = folder / "report", folder / "expected"
    _write_report(run_folder(), expected)
    whole = contents(expected)
    is_killed = kill_at_a_write(random, folder, _write_report, run_folder(), report)
    for file in report.glob("[!.]*"):
        assert file.suffix == ".new" or file.read_bytes() == whole[file.name], (
            "a file is incomplete"
        )
    if is_killed:
        finish(start(_write_report, run_folder(), report))
    assert contents(report) == whole, "the report has changed"


def _measure(folder: Path, ready: Path, num_prompts: int, work_s: float) -> None:
    """Run to the end, new or resumed, with a byte in the file `done` for each record."""
    for number in POLITE:
        signal.signal(number, interrupt_once)
    descriptor = os.open(folder / "done", os.O_WRONLY | os.O_APPEND)

    class Reporting(Watcher):
        def sample_finished(self, record: Record) -> None:
            os.write(descriptor, b".")

    try:
        ready.touch()
        methods = dict.fromkeys(("vanilla", "pld"), partial(_answer, work_s))
        fake_run(folder / "run", methods, num_prompts, Reporting())
    except KeyboardInterrupt:
        os._exit(130)


def _answer(work_s: float, request: Request) -> Completion:
    """Answer after some work. Pauses are not part of the work."""
    began, work = time.perf_counter(), time.thread_time()
    while time.thread_time() - work < work_s:
        pass
    return Completion((5, 0), "eos", (Step(1, 1),), 0.0, time.perf_counter() - began)


def _write_report(run: Path, report: Path) -> None:
    with without_plots():
        assert specbench("report", run, "--out", report.name, folder=report.parent).code == 0
