"""Count how often honest runs are accused of cheats or of impossible records.

    python -m benchmarks.false_alarms FOLDER [NUM_RUNS] [NUM_RESAMPLES]

It makes runs of all methods on `tiny` in FOLDER, with two passes at T=0 and T=1. A program keeps
the processor busy beside half of the runs. Every fourth run has answers of one token. Each run is
then judged as it is, and again with requests and passes that are drawn from it at random. The rule
about copied passes is tried only on unchanged runs, because a pass that is drawn twice is a copy.
Existing runs are not made again. The output has the number of alarms of each rule.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from benchmarks.made_runs import run_of
from specbench.analysis.cheats import find_cheats
from specbench.analysis.records import make_table
from specbench.log.faults import find_faults
from specbench.log.run import Run
from specbench.types import Record, RecordKey

NUM_RUNS = 40
NUM_RESAMPLES = 1000
ARGUMENTS = "--model tiny --limit 2 --repeats 2 --temperature 0,1"
"""Arguments of every run."""


def honest_run(folder: Path, number: int) -> Run:
    """Run `number` of all methods, made if it is missing."""
    num_tokens = 1 if number % 4 == 3 else 24
    arguments = f"{ARGUMENTS} --max-new-tokens {num_tokens} --seed {number}"
    return run_of(folder / f"run-{number:02}", arguments, is_busy=number % 2 == 1)


def resampled(run: Run, draw: Random) -> list[Record]:
    """Draw records with replacement: as many samples and passes as the run has.

    They are in the order of a run: pass by pass, and within a pass request by request.
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
    """The key of a record that was drawn as sample `number` of its task, for pass `repeat`."""
    return replace(key, sample_id=f"{key.sample_id}~{number}", repeat=repeat)


def alarms(run: Run, records: Sequence[Record]) -> set[str]:
    """The rules about cheats that fire on these records of a run."""
    return {warning.key for warning in find_cheats(make_table(records), run.header)}


def main(folder: Path, num_runs: int = NUM_RUNS, num_resamples: int = NUM_RESAMPLES) -> None:
    """Print how often each rule fired on the runs, and on the resampled runs."""
    runs = [honest_run(folder, number) for number in range(num_runs)]
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
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
