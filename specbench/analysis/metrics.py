"""Compute all numbers of a run, as reports show them.

This module calls the others of this package. `cells` defines the numbers of a cell, and `overall`
the means.

Means over tasks are arithmetic, as in the papers' tables; `pooled` treats all tasks as one cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from specbench.analysis.baseline_drafts import find_baseline_drafts
from specbench.analysis.cells import (
    NO_TIMES,
    WITH_PHASES,
    Arithmetic,
    CellKey,
    CellMetrics,
    CellSource,
)
from specbench.analysis.cells import rows_by_cell as rows_by_cell
from specbench.analysis.cheats import find_cheats
from specbench.analysis.costs import NO_COST, Cost, costs_alone, measure_cost
from specbench.analysis.divergence import Agreement, find_agreements
from specbench.analysis.drafting import find_drafting
from specbench.analysis.idle_after_long import find_idle_after_long
from specbench.analysis.idle_drafts import find_idle_drafts
from specbench.analysis.idle_engines import find_idle_engines
from specbench.analysis.impossible_speedups import find_impossible_speedups
from specbench.analysis.long_prompts import find_long_prompts
from specbench.analysis.odd_answers import find_odd_answers
from specbench.analysis.overall import Axes, MethodMetrics, axes_of, measure_overall
from specbench.analysis.pools import find_changed_pools
from specbench.analysis.ranking import Ranking, rank
from specbench.analysis.records import BASELINE as BASELINE
from specbench.analysis.records import POOLED as POOLED
from specbench.analysis.records import RecordTable
from specbench.analysis.roofline import Roofline, read_roofline
from specbench.analysis.run_cells import measure_cells
from specbench.analysis.serving import ServingMetrics, measure_serving
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.analysis.stats.scope import ONE_PASS, Scope
from specbench.analysis.step_bins import StepBin, bin_steps
from specbench.analysis.survivors import find_survivors
from specbench.analysis.tables import tabled
from specbench.analysis.warnings import RunWarning, find_warnings
from specbench.errors import unknown_name
from specbench.log.audit import StoredAudit
from specbench.log.faults import find_wrong_numbers
from specbench.log.header import RunHeader
from specbench.log.run import Run
from specbench.log.spec import parse_goodput
from specbench.log.time_faults import find_time_faults

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """All numbers of one run, or of a pool of runs."""

    info: RunHeader
    methods: tuple[str, ...]
    temperatures: tuple[float, ...]
    tasks: tuple[str, ...]
    cells: Mapping[CellKey, CellMetrics]

    overall: Mapping[tuple[str, float], MethodMetrics]
    """The numbers over all tasks, by method and temperature."""

    bootstrap: Bootstrap
    roofline: Roofline | Missing
    arithmetic: Arithmetic = "ours"
    warnings: tuple[RunWarning, ...] = ()
    left_out: tuple[str, ...] = ()
    num_repeated: int = 0
    """The number of requests that failed at first and were sent again."""

    missing_text: str = ""
    costs: Mapping[CellKey, Cost] = field(default_factory=dict)

    agreements: Mapping[str, Agreement] = field(default_factory=dict)
    """Method -> comparison of its greedy answers with vanilla's."""

    audit: StoredAudit | None = None

    serving: Mapping[tuple[str, float], ServingMetrics] = field(default_factory=dict)
    """The numbers of servers, by method and temperature."""

    scope: Scope = ONE_PASS
    """The units besides prompts that the intervals of times cover: passes, or runs of a pool."""

    rankings: Mapping[float, Ranking] = field(default_factory=dict)
    """The fastest method at each temperature, with the tests that support claims about it."""

    task_rankings: Mapping[tuple[float, str], Ranking] = field(default_factory=dict)
    """The fastest method on each task, with its tests, by temperature and task."""

    step_bins: Mapping[tuple[str, float], tuple[StepBin, ...]] = field(default_factory=dict)
    """Bins of steps by position, context and turn, by method (except vanilla) and temperature."""

    baseline_drafts: int | None = 0
    """The drafts of vanilla's server, which should make none; None if it reports no counts."""

    def cell(self, method: str, temperature: float, task: str) -> CellMetrics:
        return self.cells[CellKey(method, temperature, task)]

    def pooled(self, method: str, temperature: float) -> CellMetrics:
        return self.overall[method, temperature].pooled

    def cost(self, method: str, temperature: float, task: str = POOLED) -> Cost:
        """Return the costs of a cell, by default of all tasks together."""
        return self.costs.get(CellKey(method, temperature, task), NO_COST)


def measure(
    run: Run, bootstrap: Bootstrap | None = None, arithmetic: Arithmetic = "ours"
) -> RunMetrics:
    """Compute all numbers of a run, as reports show them; missing records give missing numbers."""
    bootstrap = bootstrap or Bootstrap()  # number of resamples, and their seed
    header = run.header
    table = tabled(run).table  # a row per record
    # rows of requests that all ranked methods finished without a pause
    survivors = find_survivors(table.frame)
    axes = axes_of(header, table.frame)  # methods, temperatures, tasks
    no_times = _no_times(header, table.frame)  # None if times are evidence of speed
    cell_source = CellSource(table, header, survivors, no_times)  # selects each cell's rows
    roofline = read_roofline(header.roofline, run.records, header.threads)  # memory bandwidth
    costs: dict[CellKey, Cost] = {}  # seconds of steps, energy and memory
    drafting = find_drafting(table, header, cell_source.shared_rows)  # which answers had drafts
    for key, rows in cell_source.shared_rows.items():  # records that count, and failed ones
        cost = measure_cost(key, table, rows, Draws(bootstrap, key.task), roofline, no_times)
        costs[key] = drafting.checked_cost(cost, key)
    costs |= costs_alone(costs, header.energy)  # with the energy of methods that also ran alone
    cells = measure_cells(cell_source, axes, costs, drafting, bootstrap, arithmetic)
    overall = measure_overall(cells, axes)  # means over tasks, by method and temperature
    rankings = _rank_methods(overall, axes)  # by temperature
    task_rankings = _rank_on_tasks(cells, axes)  # by temperature and task
    agreements = find_agreements(table, header.spec.values.history)  # of greedy answers
    serving = measure_serving(header, table, bootstrap, parse_goodput(header.spec.values.goodput))
    has_clocks = bool(header.gpu and header.gpu.sm_clock_mhz)  # the driver reported clock rates
    warnings = (
        *_warnings_of_records(run, table),
        *find_impossible_speedups(cells, header),
        *find_warnings(table, cells, rankings, survivors, has_clocks=has_clocks),
    )
    return RunMetrics(
        info=header,
        methods=axes.methods,
        temperatures=axes.temperatures,
        tasks=axes.tasks,
        cells=cells,
        overall=overall,
        bootstrap=bootstrap,
        arithmetic=arithmetic,  # the formula of the speedup
        warnings=warnings,
        num_repeated=run.num_repeated,  # failed records whose requests were sent again later
        left_out=run.left_out,  # lines of the files that were not read
        missing_text=run.missing_text,  # about missing records; "" if none are missing
        costs=costs,
        roofline=roofline,
        agreements={method: agreements[method] for method in axes.methods if method in agreements},
        audit=run.audit,  # the latest audit of these records, or None
        serving={
            key: drafting.checked_serving(numbers, CellKey(*key, POOLED))
            for key, numbers in serving.items()  # by method and temperature
            if key in overall
        },
        # what intervals cover besides prompts: passes over the prompts, or the runs of a pool
        scope=Scope("runs" if run.run_of_repeat else "passes", _num_covered(overall, table)),
        rankings=rankings,
        task_rankings=task_rankings,
        step_bins=_bin_steps(cell_source, cells, table, bootstrap),
        baseline_drafts=drafting.baseline_drafts,  # drafts of vanilla's server; None: no counts
    )


def _warnings_of_records(run: Run, table: RecordTable) -> tuple[RunWarning, ...]:
    """Collect the warnings that need only the records and the header of a run, not its cells.

    They are about impossible records, hidden work, idle drafts, odd answers, and pools in which
    vanilla's speed changed. Imported runs have none, since specbench did not measure them.
    """
    header = run.header
    if header.imported:
        return ()
    if run.run_of_repeat:  # a pool, whose header describes its first run only
        faults = find_time_faults(run.records)
    else:
        faults = find_wrong_numbers(header, run.records)
    return (
        *(RunWarning("impossible", {"text": text}) for text in faults),
        *find_cheats(table, header),
        *find_baseline_drafts(header, table.records),
        *find_idle_engines(header),
        *find_idle_drafts(table.records, header),
        *find_idle_after_long(table, header),
        *find_long_prompts(table, header),
        *find_changed_pools(table.frame),
        *find_odd_answers(table.records, header.model.chat),
    )


def _bin_steps(
    source: CellSource,
    cells: Mapping[CellKey, CellMetrics],
    table: RecordTable,
    bootstrap: Bootstrap,
) -> dict[tuple[str, float], tuple[StepBin, ...]]:
    """Bin the steps of all tasks, by method (except vanilla) and temperature, if there is a MAT."""
    draws = Draws(bootstrap, "step bins")
    return {
        (key.method, key.temperature): bin_steps(table, rows, draws)
        for key, rows in source.shared_rows.items()
        if key.task == POOLED and key.method != BASELINE and isinstance(cells[key].mat, Estimate)
    }


def _no_times(header: RunHeader, frame: DataFrame) -> Missing | None:
    """Return the reason why a run's times are not evidence of speed; None if they are."""
    if header.spec.values.phases or frame["draft_s"].notna().any():
        return WITH_PHASES
    has_none = header.imported and not frame["wall_s"].notna().any()
    return NO_TIMES if has_none else None


def _num_covered(overall: Mapping[Any, MethodMetrics], table: RecordTable) -> int:
    """Count the units (passes or runs) that the interval of every mean speedup covers.

    A unit with too few requests is not covered. `overall` has the means of each method. If no mean
    has units, the result is the number of all units of the run.
    """
    speedups = [method.speedup for method in overall.values()]
    nums_covered = [
        int(np.isfinite(speedup.units[0]).sum())  # log speedups [units]; NaN: too few requests
        for speedup in speedups
        if isinstance(speedup, Estimate) and speedup.units
    ]
    return max(1, min(nums_covered, default=table.num_units))


def _rank_methods(
    overall: dict[tuple[str, float], MethodMetrics], axes: Axes
) -> dict[float, Ranking]:
    """Rank the methods at each temperature by their mean speedups over tasks.

    The speedups in `overall` get the intervals of the ranking.
    """
    rankings = {}
    for temperature in axes.temperatures:
        keys = {method: (method, temperature) for method in axes.methods}
        rankings[temperature] = _rank(overall, keys)
    return rankings


def _rank_on_tasks(
    cells: dict[CellKey, CellMetrics], axes: Axes
) -> dict[tuple[float, str], Ranking]:
    """Rank the methods on each task at each temperature.

    The speedups in `cells` get the intervals of the ranking.
    """
    rankings = {}
    for temperature in axes.temperatures:
        for task in axes.tasks:
            keys = {method: CellKey(method, temperature, task) for method in axes.methods}
            rankings[temperature, task] = _rank(cells, keys)
    return rankings


def _rank(metrics: dict[Any, Any], keys: Mapping[str, Any]) -> Ranking:
    """Rank methods by their speedups, and put the intervals of the ranking into `metrics`.

    `keys` has each method's key in `metrics`, whose values have a `speedup`.
    """
    ranking = rank({method: metrics[key].speedup for method, key in keys.items()}, BASELINE)
    for method, speedup in ranking.speedups.items():
        key = keys[method]
        metrics[key] = replace(metrics[key], speedup=speedup)
    return ranking


def check_arithmetic(name: str) -> Arithmetic:
    """Return the name of an arithmetic (a formula of the speedup) if it is valid.

    Raises:
        UserError: the name is unknown.
    """
    for arithmetic in get_args(Arithmetic):
        if name == arithmetic:
            return arithmetic
    raise unknown_name("arithmetic", name, get_args(Arithmetic))
