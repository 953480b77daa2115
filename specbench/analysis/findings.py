"""What the gate finds in one cell, and the findings that are counted: samples and output.

Knows the records of a run and of its baseline run. Knows no statistics but the sign test.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from specbench.analysis.cells import NOT_RUN, CellKey, is_measured
from specbench.analysis.columns import completion
from specbench.analysis.header import RunInfo
from specbench.analysis.metrics import BASELINE, Run
from specbench.analysis.pairs import Completion
from specbench.analysis.regression import ERROR_RATE, more_broken_than_mended
from specbench.analysis.stats import Value
from specbench.types import Record

Kind = Literal["samples", "output", "MAT", "speed"]
Outcome = Literal["passed", "failed", "skipped"]

CHANGED_ANSWERS = 0.05
"""Share of vanilla's greedy answers in float32 that another machine may change by near-ties."""


@dataclass(frozen=True, slots=True)
class Change:
    """By which share something became worse (negative: better), with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Finding:
    """The answer to one question about one cell.

    `was` and `now` are the baseline run's value and this run's: mean accepted tokens or tokens a
    second, where the question is about one.
    """

    cell: CellKey
    kind: Kind
    outcome: Outcome
    text: str
    was: Value = NOT_RUN
    now: Value = NOT_RUN
    change: Change | None = None


class RunRecords:
    """A run's records by cell and completion: all of them, and those that were measured."""

    def __init__(self, run: Run) -> None:
        self.cells: dict[CellKey, dict[Completion, Record]] = {}
        self.measured: dict[CellKey, dict[Completion, Record]] = {}
        for record in run.records:
            key = CellKey(record.key.method, record.key.temperature, record.key.task)
            self.cells.setdefault(key, {})[completion(record)] = record
            if is_measured(record):
                self.measured.setdefault(key, {})[completion(record)] = record

    def asked(self, key: CellKey) -> set[Completion]:
        """The completions of the cell's task that some method of the run was asked for."""
        place = key.temperature, key.task
        rows = (row for cell, row in self.cells.items() if (cell.temperature, cell.task) == place)
        return {name for row in rows for name in row}

    def as_vanilla(self, key: CellKey) -> dict[Completion, bool]:
        """Whether each completion has vanilla's tokens, where both were measured."""
        vanilla = self.measured.get(CellKey(BASELINE, key.temperature, key.task), {})
        return {
            name: record.token_ids == vanilla[name].token_ids
            for name, record in self.measured.get(key, {}).items()
            if name in vanilla
        }


def sample_finding(key: CellKey, then: RunRecords, now: RunRecords) -> Finding:
    """Whether the cell is there, and as whole as it was."""
    row, there = then.measured[key], now.cells.get(key, {})
    if not there:
        return Finding(key, "samples", "failed", "in the baseline and not in this run")
    failed = [there[name] for name in row if name in there and not is_measured(there[name])]
    num_missing = sum(1 for name in now.asked(key) & row.keys() if name not in there)
    wrong = []
    if failed:
        error = (failed[0].error or "no reason given").strip().splitlines()[0]
        wrong.append(f"{len(failed)} of {len(row)} completions failed that had not: {error}")
    if num_missing:
        wrong.append(f"{num_missing} of {len(row)} completions are missing")
    if wrong:
        return Finding(key, "samples", "failed", "; ".join(wrong))
    num_shared = sum(1 for name in row if name in there)
    return Finding(key, "samples", "passed", f"{num_shared} of the {len(row)} completions there")


def output_findings(
    keys: Sequence[CellKey],
    then: RunRecords,
    now: RunRecords,
    baseline: RunInfo,
    max_mismatch: float | None,
) -> Iterator[Finding]:
    """What became of a method's greedy answers: counted by task, judged over all tasks.

    `keys` are the cells of one method at one temperature. A method that is not lossless owes
    nothing; nor does vanilla in half precision, which rounds otherwise on every machine.
    """
    is_exact = baseline.dtype == "float32"
    is_vanilla = keys[0].method == BASELINE
    owes = is_exact if is_vanilla else baseline.method(keys[0].method).is_lossless
    if keys[0].temperature > 0 or not owes:
        return
    count = _count_changed if is_vanilla else _count_broken
    counts = {key: count(key, then, now) for key in keys if key in now.measured}
    num_worse = sum(one.num_worse for one in counts.values())
    num_better = sum(one.num_better for one in counts.values())
    num_all = sum(one.num_all for one in counts.values())
    if is_vanilla:
        share = CHANGED_ANSWERS if max_mismatch is None else max_mismatch
        is_claimed = num_worse > max(share * num_all, 1.0)
    elif is_exact or max_mismatch is not None:
        is_claimed = num_worse > (max_mismatch or 0.0) * num_all
    else:
        is_claimed = more_broken_than_mended(num_worse, num_better) < ERROR_RATE
    what = "are not the baseline's" if is_vanilla else "are vanilla's no longer"
    for key, one in counts.items():
        text = f"{one.num_worse} of {one.num_all} greedy answers {what}"
        text += f", first {one.first}" if one.first else ""
        is_failed = is_claimed and one.num_worse > 0
        yield Finding(key, "output", "failed" if is_failed else "passed", text)


@dataclass(frozen=True, slots=True)
class _Count:
    """Answers of a cell that both runs have; `first` names the first that is worse."""

    num_all: int
    num_worse: int
    num_better: int
    first: str


def _count_broken(key: CellKey, then: RunRecords, now: RunRecords) -> _Count:
    """Answers that were vanilla's and are so no longer, and the other way round."""
    was, is_now = then.as_vanilla(key), now.as_vanilla(key)
    shared = [name for name in was if name in is_now]
    return _counted(shared, {name: is_now[name] - was[name] for name in shared})


def _count_changed(key: CellKey, then: RunRecords, now: RunRecords) -> _Count:
    """Answers of vanilla that are not those of the baseline run."""
    was, is_now = then.measured[key], now.measured[key]
    shared = [name for name in was if name in is_now]
    changed = {name: -(was[name].token_ids != is_now[name].token_ids) for name in shared}
    return _counted(shared, changed)


def _counted(names: Sequence[Completion], gains: Mapping[Completion, int]) -> _Count:
    worse = [name for name in names if gains[name] < 0]
    first = f"{worse[0][1]}, turn {worse[0][2] + 1}" if worse else ""
    return _Count(len(names), len(worse), sum(gains[name] > 0 for name in names), first)
