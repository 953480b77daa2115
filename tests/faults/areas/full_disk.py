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
    command = ("report", run_folder(), "--out", "report")
    with without_plots():
        with file_size_limit(random.randrange(20_000)):
            limited = specbench(*command, folder=folder)
        assert "cannot be written" in limited.err or limited.code == 0, limited.err
        left = contents(folder / "report")
        unlimited = specbench(*command, folder=folder)
    assert unlimited.code == 0
    whole = contents(folder / "report")
    assert left.items() <= whole.items(), "a file is incomplete, or was left behind"


def _attack_run(random: Random, folder: Path) -> None:
    """Run on a disk with too little room, then resume the run with enough."""

    def answer(request: Request) -> Completion:
        """An answer with a trace of any length."""
        step = TracedStep(parents=(0,), log_probs=(0.0,), path=(0,))
        num_steps = random.randrange(1, 40)
        return Completion(
            token_ids=(5, 0),
            stop_reason="eos",
            steps=(Step(1, 1),),
            prefill_s=0.1,
            decode_s=0.2,
            trace=(step,) * num_steps,
        )

    path = folder / "run"
    methods = {"vanilla": answer, "pld": answer}
    num_answers = len(methods) * NUM_PROMPTS * 2  # of two turns
    first_records: tuple[Record, ...] = ()
    with file_size_limit(random.randrange(12_000)), suppress(RunFolderError):
        fake_run(path, methods, NUM_PROMPTS)
    if (path / HEADER).exists():
        stored = read_run(path)
        assert stored.header.status in ("running", "failed", "complete")
        first_records = stored.records

    fake_run(path, methods, NUM_PROMPTS)
    run = read_run(path)
    assert run.header.status == "complete"
    assert len(run.records) == num_answers
    assert run.records[: len(first_records)] == first_records, "an older record has changed"
    traced_ids = {line.sample_id for line in read_trace(path)}
    assert traced_ids == {record.key.sample_id for record in run.records}
    assert contents(path).keys() == {"run.json", "samples.jsonl", "trace.jsonl"}
