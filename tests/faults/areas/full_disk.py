"""Attacks with a disk that fills up at any byte: files stay valid, and the run can be resumed."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from random import Random
from unittest import mock

from specbench.data.prompts import Prompt
from specbench.errors import RunFolderError
from specbench.log.header import RunHeader
from specbench.log.machine import Environment
from specbench.log.store import HEADER, RunFolder, header_json, read_run, read_trace
from specbench.machine import environment
from specbench.measure.session import run_plan
from specbench.types import Record, TracedStep
from tests.faults.limits import file_size_limit
from tests.faults.program import run_folder, specbench, written_report
from tests.support.backend import answering, fake_plan
from tests.support.headers import make_header
from tests.support.records import record
from tests.support.watching import Watcher

TRIES = 200
NUM_RECORDS = 6


def attack(random: Random, folder: Path) -> None:
    random.choice((_attack_run, _attack_files, _attack_report))(random, folder)


def _attack_report(random: Random, folder: Path) -> None:
    """Report on a disk with too little room, then with enough."""
    report, command = folder / "report", ("report", run_folder(), "--out", "report")
    with mock.patch("specbench.report.build.make_plots", lambda report: ()):
        with file_size_limit(random.randrange(20_000)):
            said = specbench(*command, folder=folder)
        assert "cannot be written" in said.err or not said.code, said.err
        left = written_report(report)
        assert specbench(*command, folder=folder).code == 0
    whole = written_report(report)
    assert left.items() <= whole.items(), "half a file, or one that is left behind"


def _attack_run(random: Random, folder: Path) -> None:
    """Run on a disk with too little room, then resume with enough."""
    path, patched = folder / "run", mock.patch.object(environment, "capture", _environment)
    prompts = {"maths": [Prompt(f"maths/{number}", "", ("one", "two")) for number in range(8)]}
    plan = fake_plan({"vanilla": answering(1), "pld": answering(2)}, prompts, None)
    with patched:
        with file_size_limit(random.randrange(12_000)), contextlib.suppress(RunFolderError):
            run_plan(plan, path, Watcher(), given=())
        if (path / HEADER).exists():
            assert read_run(path).header.status in ("running", "failed", "complete")
        run_plan(plan, path, Watcher(), given=())
    run = read_run(path)
    assert (run.header.status, len(run.records)) == ("complete", 32)
    assert {file.name for file in path.iterdir()} == {"run.json", "samples.jsonl"}


def _environment() -> Environment:
    return make_header().environment


def _attack_files(random: Random, folder: Path) -> None:
    """Header, samples and trace with texts of random lengths."""
    header = make_header({"status": "running"})
    step = TracedStep((0,), (0.0,), (0,))
    records = [
        record(number, text="text " * random.randrange(200), trace=(step,) * random.randrange(40))
        for number in range(NUM_RECORDS)
    ]
    with file_size_limit(random.randrange(7000)), contextlib.suppress(RunFolderError):
        _write(folder, header, records)
    stored = read_run(folder).records if (folder / HEADER).exists() else ()
    assert [one.key for one in stored] == [one.key for one in records[: len(stored)]]
    _write(folder, header, records[len(stored) :])
    run = read_run(folder)
    assert [one.text for one in run.records] == [one.text for one in records], "records differ"
    assert (folder / HEADER).read_bytes() == header_json(header)
    traced = [line.sample_id for line in read_trace(folder)]
    assert set(traced) == {one.key.sample_id for one in records if one.trace}
    extra = {file.name for file in folder.iterdir()} - {"run.json", "samples.jsonl", "trace.jsonl"}
    assert not extra, f"left behind: {extra}"


def _write(folder: Path, header: RunHeader, records: Sequence[Record]) -> None:
    with RunFolder(folder) as writer:
        writer.write_header(header)
        for one in records:
            writer.append(one)
