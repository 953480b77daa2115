"""Check for missing and failed completions, and for changed greedy answers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from specbench.analysis.cells import BASELINE, CellKey
from specbench.analysis.divergence import num_earlier_differences
from specbench.analysis.records import CELL_KEY, REQUEST_KEY, RecordTable, answer_of
from specbench.analysis.stats.arrays import FloatArray
from specbench.analysis.stats.sign_test import sign_test
from specbench.analysis.stats.significance import GATE_ALPHA
from specbench.analysis.tables import TabledRun
from specbench.errors import first_line
from specbench.judge.checks import Check, Status
from specbench.judge.pairs import joinable
from specbench.log.header import RunHeader
from specbench.log.run import Load

if TYPE_CHECKING:
    from pandas import DataFrame, Series

MAX_CHANGED = 0.05
"""Share of vanilla's greedy answers in float32 that near-ties may change on another machine."""

_COMPLETION = ["method", *REQUEST_KEY]
"""Columns that identify a completion."""


def check_outputs(
    run: TabledRun, baseline: TabledRun, max_mismatch: float | None, load: Load, num_loads: int
) -> Iterator[Check]:
    """Check the samples and the output of every cell that the baseline run measured.

    Both runs were measured at `load`, which is one of `num_loads` checked loads.
    """
    completions = join_completions(run, baseline)  # the baseline's, one per row
    for cell_columns, cell_rows in completions.groupby(CELL_KEY, sort=False):
        yield _check_samples(replace(CellKey(*cell_columns), load=load), cell_rows)
    is_tested = (completions["temperature"] == 0) & (completions["method"] != BASELINE)
    rule = _AnswerRule(
        baseline.run.header,
        max_mismatch,
        num_tests=num_loads * completions.loc[is_tested, "method"].nunique(),
    )
    for _, method_rows in completions.groupby(["method", "temperature"], sort=False):
        yield from _check_answers(method_rows, rule, load)


def join_completions(run: TabledRun, baseline: TabledRun) -> DataFrame:
    """The completions that the baseline run measured, one per row, joined with this run's.

    A cell is a method at a temperature on a task. A request is a completion's key without the
    method. Columns of the baseline run end in `_before`. The other columns are:

    - `row`: the completion's row in this run's table. `baseline_row`: the row of vanilla's answer
      to compare with, or -1. `error`: the error's text if the completion failed.
      All three are NaN if this run lacks the completion.
    - `is_present`: this run has a record of the completion. `is_measured`: it has one, and the
      completion did not fail.
    - `has_cell`: this run has a record of the cell. `is_asked`: it has a record of the request,
      from any method.
    - `is_compared`: both runs have the answer, and vanilla's answer to the same request.
    - `gain`: 1 if the answer became vanilla's, -1 if it stopped being vanilla's, else 0. For
      vanilla itself, -1 if the answer changed, else 0. NaN if the answer is not compared.
    - `lead`: the number of tokens before the answer leaves vanilla's, minus the same number in the
      baseline run. Infinite if it leaves vanilla's in one of the two runs only, and 0 if it does so
      in neither. NaN if the answer is not compared.
    """
    # a row per completion of each run
    baseline_rows, run_rows = _completions(baseline.table), _completions(run.table)
    # The keys are columns: of a completion (_COMPLETION), its cell, and its request.
    joined = baseline_rows[baseline_rows["is_measured"]].merge(
        run_rows, on=_COMPLETION, how="left", suffixes=("_before", "")
    )
    joined["has_cell"] = _is_among(joined, run_rows, CELL_KEY)
    joined["is_asked"] = _is_among(joined, run_rows, REQUEST_KEY)
    joined["is_present"] = joined["row"].notna()
    joined["is_measured"] = joined["is_measured"].eq(True)  # False where this run has no record
    has_vanilla = (joined["baseline_row_before"] >= 0) & (joined["baseline_row"] >= 0)
    joined["is_compared"] = joined["is_measured"] & has_vanilla
    joined["gain"] = _gains(joined, run.table, baseline.table)
    joined["lead"] = _leads(joined, run.table, baseline.table)
    return joined


def _gains(joined: DataFrame, table: RecordTable, baseline: RecordTable) -> Series:
    """The column `gain` of joined completions (see `join_completions`): [rows]."""
    # `is_same`: this run's answer is vanilla's. `is_same_before`: the baseline run's is.
    is_same = joined["is_same"].eq(True).to_numpy(copy=True)
    # Vanilla's answer is compared with that of the baseline run. `is_same_before` is true for it.
    for i in np.flatnonzero(joined["is_compared"] & (joined["method"] == BASELINE)):
        old_record = baseline.records[joined["row_before"].iat[i]]
        new_record = table.records[int(joined["row"].iat[i])]
        is_same[i] = answer_of(old_record) == answer_of(new_record)
    gains: Series = is_same.astype(float) - joined["is_same_before"]
    return gains.where(joined["is_compared"])


def _leads(joined: DataFrame, table: RecordTable, baseline: RecordTable) -> FloatArray:
    """The column `lead` of joined completions (see `join_completions`): [rows]."""
    leads = np.full(len(joined), np.nan)
    for i in np.flatnonzero(joined["is_compared"]):
        num_before = _num_shared_tokens(baseline, joined["row_before"].iat[i])
        num_shared = _num_shared_tokens(table, int(joined["row"].iat[i]))
        leads[i] = 0.0 if num_shared == num_before else num_shared - num_before
    return leads


def _completions(table: RecordTable) -> DataFrame:
    """The completions of a table, one per row. `row` is the number of their row in the table."""
    columns = table.frame[[*_COMPLETION, "is_measured", "error", "is_same", "baseline_row"]]
    return joinable(columns).assign(row=columns.index)


def _is_among(rows: DataFrame, other_rows: DataFrame, columns: Sequence[str]) -> Series:
    """True for each of `rows` with the same values in these columns as any of `other_rows`."""
    import pandas as pd

    keys = pd.MultiIndex.from_frame(rows[[*columns]])
    is_among = keys.isin(pd.MultiIndex.from_frame(other_rows[[*columns]]))
    return pd.Series(is_among, rows.index)


def _num_shared_tokens(table: RecordTable, row: int) -> float:
    """The number of tokens before an answer leaves vanilla's. Infinite if the two are equal."""
    token_ids = table.records[row].token_ids
    vanilla_ids = table.records[table.columns["baseline_row"][row]].token_ids
    if token_ids == vanilla_ids:
        return math.inf
    pairs = enumerate(zip(token_ids, vanilla_ids, strict=False))
    differing = (position for position, (token_id, vanilla_id) in pairs if token_id != vanilla_id)
    return next(differing, min(len(token_ids), len(vanilla_ids)))


def _check_samples(key: CellKey, cell_rows: DataFrame) -> Check:
    """Check that all completions of a cell are there, and that none fails that did not fail before.

    A request that this run sent to no method, as with a smaller limit, does not count as missing.
    `cell_rows` are those of `join_completions` for the cell.
    """
    if not cell_rows["has_cell"].any():
        return Check("samples", "failed", "in the baseline, but not in this run", key)
    failed = cell_rows[cell_rows["is_present"] & ~cell_rows["is_measured"]]
    num_missing = int((cell_rows["is_asked"] & ~cell_rows["is_present"]).sum())
    problems = []
    if len(failed):
        # of the first failed completion, in one line
        error = first_line(failed["error"].iloc[0] or "") or "no reason given"
        problems.append(
            f"{len(failed)} of {len(cell_rows)} completions failed, but not in the baseline: "
            f"{error}"
        )
    if num_missing:
        problems.append(f"{num_missing} of {len(cell_rows)} completions are missing")
    if problems:
        return Check("samples", "failed", "; ".join(problems), key)
    num_present = int(cell_rows["is_present"].sum())
    return Check("samples", "passed", f"{num_present} of {len(cell_rows)} completions present", key)


class _AnswerRule(NamedTuple):
    """The rule by which greedy answers are judged."""

    baseline: RunHeader
    max_mismatch: float | None
    """The share of answers that may change; None if it was not given."""
    num_tests: int
    """Number of sign tests over all methods and loads. Their level is corrected for it."""

    @property
    def is_exact(self) -> bool:
        """True in float32. Half precision rounds differently on every machine."""
        return self.baseline.model.dtype == "float32"

    def is_checked(self, method: str) -> bool:
        """True if greedy answers of a method are checked. Those of lossless methods are, and
        vanilla's are in float32.
        """
        return self.is_exact if method == BASELINE else self.baseline.method(method).is_lossless


class _AnswerChange(NamedTuple):
    """The change of a method's answers over all tasks, with the verdict."""

    is_significant: bool
    column: Literal["gain", "lead"]
    """The column that is negative for an answer that became worse."""
    text: str
    """The change of such answers in words."""


def _check_answers(completions: DataFrame, rule: _AnswerRule, load: Load) -> Iterator[Check]:
    """Check the greedy answers of a method on each task.

    Changes are counted per task, and judged over all tasks. The answers to a request in all passes
    over the prompts are judged as one, but counted one by one. After an answer that changed the
    prompts of a chat's later turns, the later turns are not compared. A method that is not lossless
    may give any answer, and so may vanilla in half precision. Their answers are not checked, and
    neither are sampled ones.

    Args:
        completions: rows of `join_completions` for one method and temperature.
        rule: the rule by which changes are judged.
        load: the load of the checked cells.
    """
    method, temperature = completions["method"].iloc[0], completions["temperature"].iloc[0]
    if temperature > 0 or not rule.is_checked(method):
        return
    compared_rows = completions[completions["gain"].notna()]
    if method == BASELINE or rule.baseline.spec.values.history == "own":
        # Another answer changes the prompts of the chat's later turns, which are left out.
        is_same = compared_rows[["is_same", "is_same_before"]].eq(True).all(axis=1)
        marked_rows = compared_rows.assign(is_same=is_same & (compared_rows["gain"] >= 0))
        compared_rows = compared_rows[num_earlier_differences(marked_rows) == 0]
    by_request = compared_rows.groupby(["task", "sample_id", "turn"], sort=False)
    gains, leads = by_request["gain"].min(), by_request["lead"].mean()  # over passes: [requests]
    if method == BASELINE:
        change = _vanilla_change(gains, rule)
    else:
        change = _method_change(gains, leads, rule)
    for task, task_rows in compared_rows.groupby("task", sort=False):
        worse = task_rows[task_rows[change.column] < 0]
        phrase = f"{len(worse)} of {len(task_rows)} greedy answers {change.text}"
        if len(worse) and change.column == "gain":
            # turns are shown from 1
            phrase += f", first {worse['sample_id'].iloc[0]}, turn {worse['turn'].iloc[0] + 1}"
        status: Status = "failed" if change.is_significant and len(worse) else "passed"
        yield Check("output", status, phrase, CellKey(method, float(temperature), task, load))


def _vanilla_change(gains: Series, rule: _AnswerRule) -> _AnswerChange:
    """The change of vanilla's answers. Near-ties may change some of them. One is always allowed."""
    share = MAX_CHANGED if rule.max_mismatch is None else rule.max_mismatch
    num_allowed = max(share * len(gains), 1.0)
    is_significant = int((gains < 0).sum()) > num_allowed
    return _AnswerChange(is_significant, "gain", "differ from the baseline's")


def _method_change(gains: Series, leads: Series, rule: _AnswerRule) -> _AnswerChange:
    """The change of a lossless method's answers against vanilla's.

    In half precision, answers leave vanilla's at near-ties. Unless something is wrong, about
    as many answers leave earlier than in the baseline run as later. A sign test checks this, unless
    a share of answers that may change is given.

    Args:
        gains: -1 for an answer that stopped being vanilla's in any pass [requests of all tasks].
        leads: number of tokens by which an answer follows vanilla's longer than in the baseline
            run, as the mean over passes [requests of all tasks].
        rule: the rule by which changes are judged.
    """
    phrase = "no longer match vanilla's"
    if rule.is_exact or rule.max_mismatch is not None:
        num_allowed = (rule.max_mismatch or 0.0) * len(gains)  # answers
        is_significant = int((gains < 0).sum()) > num_allowed
        return _AnswerChange(is_significant, column="gain", text=phrase)
    num_earlier, num_later = int((leads < 0).sum()), int((leads > 0).sum())
    # The p-value is low if answers leave vanilla's earlier more often than later.
    if sign_test(num_earlier, num_later) >= GATE_ALPHA / rule.num_tests:
        return _AnswerChange(is_significant=False, column="gain", text=phrase)
    phrase = (
        "differ from vanilla's earlier than in the baseline"
        f" (in all tasks {num_earlier} earlier, {num_later} later)"
    )
    return _AnswerChange(is_significant=True, column="lead", text=phrase)
