"""Count how often honest runs are accused of cheats or of impossible records.

    python -m benchmarks.false_alarms FOLDER [NUM_RUNS] [NUM_RESAMPLES]

It makes runs of all methods on `tiny` in FOLDER: two passes at T=0 and T=1. Half of the runs have a
program beside them that keeps the processor busy; every fourth has answers of one token. Each run
is then judged unchanged, and again with requests and passes drawn at random. The rule about copied
passes is tried only on unchanged runs, because a pass that is drawn twice is a copy. Runs that
exist already are not made again. The table has the alarms of each rule.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

from specbench.analysis.cheats import find_cheats
from specbench.analysis.records import make_table
from specbench.log.faults import find_faults
from specbench.log.run import Run
from specbench.log.store import HEADER, read_run
from specbench.types import Record, RecordKey

NUM_RUNS = 40
NUM_RESAMPLES = 1000
BUSY = "import torch; a = torch.rand(512, 512)\nwhile True: a = torch.tanh(a @ a)"
"""A program that keeps the processor busy."""
COMMAND = (
    "run --model tiny --limit 2 --repeats 2 --temperature 0,1 --output {folder} "
    "--max-new-tokens {num_tokens} --seed {seed}"
)


@contextmanager
def busy_machine(is_busy: bool) -> Iterator[None]:
    """Keep the processor busy for the block, if `is_busy`."""
    if not is_busy:
        yield
        return
    with subprocess.Popen([sys.executable, "-c", BUSY]) as program:
        try:
            yield
        finally:
            program.kill()


def honest_runs(folder: Path, num_runs: int) -> Iterator[Run]:
    """Runs of all methods; runs in the folder are not made again."""
    for number in range(num_runs):
        path = folder / f"run-{number:02}"
        if not (path / HEADER).is_file() or read_run(path).header.status != "complete":
            num_tokens = 1 if number % 4 == 3 else 24
            text = COMMAND.format(folder=path, num_tokens=num_tokens, seed=number)
            with busy_machine(is_busy=number % 2 == 1):
                command = [sys.executable, "-m", "specbench", *text.split()]
                subprocess.run(command, check=True, capture_output=True)
        yield read_run(path)


def resampled(run: Run, draw: Random) -> list[Record]:
    """Records of as many samples and passes as the run has, drawn with replacement.

    They are in the order of a run: pass by pass, and in a pass request by request.
    """
    records_by_sample: dict[tuple[str, str], dict[int, list[Record]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for record in run.records:
        sample = record.key.task, record.key.sample_id
        records_by_sample[sample][record.key.repeat].append(record)
    samples_by_task: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for sample in records_by_sample:
        samples_by_task[sample[0]].append(sample)
    passes = sorted({record.key.repeat for record in run.records})
    drawn: dict[int, list[Record]] = defaultdict(list)  # by pass
    for samples in samples_by_task.values():
        for number in range(len(samples)):
            records_by_pass = records_by_sample[draw.choice(samples)]
            for repeat in passes:
                for record in records_by_pass[draw.choice(passes)]:
                    drawn[repeat].append(replace(record, key=_renamed(record.key, number, repeat)))
    return [record for repeat in passes for record in drawn[repeat]]


def _renamed(key: RecordKey, number: int, repeat: int) -> RecordKey:
    """The key of a record that is drawn as sample `number` of its task, in pass `repeat`."""
    return replace(key, sample_id=f"{key.sample_id}~{number}", repeat=repeat)


def alarms(run: Run, records: Sequence[Record]) -> set[str]:
    """The rules about cheats that fire."""
    return {warning.key for warning in find_cheats(make_table(records), run.header)}


def main(arguments: Sequence[str]) -> None:
    """Print a line for each rule that fired, and one with the counts."""
    folder = Path(arguments[0])
    num_runs, num_resamples = (
        int(arguments[position]) if len(arguments) > position else usual
        for position, usual in ((1, NUM_RUNS), (2, NUM_RESAMPLES))
    )
    runs = list(honest_runs(folder, num_runs))
    in_runs: Counter[str] = Counter()
    for run in runs:
        in_runs.update(alarms(run, run.records))
        in_runs.update(find_faults(run.header, run.records))  # impossible records
    draw = Random(0)
    in_resamples: Counter[str] = Counter()
    for number in range(num_resamples):
        run = runs[number % len(runs)]
        in_resamples.update(alarms(run, resampled(run, draw)))
    print(f"{len(runs)} runs, {sum(len(run.records) for run in runs):,} records:", dict(in_runs))
    print(f"{num_resamples} resampled runs:", dict(in_resamples))


if __name__ == "__main__":
    main(sys.argv[1:])
