"""The gate's checks of cells.

Completions and greedy answers are counted. MAT and speed have noise, so there are tests on a
comparison of two runs: a regression is claimed if `slower` rejects "worse by no more than the
limit".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from specbench.analysis.cells import BASELINE, CellKey
from specbench.analysis.records import CELL_KEY, POOLED, REQUEST_KEY, RecordTable, make_table
from specbench.analysis.stats.arrays import FloatArray
from specbench.analysis.stats.confidence import quantile
from specbench.analysis.stats.estimates import Estimate, Interval, Value, without_spread
from specbench.analysis.stats.significance import GATE_ALPHA, holm, margin, slower
from specbench.analysis.stats.variance import EXACT, Variance
from specbench.errors import UserError
from specbench.judge.checks import TOO_FEW, Check, Status
from specbench.judge.comparison import MEAN, Comparison, Pair
from specbench.judge.limits import Limits
from specbench.log.header import RunHeader
from specbench.log.run import Load, Run

if TYPE_CHECKING:
    from pandas import DataFrame

MAX_CHANGED = 0.05
"""Share of vanilla's greedy answers in float32 that near-ties may change on another machine."""
MOST_TIMES, MOST_UNSEEN = 10, 0.2
"""A test must find a change of ten times its limit, or of this share if that is less."""
LEAST_SAMPLES = 8
"""Samples a task that have enough degrees of freedom for a test, whatever their lengths."""
LEAST_BASELINES = 3
"""The spread of two runs has one degree of freedom: it predicts nothing."""


def check_outputs(
    run: Run, baseline: Run, max_mismatch: float | None, load: Load, num_loads: int
) -> Iterator[Check]:
    """The checks of samples and of output, for every cell that the baseline run measured.

    `load` is that of both runs, one of `num_loads` that are checked.
    """
    rows = join_completions(run, baseline)
    for names, cell in rows.groupby(CELL_KEY, sort=False):
        yield _check_samples(replace(CellKey(*names), load=load), cell)
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


@dataclass(frozen=True, slots=True)
class _Test:
    """A number that may be worse by the share `limit`. All of its `pairs` must show that it is
    worse; the first of them is the number. `num_samples` is that of a task.

    With `is_rise`, the value may not be higher than the limit.
    """

    cell: CellKey
    name: str
    pairs: tuple[Pair, ...]
    limit: float
    num_samples: int
    is_rise: bool = False

    @property
    def _sides(self) -> list[tuple[Value, Value]]:
        sides = [(pair.subject, pair.reference) for pair in self.pairs]
        return [side[::-1] for side in sides] if self.is_rise else sides

    @property
    def p_value(self) -> float | None:
        allowed = math.expm1(self._log(self.limit))  # as a rise of the ratio
        return _largest([slower(*side, allowed, EXACT) for side in self._sides])

    def smallest(self, level: float) -> float | None:
        """The smallest change that would fail at this level."""
        found = _largest([margin(*side, EXACT, level) for side in self._sides])
        if found is None:
            return None
        whole = self._log(self.limit) + found
        return -math.expm1(-whole) if self.name == "MAT" else math.expm1(whole)

    @property
    def most(self) -> float:
        """The change that the test must find, or the number is not judged."""
        return max(MOST_TIMES * self.limit, MOST_UNSEEN)

    def samples_for(self, smallest: float) -> int:
        """The samples that would find it, where these show no change below `smallest`."""
        ends = [self._log(one) - self._log(self.limit) for one in (smallest, self.most)]
        return math.ceil(self.num_samples * (ends[0] / ends[1]) ** 2)

    def _log(self, change: float) -> float:
        """The logarithm of the factor by which a value is worse after this change."""
        is_drop = self.name == "MAT" and not self.is_rise
        return -math.log1p(-min(change, 0.999)) if is_drop else math.log1p(change)


def _largest(values: Sequence[float | None]) -> float | None:
    """The largest known value; None if the first, which is of seconds or MAT, is unknown."""
    return None if values[0] is None else max(value for value in values if value is not None)


def check_performance(
    comparisons: Iterable[Comparison], limits: Limits, *, has_speed: bool
) -> Iterator[Check]:
    """The checks of MAT and, with `has_speed`, of speed, for each task and their mean.

    There is a comparison for each load; the tests of all of them are judged together. A MAT
    that rose is a check of its own only if it rose too much. One baseline does not show how
    far runs differ on a machine: the limits stand for that.

    A number is skipped if its test would not have found a change of ten times its limit.
    """
    tests = [test for one in comparisons for test in _tests(one, limits, has_speed=has_speed)]
    p_values = {i: test.p_value for i, test in enumerate(tests)}
    level = GATE_ALPHA / max(1, sum(p_value is not None for p_value in p_values.values()))
    for test, p_value in zip(tests, holm(p_values).values(), strict=True):
        is_significant = p_value is not None and p_value <= GATE_ALPHA
        if is_significant or not test.is_rise:
            yield _check(test, level, is_significant=is_significant)


def _tests(comparison: Comparison, limits: Limits, *, has_speed: bool) -> Iterator[_Test]:
    for key, cell in comparison.cells.items():
        if key.task == POOLED or (key.task == MEAN and len(comparison.tasks) == 1):
            continue
        number = cell.num_samples // (len(comparison.tasks) if key.task == MEAN else 1)
        if key.method != BASELINE:
            yield _Test(key, "MAT", (cell.mat,), limits.max_mat_drop, number)
            yield _Test(key, "MAT", (cell.mat,), limits.max_mat_rise, number, is_rise=True)
        if has_speed:
            is_alone = key.method == BASELINE
            pairs = (cell.tokens_per_s,) if is_alone else (cell.tokens_per_s, cell.speedup)
            yield _Test(key, "speed", pairs, limits.max_slowdown, number)


def _check(test: _Test, level: float, *, is_significant: bool) -> Check:
    pair = test.pairs[0]
    ratio, before, now = pair.ratio, pair.reference, pair.subject
    if not isinstance(ratio, Estimate):
        return Check(test.name, "skipped", ratio.reason, test.cell, limit=test.limit)
    change = _change(ratio, lambda r: 1 / r - 1 if test.name == "speed" else 1 - r)
    text = _text(change, test.name)
    needs: int | None = None
    status: Status = "failed" if is_significant else "passed"
    if is_significant:
        text += f"; {_percent(test.limit)} is allowed"
    if test.is_rise:
        text += ". Too lenient a rule would do that: audit the run, or record a new baseline"
    smallest = test.smallest(level)
    if not is_significant and (smallest is None or smallest > test.most):
        status, needs = "skipped", LEAST_SAMPLES
        text = f"{TOO_FEW}: {text}"
        if smallest is not None:
            text += f"; the smallest change that would fail is {_percent(smallest)}"
            needs = max(needs, test.samples_for(smallest))
    return Check(
        test.name, status, text, test.cell, change, test.limit, before=before, now=now, needs=needs
    )


def _text(change: Estimate, name: str) -> str:
    """The change in words: "slower by 10.4 % (95 % CI 9.1 to 11.7 %)"."""
    span = change.interval or Interval(change.value, change.value)
    low, high = span.low, span.high
    if abs(change.value) < 5e-4 and high - low < 1e-3:
        return "unchanged"
    worse, better = ("slower", "faster") if name == "speed" else ("lower", "higher")
    if is_better := change.value < 0:
        low, high = -high, -low
    ends = f" (95 % CI {low * 100:.1f} to {high * 100:.1f} %)" if high - low > 1e-9 else ""
    return f"{better if is_better else worse} by {_percent(abs(change.value))}{ends}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %".replace(".0 %", " %")


def _change(ratio: Estimate, worse: Callable[[float], float]) -> Estimate:
    """The share by which a number became worse: the time per token, or the MAT."""
    span = ratio.interval
    return Estimate(worse(ratio.value), span and Interval(worse(span.high), worse(span.low)))


def check_speeds(
    run: Run,
    baselines: Sequence[Run],
    max_slowdown: float,
    load: Load,
    num_loads: int,
) -> Iterator[Check]:
    """Checks of speed against a pool of baselines, whose spread predicts the next run: one of
    each method and temperature, and, under vanilla, one of all methods together. A method of
    the first baseline that another run lacks is skipped.

    The change of a method between two runs is the median, over its completions, of the
    logarithm of the ratio of their times: bursts of a busy machine hit some completions only.
    A change of all methods alike, which is the machine's or the engine's, is a number of its
    own, and the methods' are relative to it.

    `load` is that of all these runs, one of `num_loads` that are checked.

    Raises:
        UserError: there are too few baselines to know their spread.
    """
    num = len(baselines)
    if num < LEAST_BASELINES:
        where = f" at {load.text}" if load.text else ""
        raise UserError(
            f"{num} baselines{where} do not show how far equal runs differ.",
            f"Give one, or {LEAST_BASELINES} and more; five are better.",
        )
    changes = _changes([run, *baselines])
    for method, temperature in _changes([baselines[0]] * 2).index.difference(changes.index):
        key = CellKey(method, float(temperature), MEAN, load)
        yield Check("speed", "skipped", "this run or a baseline has no completion of it", key)
    if not len(changes):
        return
    values = changes.to_numpy()  # [methods, pairs of runs]
    whole = np.median(values, axis=0)
    level = GATE_ALPHA / ((len(values) + 1) * num_loads)
    if len(values) > 1:
        relative, against = values - whole, "than the run's other methods"
        spread = _spread(relative, num, degrees=(num - 1) * (len(values) - 1))
        for (method, temperature), row in zip(changes.index, relative, strict=True):
            key = CellKey(method, float(temperature), MEAN, load)
            yield _pool_check(key, row[:num], spread, max_slowdown, level, against)
    whose = BASELINE if len(values) > 1 else changes.index[0][0]
    key, against = CellKey(whose, float(changes.index[0][1]), MEAN, load), "in all methods together"
    spread = _spread(whole, num, degrees=num - 1)
    yield _pool_check(key, whole[:num], spread, max_slowdown, level, against)


def _changes(runs: Sequence[Run]) -> DataFrame:
    """Log time per token in a run / in a later one: [method and temperature, pairs of runs]."""
    import pandas as pd

    columns = []
    for run in runs:
        frame = make_table(run.records).frame
        done = frame[frame["is_measured"]]
        names = done.astype(dict.fromkeys(("method", "task", "sample_id"), object))
        logs = np.log(done["wall_s"] / done["num_tokens"]).to_numpy()
        columns.append(pd.Series(logs, pd.MultiIndex.from_frame(names[["method", *REQUEST_KEY]])))
    times = pd.concat(columns, axis=1, join="inner")
    pairs = {(i, j): times[i] - times[j] for i, j in combinations(range(len(runs)), 2)}
    changes = pd.DataFrame(pairs, index=times.index)
    return changes.groupby(level=["method", "temperature"], sort=False).median()


def _spread(changes: FloatArray, num: int, degrees: int) -> Variance:
    """The variance of the next run's change against the mean of `num` baselines.

    A run's variance is half the mean square of the changes between baselines; those come after
    the first `num` pairs, which are the run's with each baseline.
    """
    squares = float((changes[..., num:] ** 2).sum()) / num  # of num * (num - 1) / 2 pairs
    return Variance(squares / degrees * (1 + 1 / num), degrees)


def _pool_check(
    key: CellKey,
    changes: FloatArray,
    machine: Variance,
    max_slowdown: float,
    level: float,
    against: str,
) -> Check:
    """The check of the mean of changes of log time per token, where equal runs have the variance
    `machine`.
    """
    change = float(changes.mean())
    half = quantile(machine.degrees, 1 - level) * math.sqrt(machine.value)
    p_value = slower(without_spread(math.exp(-change)), without_spread(1.0), max_slowdown, machine)
    status: Status = "passed"
    word = "slower" if change > 0 else "faster"
    text = f"{word} by {abs(math.expm1(change)) * 100:.1f} % {against}"
    text += f"; equal runs differ by up to {math.expm1(half) * 100:.1f} %"
    limit = math.log1p(max_slowdown)
    if p_value is not None and p_value <= level:
        status = "failed"
        text += f"; {max_slowdown * 100:g} % is allowed"
    elif change > limit or math.expm1(limit + half) > MOST_UNSEEN:
        status, text = "skipped", f"cannot tell: {text}"
    span = Interval(math.expm1(change - half), math.expm1(change + half))
    return Check("speed", status, text, key, Estimate(math.expm1(change), span), max_slowdown)
