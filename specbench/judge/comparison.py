"""Compare two runs, or pools of runs, cell by cell, over the completions that both finished.

Runs on servers are compared load by load. A run of the engine is compared with a server that has
one request at a time. Only several runs per side show what changes from run to run, such as a clock
or another program on the machine. With one run per side, no difference in speed is significant.

The mean over tasks is arithmetic, and its ratio is the ratio of the two means. A mean of ratios
could be above 1 although the subject's mean is below the reference's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from statistics import median

import numpy as np

from specbench.analysis.cells import WITH_PHASES, CellKey
from specbench.analysis.metrics import POOLED, rows_by_cell
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.stats.estimates import Estimate, unit_sd
from specbench.analysis.stats.scope import Scope
from specbench.analysis.tables import RunTables, TabledRun
from specbench.errors.kinds import UserError
from specbench.judge.claims import MEAN as MEAN
from specbench.judge.claims import with_p_values
from specbench.judge.pairs import CellPair, Repetition, mean_cell, pair_cell, pair_requests
from specbench.judge.sides import Side, make_side, require_method
from specbench.log.difference import Difference
from specbench.log.header import RunHeader
from specbench.log.policies import COMPARE, require_same_work
from specbench.log.run import NO_LOAD, Load, Run, loads_of


@dataclass(frozen=True, slots=True)
class Comparison:
    """A run (the subject) compared with a reference run, both at one load."""

    reference: RunHeader
    subject: RunHeader
    methods: tuple[str, ...]
    """The compared methods of the subject, spelled as in records."""
    temperatures: tuple[float, ...]
    tasks: Mapping[str, str]
    """The name of each task -> its title."""
    cells: Mapping[CellKey, CellPair]
    """The numbers of each method and temperature on every task, `MEAN` and `POOLED`."""
    differences: tuple[Difference, ...]
    """Differences that make the two runs incomparable, shown if the comparison is forced."""
    cautions: tuple[Difference, ...]
    """Differences that may explain a difference in speed."""
    unshared: tuple[str, ...]
    """Parts that only one of the two runs has, in words."""
    repetition: Repetition
    reference_method: str | None = None
    """In a comparison of two methods, the reference's method in all cells. Otherwise None."""
    number: int = 0
    """The number of the subject, from 0, among the runs that are compared with the reference."""

    @property
    def load(self) -> Load:
        """The load of the subject's requests."""
        return next(iter(loads_of(self.subject.spec.values)), NO_LOAD)

    @property
    def pass_spreads(self) -> list[float]:
        """The standard deviation of log tokens/s over the passes of each side (or the runs of a
        pool), as the median over cells. A side with a single pass has no entry.
        """
        pairs = [cell.tokens_per_s for key, cell in self.cells.items() if key.task == MEAN]
        spreads = []
        for speeds in ([pair.reference for pair in pairs], [pair.subject for pair in pairs]):
            deviations = [unit_sd(speed) for speed in speeds]  # None with one pass
            if measured := [deviation for deviation in deviations if deviation is not None]:
                spreads.append(median(measured))
        return spreads

    @property
    def scope(self) -> Scope:
        """The passes over the prompts, or the runs, that intervals cover in addition to prompts.

        A pass or run that lacks most requests does not count.
        """
        nums_complete = []  # numbers of complete passes or runs, per cell and side
        for key, cell in self.cells.items():
            ratio = cell.tokens_per_s.ratio
            if key.task == MEAN and isinstance(ratio, Estimate):
                # An array in `units` has a number per pass or run: the log speed of a side or,
                # within one run, the log ratio. It is NaN if most requests are missing.
                nums_complete += [int(np.isfinite(log_speeds).sum()) for log_speeds in ratio.units]
        scope = self.repetition.scope  # `number` counts the passes or runs that both sides have
        if not nums_complete:
            return scope
        return scope._replace(number=max(1, min(nums_complete)))

    def cell(self, method: str, temperature: float, task: str) -> CellPair:
        return self.cells[CellKey(method, temperature, task)]


def compare_runs(
    runs: Sequence[Run], methods: tuple[str, str] | None = None, *, is_forced: bool = False
) -> list[Comparison]:
    """Compare each run with the first, at each load that both have.

    There is a comparison per run and load. With `methods`, `methods[0]` of the first run is
    compared with `methods[1]` of the second run, or of the only run. With `is_forced`, runs that
    did different work are compared too.

    Raises:
        UserError: too few or too many runs, or runs that are not comparable.
    """
    if methods and len(runs) == 1:
        runs = [runs[0], runs[0]]
    if len(runs) < 2:
        raise UserError(
            "One run cannot be compared.",
            "Name two or more, or two methods of the run: --cross METHOD METHOD.",
        )
    if methods and len(runs) > 2:
        raise UserError(f"--cross compares two runs, not {len(runs)}.", "Name two.")
    first_tables, *other_tables = map(RunTables, runs)  # each has a table at each load
    comparisons = []
    for run_index, tables in enumerate(other_tables):
        unshared_loads = () if methods else tuple(_unshared_loads(first_tables.run, tables.run))
        for load in _shared_loads(first_tables.run, tables.run):
            reference, subject = first_tables.at(load), tables.at(load)
            if methods:  # the first run has the first method, so it is the subject
                reference, subject = subject, reference
            comparison = compare_tabled(reference, subject, crossed=methods, is_forced=is_forced)
            unshared = (*comparison.unshared, *unshared_loads)
            comparisons.append(replace(comparison, number=run_index, unshared=unshared))
    return comparisons


def _shared_loads(run_a: Run, run_b: Run) -> list[Load]:
    """The loads that both runs have.

    Raises:
        UserError: the runs have no load in common.
    """
    if not (shared := [load for load in run_a.loads if load in run_b.loads]):
        texts = (", ".join(load.text for load in run.loads) for run in (run_a, run_b))
        raise UserError(
            f"The runs {run_a.header.id} and {run_b.header.id} have no load in common: "
            f"{' against '.join(texts)}.",
            "Measure one of them with the other's --concurrency or --request-rate.",
        )
    return shared


def compare_tabled(
    reference: TabledRun,
    subject: TabledRun,
    *,
    crossed: tuple[str, str] | None = None,
    is_forced: bool = False,
    may_be_empty: bool = False,
) -> Comparison:
    """Compare two runs of one load in every method, temperature and task that both have.

    `crossed` is a method of the subject and a method of the reference. If it is given, only these
    two are compared, for example on two machines or backends.

    Raises:
        UserError: the runs did different work (unless `is_forced`), their finished answers share no
            method, temperature or task (unless `may_be_empty`), or a crossed method is missing.
    """
    if not is_forced:
        require_same_work(reference.run.header, subject.run.header)
    # A pool has several runs of one command. A single run has no `run_of_repeat`.
    are_pools = bool(reference.run.run_of_repeat and subject.run.run_of_repeat)
    reference_side = make_side(reference, are_pools=are_pools)
    subject_side = make_side(subject, are_pools=are_pools)
    if crossed:
        require_method(subject_side, crossed[0])
        require_method(reference_side, crossed[1])
        methods = {crossed[0]: crossed[1]}  # the subject's -> the reference's
    else:
        shared = (method for method in reference_side.methods if method in subject_side.methods)
        methods = {method: method for method in shared}
    comparison = _compare(reference_side, subject_side, methods, are_pools=are_pools)
    if not (comparison.cells or may_be_empty):
        raise UserError(
            f"The runs {reference.run.header.id} and {subject.run.header.id} have no finished "
            "sample of the same method, temperature and task.",
            "`specbench show RUN` lists what a run has.",
        )
    if crossed:  # what only one run has does not concern the two methods
        return replace(comparison, reference_method=crossed[1], unshared=())
    return comparison


def _compare(
    reference: Side, subject: Side, methods: Mapping[str, str], *, are_pools: bool
) -> Comparison:
    """Compare two sides at one load.

    `methods` maps each compared method of the subject to the method of the reference that it is
    compared with. There is a cell for each temperature, method and shared task, for the mean over
    tasks and for all tasks pooled. `are_pools` is True if both sides are pools.
    """
    temperatures = [t for t in reference.temperatures if t in subject.temperatures]
    # name -> title
    tasks = {task: title for task, title in reference.tasks.items() if task in subject.tasks}
    reference_run, subject_run = reference.run, subject.run
    is_one_run = (reference_run.header, reference_run.records) == (
        subject_run.header,
        subject_run.records,
    )
    repetition = Repetition(  # the passes or runs that both sides have
        Scope("runs" if are_pools else "passes", min(reference.num_units, subject.num_units)),
        is_one_run=is_one_run,
    )
    # Times are not evidence if the phases of steps were timed, which slows the steps.
    no_times = WITH_PHASES if subject.has_phases or reference.has_phases else None
    # the requests that both finished, one per row
    requests = pair_requests(subject.frame, reference.frame, methods)
    row_numbers = rows_by_cell(requests)  # numbers of rows in `requests`, by cell
    # All methods are measured on the same resampled samples of a task.
    draws = {task: Draws(Bootstrap(), task) for task in tasks}
    cells: dict[CellKey, CellPair] = {}
    for temperature, method in product(temperatures, methods) if tasks else ():
        cell_pairs: dict[str, CellPair] = {}  # by task
        for task in (*tasks, POOLED):
            cell_rows = requests.iloc[row_numbers.get(CellKey(method, temperature, task), [])]
            # all tasks pooled have no draws, and so no intervals
            cell_pairs[task] = pair_cell(cell_rows, draws.get(task), no_times, repetition)
        task_pairs = [cell_pairs[task] for task in tasks]
        cell_pairs[MEAN] = mean_cell(task_pairs, is_one_run=repetition.is_one_run)
        for task in (*tasks, MEAN, POOLED):
            cells[CellKey(method, temperature, task)] = cell_pairs[task]
    return Comparison(
        reference=reference_run.header,
        subject=subject_run.header,
        methods=tuple(methods),
        temperatures=tuple(temperatures),
        tasks=tasks,
        cells=with_p_values(cells, has_times=repetition.is_judged),
        differences=COMPARE.conflicts(reference_run.header, subject_run.header),
        cautions=COMPARE.cautions(reference_run.header, subject_run.header),
        unshared=tuple(_unshared(reference, subject)),
        repetition=repetition,
    )


def _unshared_loads(run_a: Run, run_b: Run) -> Iterator[str]:
    """The loads that only one of two runs has, in words."""
    for run, other_run in ((run_a, run_b), (run_b, run_a)):
        if texts := [load.text for load in run.loads if load not in other_run.loads]:
            yield f"only in {run.header.id}: {', '.join(texts)}"


def _unshared(reference: Side, subject: Side) -> Iterator[str]:
    """Methods, tasks, temperatures, runs and passes that only one side has, in words."""
    for side, other_side in ((reference, subject), (subject, reference)):
        header = side.run.header
        names = [
            header.method(method).label
            for method in side.methods
            if method not in other_side.methods
        ]
        names += [title for task, title in side.tasks.items() if task not in other_side.tasks]
        names += [f"T={t:g}" for t in side.temperatures if t not in other_side.temperatures]
        if names:
            yield f"only in {header.id}: {', '.join(names)}"
    for noun, num_reference, num_subject in (
        ("runs", reference.num_runs, subject.num_runs),
        ("passes", reference.num_passes, subject.num_passes),
    ):
        if num_reference != num_subject:
            num_shared = min(num_reference, num_subject)
            yield f"{noun} after the first {num_shared}, which only one side has"
