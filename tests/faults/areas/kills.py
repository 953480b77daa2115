"""Attacks with kills and signals at any moment of a run, a resumed run or a report.

No record that was reported as done is lost, and a resumed run has every record once. A signal
that asks a run to end leaves `interrupted`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from specbench.cli.interrupts import interrupt_once
from specbench.data.prompts import Prompt
from specbench.log.store import HEADER, read_run
from specbench.machine import environment
from specbench.measure.session import run_plan
from specbench.report.files import write_files
from specbench.types import Completion, Record, Request, Step
from tests.support.backend import fake_plan
from tests.support.headers import make_header
from tests.support.watching import Watcher

TRIES = 200
POLITE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PROMPTS = [Prompt(f"maths/{number}", "", ("one", "two")) for number in range(40)]
LONGEST_S = 0.2
"""About the time of the work."""
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["pytest", __name__])


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
        _kill(random, how, _measure, run, done, folder / f"ready {number}")
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
    _finish(_measure, run, done, folder / "ready")
    stored = read_run(run)
    assert stored.header.status == "complete"
    assert stored.records[: len(before)] == before, "an older record has changed"
    assert len(stored.records) == 2 * 2 * len(PROMPTS)
    assert {file.name for file in run.iterdir()} == {"run.json", "samples.jsonl"}


def _attack_report(random: Random, folder: Path) -> None:
    report = folder / "report"
    _finish(_write_report, report, b"old", folder / "ready 0")
    _kill(random, signal.SIGKILL, _write_report, report, b"new", folder / "ready 1")
    contents = {file.read_bytes() for file in report.iterdir() if file.suffix != ".new"}
    assert contents <= {_content(b"old"), _content(b"new")}, "half a file"
    _finish(_write_report, report, b"new", folder / "ready 2")
    assert [file.read_bytes() for file in report.iterdir()] == [_content(b"new")] * 20


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


def _write_report(report: Path, content: bytes, ready: Path) -> None:
    ready.touch()
    write_files(report, {f"table{number}.csv": _content(content) for number in range(20)})


def _content(word: bytes) -> bytes:
    return word * 10_000


def _kill(
    random: Random, how: signal.Signals, work: Callable[..., None], *arguments: object
) -> None:
    """Start the work and end it at a random moment."""
    *_, ready = arguments
    process = CONTEXT.Process(target=work, args=arguments)
    process.start()
    assert isinstance(ready, Path)
    while not ready.exists() and process.is_alive():
        time.sleep(1e-3)
    time.sleep(random.uniform(0, LONGEST_S))
    assert process.pid
    with suppress(ProcessLookupError):  # it was faster
        os.kill(process.pid, how)
    process.join(60)
    assert process.exitcode is not None, f"it goes on after {how.name}"


def _finish(work: Callable[..., None], *arguments: object) -> None:
    process = CONTEXT.Process(target=work, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == 0, f"it ended with {process.exitcode}"
