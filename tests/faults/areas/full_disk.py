"""Attacks with a disk that fills up at any byte. Files stay valid, and the run can be resumed."""

from contextlib import suppress
from pathlib import Path
from random import Random

from specbench.errors import RunFolderError
from specbench.log.store import HEADER, read_run, read_trace
from specbench.types import Completion, Record, Request, Step, TracedStep
from tests.faults.limits import file_size_limit
from tests.faults.program import contents, fake_run, run_folder, specbench, without_plots

TRIES = 150
NUM_PROMPTS = 8


def attack(random: Random, folder: Path) -> None:
    random.choice((_attack_run, _attack_run, _attack_report))(random, folder)


def _attack_report(random: Random, folder: Path) -> None:
    """Write a report on a disk with too little room, then with enough."""
    report, command = folder / "report", ("report", run_folder(), "--out", "report")
    with without_plots():
        with file_size_limit(random.randrange(20_000)):
            said = specbench(*command, folder=folder)
        assert "cannot be written" in said.err or not said.code, said.err
        left = contents(report)
        assert specbench(*command, folder=folder).code == 0
    whole = contents(report)
    assert left.items() <= whole.items(), "a file is incomplete, or was left behind"


def _attack_run(random: Random, folder: Path) -> None:
    """Run on a disk with too little room, then resume the run with enough."""

    def answer(request: Request) -> Completion:
        """An answer with a trace of any length."""
        step = TracedStep((0,), (0.0,), (0,))
        trace = (step,) * random.randrange(1, 40)
        return Completion((5, 0), "eos", (Step(1, 1),), 0.1, 0.2, trace=trace)

    path, methods = folder / "run", dict.fromkeys(("vanilla", "pld"), answer)
    before: tuple[Record, ...] = ()
    with file_size_limit(random.randrange(12_000)), suppress(RunFolderError):
        fake_run(path, methods, NUM_PROMPTS)
    if (path / HEADER).exists():
        stored = read_run(path)
        assert stored.header.status in ("running", "failed", "complete")
        before = stored.records
    fake_run(path, methods, NUM_PROMPTS)
    run = read_run(path)
    assert (run.header.status, len(run.records)) == ("complete", 2 * 2 * NUM_PROMPTS)
    assert run.records[: len(before)] == before, "an older record has changed"
    traced = {line.sample_id for line in read_trace(path)}
    assert traced == {record.key.sample_id for record in run.records}
    assert {file.name for file in path.iterdir()} == {"run.json", "samples.jsonl", "trace.jsonl"}
