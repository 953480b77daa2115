"""Two runs, or pools of runs, cell by cell, over the completions that both finished.

Runs on servers are compared load by load, and the engine with a server that has one request at
a time. What changes for a whole run, such as a clock or another program on the machine, only
several runs a side show: with one, no difference in speed is significant.

The mean over tasks is arithmetic, and its ratio is the ratio of the two means: a mean of
ratios may be above 1 although the subject's mean is below the reference's.

A ratio is subject / reference. The bootstrap draws the same samples for both runs, so that
traits of a sample (its length, how predictable it is) cancel out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from specbench.analysis.cells import BASELINE, NO_BASELINE, NO_STEPS, WITH_PHASES, CellKey
from specbench.analysis.metrics import POOLED, mean_over_tasks, rows_by_cell
from specbench.analysis.ranking import is_alone, is_claimed
from specbench.analysis.ratios import COLUMNS, Places, RowRatio, row_ratios
from specbench.analysis.records import REQUEST_KEY, make_table
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.stats.combining import quotient
from specbench.analysis.stats.estimates import Estimate, Missing, Value, unit_sd
from specbench.analysis.stats.scope import Scope
from specbench.analysis.stats.significance import differs, holm
from specbench.errors import UserError, unknown_name
from specbench.log.differences import COMPARE, Difference, require_same_work
from specbench.log.header import RunHeader
from specbench.log.run import NO_LOAD, Load, Run, loads_of

if TYPE_CHECKING:
    from pandas import DataFrame

MEAN = "mean"
"""The task of a cell with the means over tasks."""
_MANY = 10**6
"""More than the passes of a run."""

NO_SHARED = Missing("no shared completions")
_REASONS = {"tokens_per_s": NO_SHARED, "speedup": NO_BASELINE, "mat": NO_STEPS}
"""The numbers of a cell, and the reason why one is missing."""

_REQUEST = [name for name in REQUEST_KEY if name not in Load._fields]
"""Columns that identify a request in two runs at one load; runs of the engine have no load."""


@dataclass(frozen=True, slots=True)
class Repetition:
    """The passes or runs that both sides have. `scope` says what intervals of times cover.

    `is_one_run` if both are the same run, so that passes are paired.
    """

    scope: Scope
    is_one_run: bool

    @property
    def is_judged(self) -> bool:
        """True if a difference in speed can be significant: not with one run a side, nor
        between methods of one pass.
        """
        return self.scope.is_estimated and (self.is_one_run or self.scope.kind == "runs")


@dataclass(frozen=True, slots=True)
class Pair:
    """One number in both runs. `ratio` is subject / reference, over the same samples.

    `p_value` is of "the ratio is 1", corrected for the comparison's tests; None if not tested.
    """

    subject: Value
    reference: Value
    ratio: Value
    p_value: float | None = None

    @property
    def is_claimed(self) -> bool:
        """True if the test supports a difference."""
        return is_claimed(self.p_value)

    @property
    def is_alone(self) -> bool:
        """True if the interval alone shows a difference, and the corrected test does not."""
        return is_alone(self.ratio, self.p_value)


@dataclass(frozen=True, slots=True)
class CellPair:
    """One cell in both runs. `speedup` is each run's own, over its own vanilla.

    The counts are of completions that both runs finished, and of the samples they belong to.
    """

    tokens_per_s: Pair
    speedup: Pair
    mat: Pair
    num_completions: int = 0
    num_samples: int = 0

    def pair(self, number: str) -> Pair:
        """One of the three numbers by its name."""
        found: Pair = getattr(self, number)
        return found


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run, the subject, against a reference run, both at one load.

    `cells` has every task, `MEAN` and `POOLED` of each of `methods`; `tasks` maps names to
    titles. With `reference_method`, all cells of the reference are of that method.
    `differences` make the two runs incomparable (shown if forced), `cautions` may explain a
    difference in speed, and `unshared` names what only one of them has. `number` is the place
    of the subject among the runs that are compared with the reference.
    """

    reference: RunHeader
    subject: RunHeader
    methods: tuple[str, ...]
    temperatures: tuple[float, ...]
    tasks: Mapping[str, str]
    cells: Mapping[CellKey, CellPair]
    differences: tuple[Difference, ...]
    cautions: tuple[Difference, ...]
    unshared: tuple[str, ...]
    repetition: Repetition
    reference_method: str | None = None
    number: int = 0

    @property
    def load(self) -> Load:
        """The load of the subject's requests."""
        return next(iter(loads_of(self.subject.spec.values)), NO_LOAD)

    @property
    def pass_spreads(self) -> list[float]:
        """Standard deviations of log tokens/s between the passes of each run, the median cell's."""
        cells = [cell.tokens_per_s for key, cell in self.cells.items() if key.task == MEAN]
        sides = zip(*((pair.reference, pair.subject) for pair in cells), strict=True)
        spreads = [[sd for value in side if (sd := unit_sd(value)) is not None] for side in sides]
        return [median(found) for found in spreads if found]

    @property
    def scope(self) -> Scope:
        """Passes or runs that intervals cover. One that lacks most requests does not count."""
        means = (one.tokens_per_s.ratio for key, one in self.cells.items() if key.task == MEAN)
        units = [one for ratio in means if isinstance(ratio, Estimate) for one in ratio.units]
        known = (max(1, int(np.isfinite(one).sum())) for one in units)
        scope = self.repetition.scope
        return scope._replace(number=min(known, default=scope.number))

    def cell(self, method: str, temperature: float, task: str) -> CellPair:
        return self.cells[CellKey(method, temperature, task)]


def compare_runs(
    runs: Sequence[Run], methods: tuple[str, str] | None = None, *, is_forced: bool = False
) -> list[Comparison]:
    """Compare each run with the first; with `methods`, a method of one with a method of another.

    There is a comparison for each load that both runs have.

    Raises:
        UserError: too few or too many runs, or runs that are not comparable.
    """
    if len(runs) < 2:
        raise UserError(
            "One run cannot be compared.",
            "Name two or more. To compare two methods of one run, name it twice and add "
            "--cross METHOD METHOD.",
        )
    if methods and len(runs) > 2:
        raise UserError(f"--cross compares two runs, not {len(runs)}.", "Name two.")
    compared = []
    for number, run in enumerate(runs[1:]):
        alone = () if methods else (*_unshared_loads(runs[0], run),)
        for pair in _pairs(runs[0], run):
            reference, subject = pair[::-1] if methods else pair
            one = compare(reference, subject, crossed=methods, is_forced=is_forced)
            compared.append(replace(one, number=number, unshared=(*one.unshared, *alone)))
    return compared


def _pairs(first: Run, second: Run) -> list[tuple[Run, Run]]:
    """The parts of two runs at each load that both have.

    Raises:
        UserError: they have no load in common.
    """
    if not (shared := [load for load in first.loads if load in second.loads]):
        texts = (", ".join(load.text for load in run.loads) for run in (first, second))
        raise UserError(
            f"The runs {first.header.id} and {second.header.id} have no load in common: "
            f"{' against '.join(texts)}.",
            "Measure one of them with the other's --concurrency or --request-rate.",
        )
    return [(first.at(load), second.at(load)) for load in shared]


def compare(
    reference: Run,
    subject: Run,
    *,
    crossed: tuple[str, str] | None = None,
    is_forced: bool = False,
    may_be_empty: bool = False,
) -> Comparison:
    """Compare two runs of one load in every method, temperature and task that both have.

    With `crossed`, compare this method of the subject with this one of the reference, as on
    two machines or backends.

    Raises:
        UserError: the runs are not comparable (unless forced), share nothing (unless allowed), or
            lack a crossed method.
    """
    if not is_forced:
        require_same_work(reference.header, subject.header)
    are_pools = bool(reference.run_of_repeat and subject.run_of_repeat)
    sides = _Cells(reference, are_pools), _Cells(subject, are_pools)
    if crossed:
        for cells, method in zip(reversed(sides), crossed, strict=True):
            if method not in cells.methods:
                raise unknown_name(f"method in run {cells.run.header.id}", method, cells.methods)
    shared = {method: method for method in sides[0].methods if method in sides[1].methods}
    methods = dict([crossed]) if crossed else shared
    compared = _compare(*sides, methods)
    if not (compared.cells or may_be_empty):
        raise UserError(
            f"The runs {reference.header.id} and {subject.header.id} have no finished sample "
            "of the same method, temperature and task.",
            "`specbench show RUN` lists what a run has.",
        )
    return replace(compared, reference_method=crossed[1], unshared=()) if crossed else compared


class _Cells:
    """The methods, temperatures and tasks of a run's measured records.

    With `is_by_run`, the repeats of each run of a pool are numbered from a multiple of `_MANY`
    on, so that two pools are paired run by run and pass by pass.
    """

    def __init__(self, run: Run, is_by_run: bool) -> None:
        self.run = run
        table = make_table(run.records, run.run_of_repeat, run.header.blocks)
        self.num_units = table.num_units
        self.has_phases = bool(table.frame["draft_s"].notna().any())
        frame = table.frame
        if is_by_run:
            runs = np.array(run.run_of_repeat)
            numbers = runs * _MANY + np.arange(len(runs)) - np.searchsorted(runs, runs)
            frame = frame.assign(repeat=numbers[frame["repeat"]])
        run_numbers, passes = np.divmod(frame["repeat"].to_numpy(), _MANY)
        self.repeats = {"runs": len({*run_numbers}), "passes": len({*passes})}
        self.frame = frame[frame["is_measured"]]
        found = self.frame["method"].unique()
        listed = [one.spelling for one in run.header.method_labels if one.spelling in found]
        ordered = dict.fromkeys([*listed, *found])
        self.methods = tuple(sorted(ordered, key=lambda method: method != BASELINE))
        self.temperatures = tuple(sorted(self.frame["temperature"].unique().tolist()))
        columns, tasks = run.header.columns, {*self.frame["task"]}
        known = [*columns, *self.frame["task"].unique()]
        self.tasks = {task: run.header.task_title(task) for task in known if task in tasks}


def _compare(reference: _Cells, subject: _Cells, methods: Mapping[str, str]) -> Comparison:
    """The comparison of the methods of the subject, each mapped to one of the reference."""
    temperatures = [t for t in reference.temperatures if t in subject.temperatures]
    tasks = {task: title for task, title in reference.tasks.items() if task in subject.tasks}
    has_phases = subject.has_phases or reference.has_phases
    no_times = WITH_PHASES if has_phases else None
    one, other = reference.run, subject.run
    are_pools = bool(one.run_of_repeat and other.run_of_repeat)
    number = min(reference.num_units, subject.num_units)
    scope = Scope("runs" if are_pools else "passes", number)
    is_one_run = (one.header, one.records) == (other.header, other.records)
    repetition = Repetition(scope, is_one_run)
    pairs = pair_requests(subject.frame, reference.frame, methods)
    rows = rows_by_cell(pairs)
    draws = {task: Draws(Bootstrap(), task) for task in tasks}
    cells: dict[CellKey, CellPair] = {}
    for temperature, method in product(temperatures if tasks else (), methods):
        keys = {task: CellKey(method, temperature, task) for task in (*tasks, MEAN, POOLED)}
        found = {
            task: pair_cell(
                pairs.iloc[rows.get(keys[task], [])], draws.get(task), no_times, repetition
            )
            for task in (*tasks, POOLED)
        }
        found[MEAN] = mean_cell([found[task] for task in tasks], is_one_run=is_one_run)
        cells |= {key: found[task] for task, key in keys.items()}
    return Comparison(
        reference=one.header,
        subject=other.header,
        methods=tuple(methods),
        temperatures=tuple(temperatures),
        tasks=tasks,
        cells=_tested(cells, has_times=repetition.is_judged),
        differences=COMPARE.conflicts(one.header, other.header),
        cautions=COMPARE.cautions(one.header, other.header),
        unshared=tuple(_unshared(reference, subject)),
        repetition=repetition,
    )


def _tested(cells: Mapping[CellKey, CellPair], *, has_times: bool) -> dict[CellKey, CellPair]:
    """The cells with corrected p-values; without `has_times`, those of MAT alone.

    The means over tasks, which sentences are about, are one family of tests; the single tasks,
    which are only coloured, are another. Vanilla's speedup and MAT are 1 in every run, and are
    not tested.
    """
    means = [key for key in cells if key.task == MEAN]
    tasks = [key for key in cells if key.task not in (MEAN, POOLED)]
    tested = {**cells}
    for family in (means, tasks):
        p_values: dict[tuple[CellKey, str], float | None] = {}
        for key in family:
            counts = () if key.method == BASELINE else ("mat",)
            times = ("tokens_per_s",) if key.method == BASELINE else ("tokens_per_s", "speedup")
            for number in (*counts, *times) if has_times else counts:
                pair = cells[key].pair(number)
                machine = pair.ratio.machine if isinstance(pair.ratio, Estimate) else None
                p_values[key, number] = differs(pair.subject, pair.reference, machine)
        for (key, number), p_value in holm(p_values).items():
            changed: Any = {number: replace(tested[key].pair(number), p_value=p_value)}
            tested[key] = replace(tested[key], **changed)
    return tested


def _unshared_loads(first: Run, second: Run) -> Iterator[str]:
    for run, other in ((first, second), (second, first)):
        if alone := [load.text for load in run.loads if load not in other.loads]:
            yield f"only in {run.header.id}: {', '.join(alone)}"


def _unshared(reference: _Cells, subject: _Cells) -> Iterator[str]:
    sides = reference, subject
    for cells, other in (sides, sides[::-1]):
        alone = [cells.run.header.method(m).label for m in cells.methods if m not in other.methods]
        alone += [title for task, title in cells.tasks.items() if task not in other.tasks]
        alone += [f"T={t:g}" for t in cells.temperatures if t not in other.temperatures]
        if alone:
            yield f"only in {cells.run.header.id}: {', '.join(alone)}"
    for kind in ("runs", "passes"):
        numbers = [one.repeats[kind] for one in sides]
        if numbers[0] != numbers[1]:
            yield f"{kind} after the first {min(numbers)}, which only one side has"


def pair_requests(
    subject: DataFrame, reference: DataFrame, methods: Mapping[str, str]
) -> DataFrame:
    """The requests that both runs finished, a row each, in the order of the subject.

    Both frames are the measured rows of a `RecordTable`. `methods` maps each method of the
    subject to the method of the reference that it is compared with. Columns of the reference
    end in `_reference`.
    """
    names = {theirs: own for own, theirs in methods.items()}
    own = _of_methods(subject, methods)
    theirs = _of_methods(reference, names)
    theirs["method"] = theirs["method"].map(names).astype(object)
    return own.merge(theirs, on=["method", *_REQUEST], suffixes=("", "_reference"))


def _of_methods(frame: DataFrame, methods: Collection[str]) -> DataFrame:
    names = ["method", *_REQUEST, "cluster", "unit", "request", *COLUMNS]
    rows = frame.loc[frame["method"].isin(list(methods)), names]
    return rows.astype(dict.fromkeys(("method", "task", "sample_id"), object))


def pair_cell(
    rows: DataFrame, draws: Draws | None, no_times: Missing | None, repetition: Repetition
) -> CellPair:
    """A cell from its rows of `pair_requests`, with intervals if there are draws.

    `no_times` is the reason why the times of a run are not evidence, if they are not.
    """
    if not len(rows):
        blank = _pair(NO_SHARED, NO_SHARED)
        return CellPair(blank, blank, blank)
    sides = [_side(rows, suffix, repetition) for suffix in ("", "_reference")]
    pairs = {}
    for name, reason in _REASONS.items():
        missing = no_times if no_times and name != "mat" else reason
        values: list[Value] = [missing, missing]
        has_both = sides[0][0][name].where & sides[1][0][name].where
        if missing is reason and has_both.any():
            ratios = [replace(one[name], where=has_both).summed(places) for one, places in sides]
            values = [draws.estimate(one) if draws else one.estimate for one in ratios]
        pairs[name] = _pair(*values, is_one_run=repetition.is_one_run)
    return CellPair(**pairs, num_completions=len(rows), num_samples=rows["cluster"].nunique())


def _side(
    rows: DataFrame, suffix: str, repetition: Repetition
) -> tuple[dict[str, RowRatio], Places]:
    """The ratios of one side, and where its rows belong: to the subject's samples on both sides,
    so that draws pair them.
    """
    columns = {name: rows[f"{name}{suffix}"].to_numpy(dtype=np.float64) for name in COLUMNS}
    units, requests = (rows[f"{name}{suffix}"].to_numpy() for name in ("unit", "request"))
    places = Places(rows["cluster"].to_numpy(), units, requests, repetition.scope.number)
    return row_ratios(columns), places


def mean_cell(cells: Sequence[CellPair], *, is_one_run: bool) -> CellPair:
    """Arithmetic means of the values over tasks, and their ratio; missing if a task is missing."""
    means = {}
    for name in _REASONS:
        pairs = [cell.pair(name) for cell in cells]
        subject = mean_over_tasks([pair.subject for pair in pairs])
        reference = mean_over_tasks([pair.reference for pair in pairs])
        means[name] = _pair(subject, reference, is_one_run=is_one_run)
    num_completions = sum(cell.num_completions for cell in cells)
    num_samples = sum(cell.num_samples for cell in cells)
    return CellPair(**means, num_completions=num_completions, num_samples=num_samples)


def _pair(subject: Value, reference: Value, *, is_one_run: bool = False) -> Pair:
    if isinstance(subject, Missing) or isinstance(reference, Missing):
        return Pair(subject, reference, subject if isinstance(subject, Missing) else reference)
    return Pair(subject, reference, quotient(subject, reference, is_one_run=is_one_run))
