"""Checks that count: missing and failed completions, and changed greedy answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.cells import BASELINE, CellKey
from specbench.analysis.records import CELL_KEY, REQUEST_KEY, RecordTable, make_table
from specbench.analysis.stats.significance import GATE_ALPHA
from specbench.judge.checks import Check, Status
from specbench.log.header import RunHeader
from specbench.log.run import Load, Run

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_CHANGED = 0.05
"""Share of vanilla's greedy answers in float32 that near-ties may change on another machine."""


def check_outputs(
    run: Run, baseline: Run, max_mismatch: float | None, load: Load, num_loads: int
) -> Iterator[Check]:
    """The checks of samples and of output, for every cell that the baseline run measured.

    `load` is that of both runs, one of `num_loads` that are checked.
    """
    rows = join_completions(run, baseline)
    for names, cell in rows.groupby(CELL_KEY, sort=False):
        yield _check_samples(CellKey(*names, load), cell)
    is_tested = (rows["temperature"] == 0) & (rows["method"] != BASELINE)
    num_tests = num_loads * rows.loc[is_tested, "method"].nunique()
    for _, cells in rows.groupby(CELL_KEY[:2], sort=False):
        yield from _check_answers(cells, baseline.header, max_mismatch, load, num_tests)


def join_completions(run: Run, baseline: Run) -> DataFrame:
    """A row for each completion that the baseline run measured, joined with this run's.

    - `is_present`, `is_measured`, `error`: of the completion in this run.
    - `has_cell`: the run has a record of the cell; `is_asked`: some method of it has the request.
    - `gain`: 1 if the answer became vanilla's, -1 if it stopped being vanilla's, else 0; NaN if a
      run has nothing to compare. For vanilla itself, -1 if the answer changed.
    - `lead`: the tokens that the answer follows vanilla's, less those of the baseline run; or NaN.
    """
    import pandas as pd

    before, now = make_table(baseline.records), make_table(run.records)
    key = ["method", *REQUEST_KEY]
    sides = []
    for table in (before, now):
        part = table.frame[[*key, "is_measured", "error", "is_same", "baseline_row"]]
        named = part.astype(dict.fromkeys(("method", "task", "sample_id"), object))
        sides.append(named.assign(row=named.index))
    measured = sides[0][sides[0]["is_measured"]]
    rows = measured.merge(sides[1], on=key, how="left", suffixes=("_before", ""))
    for name, columns in (("has_cell", CELL_KEY), ("is_asked", REQUEST_KEY)):
        known = pd.MultiIndex.from_frame(sides[1][columns])
        rows[name] = pd.MultiIndex.from_frame(rows[columns]).isin(known)
    rows["is_present"] = rows["row"].notna()
    rows["is_measured"] = rows["is_measured"].eq(True)
    is_compared = rows["is_measured"] & (rows["baseline_row"] >= 0)
    is_compared &= rows["baseline_row_before"] >= 0
    is_same = rows["is_same"].eq(True).to_numpy(copy=True)
    for i in np.flatnonzero(is_compared & (rows["method"] == BASELINE)):
        old, new = before.records[rows["row_before"].iat[i]], now.records[int(rows["row"].iat[i])]
        is_same[i] = old.token_ids == new.token_ids
    rows["gain"] = (is_same.astype(float) - rows["is_same_before"]).where(is_compared)
    lead = np.full(len(rows), np.nan)
    for i in np.flatnonzero(is_compared):
        lead[i] = _common(now, int(rows["row"].iat[i])) - _common(before, rows["row_before"].iat[i])
    rows["lead"] = lead
    return rows


def _common(table: RecordTable, row: int) -> int:
    """The number of tokens until an answer leaves vanilla's; all of its tokens if it never does."""
    own = table.records[row].token_ids
    other = table.records[table.columns["baseline_row"][row]].token_ids
    pairs = zip(own, other, strict=False)
    return next((i for i, (mine, theirs) in enumerate(pairs) if mine != theirs), len(own))


def _check_samples(key: CellKey, cell: DataFrame) -> Check:
    if not cell["has_cell"].any():
        return Check("samples", "failed", "in the baseline and not in this run", key)
    failed = cell[cell["is_present"] & ~cell["is_measured"]]
    num_missing = int((cell["is_asked"] & ~cell["is_present"]).sum())
    problems = []
    if len(failed):
        error = (failed["error"].iloc[0] or "no reason given").strip().splitlines()[0]
        problems.append(f"{len(failed)} of {len(cell)} completions failed that had not: {error}")
    if num_missing:
        problems.append(f"{num_missing} of {len(cell)} completions are missing")
    if problems:
        return Check("samples", "failed", "; ".join(problems), key)
    num_present = int(cell["is_present"].sum())
    return Check("samples", "passed", f"{num_present} of {len(cell)} completions present", key)


def _check_answers(
    cells: DataFrame, baseline: RunHeader, max_mismatch: float | None, load: Load, num_tests: int
) -> Iterator[Check]:
    """Check the greedy answers of one method: counted by task, judged over all tasks. Passes
    repeat the answer to a request, so they are judged as one.

    A method that is not lossless may give any answer. So may vanilla in half precision, which
    rounds differently on every machine. There, a method's answers leave vanilla's at
    near-ties: as often earlier as later than in the baseline run, unless something is wrong.
    """
    method, temperature = cells["method"].iloc[0], cells["temperature"].iloc[0]
    is_exact, is_vanilla = baseline.model.dtype == "float32", method == BASELINE
    is_bound = is_exact if is_vanilla else baseline.method(method).is_lossless
    if temperature > 0 or not is_bound:
        return
    compared = cells[cells["gain"].notna()]
    requests = compared.groupby(["task", "sample_id", "turn"], sort=False)
    gain, lead = requests["gain"].min(), requests["lead"].mean()
    num_worse, column = int((gain < 0).sum()), "gain"
    change = "differ from the baseline's" if is_vanilla else "no longer match vanilla's"
    if is_vanilla:
        share = MAX_CHANGED if max_mismatch is None else max_mismatch
        is_significant = num_worse > max(share * len(gain), 1.0)
    elif is_exact or max_mismatch is not None:
        is_significant = num_worse > (max_mismatch or 0.0) * len(gain)
    else:
        from scipy.stats import binom

        earlier, later = int((lead < 0).sum()), int((lead > 0).sum())
        sign_test = binom.sf(earlier - 1, earlier + later, 0.5)
        is_significant = bool(sign_test < GATE_ALPHA / num_tests)
        if is_significant:
            column, change = "lead", "leave vanilla's earlier than in the baseline"
            change += f" (in all tasks {earlier} earlier, {later} later)"
    for task, cell in compared.groupby("task", sort=False):
        worse = cell[cell[column] < 0]
        text = f"{len(worse)} of {len(cell)} greedy answers {change}"
        if len(worse) and column == "gain":
            text += f", first {worse['sample_id'].iloc[0]}, turn {worse['turn'].iloc[0] + 1}"
        status: Status = "failed" if is_significant and len(worse) else "passed"
        yield Check("output", status, text, CellKey(method, float(temperature), task, load))
