"""The numbers of a run, in the order in which reports show them.

Decides which cells a run has and how they combine over tasks. `cells` defines the numbers of a
cell, and `report` shows them.

Means over tasks are arithmetic, as in the papers' tables; `pooled` takes all tasks as one cell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from specbench.analysis.cells import WITH_PHASES, Arithmetic, CellKey, CellMetrics, CellSource
from specbench.analysis.cells import rows_by_cell as rows_by_cell
from specbench.analysis.cheats import find_cheats
from specbench.analysis.costs import NO_COST, Cost, Roofline, measure_cost, read_roofline
from specbench.analysis.divergence import Agreement, find_agreements
from specbench.analysis.means import means_of_methods, reason_if_partial
from specbench.analysis.ranking import Ranking, rank
from specbench.analysis.records import BASELINE as BASELINE
from specbench.analysis.records import POOLED as POOLED
from specbench.analysis.records import RecordTable, make_table
from specbench.analysis.server_counters import mat_of_blocks
from specbench.analysis.serving import ServingMetrics, measure_serving
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.analysis.stats.scope import ONE_PASS, Scope
from specbench.analysis.survivors import find_survivors
from specbench.analysis.warnings import RunWarning, find_idle_drafts, find_warnings
from specbench.errors import unknown_name
from specbench.log.audit import StoredAudit
from specbench.log.header import RunHeader
from specbench.log.run import BETWEEN, BlockKey, Run, block_key
from specbench.log.spec import parse_goodput

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True)
class MethodMetrics:
    """A method at one temperature over all tasks. The values are means of its cells."""

    speedup: Value
    decode_speedup: Value
    mat: Value

    pooled: CellMetrics
    """All tasks as one cell, without intervals. Its MAT is over the completions that vanilla
    finished too, as costs are.
    """

    partial: Missing | None = None
    """The reason if the method lacks tasks, so that its numbers compare with no others."""


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """All numbers of one run, or of a pool of runs."""

    info: RunHeader
    methods: tuple[str, ...]
    temperatures: tuple[float, ...]
    tasks: tuple[str, ...]
    cells: Mapping[CellKey, CellMetrics]

    overall: Mapping[tuple[str, float], MethodMetrics]
    """By method and temperature."""

    bootstrap: Bootstrap
    roofline: Roofline | Missing
    arithmetic: Arithmetic = "ours"
    warnings: tuple[RunWarning, ...] = ()
    left_out: tuple[str, ...] = ()
    missing_text: str = ""
    costs: Mapping[CellKey, Cost] = field(default_factory=dict)

    agreements: Mapping[str, Agreement] = field(default_factory=dict)
    """By method."""

    audit: StoredAudit | None = None

    serving: Mapping[tuple[str, float], ServingMetrics] = field(default_factory=dict)
    """By method and temperature."""

    scope: Scope = ONE_PASS
    """What the intervals of times cover."""

    rankings: Mapping[float, Ranking] = field(default_factory=dict)
    """The fastest method at each temperature, with the tests behind every claim about it."""

    task_rankings: Mapping[tuple[float, str], Ranking] = field(default_factory=dict)
    """The same by temperature and task."""

    def cell(self, method: str, temperature: float, task: str) -> CellMetrics:
        return self.cells[CellKey(method, temperature, task)]

    def pooled(self, method: str, temperature: float) -> CellMetrics:
        return self.overall[method, temperature].pooled

    def cost(self, method: str, temperature: float, task: str = POOLED) -> Cost:
        """The costs of a cell: by default of all tasks as one."""
        return self.costs.get(CellKey(method, temperature, task), NO_COST)


def measure(
    run: Run, bootstrap: Bootstrap | None = None, arithmetic: Arithmetic = "ours"
) -> RunMetrics:
    """Measure a run. Never raises for missing records or header entries."""
    bootstrap = bootstrap or Bootstrap()
    header = run.header
    spec = header.spec.values
    table = make_table(run.records, run.run_of_repeat, header.blocks)
    frame = table.frame
    survivors = find_survivors(frame)
    methods = _methods(header, frame)
    temperatures = tuple(sorted({*spec.temperatures, *frame["temperature"].unique().tolist()}))
    tasks = tuple(dict.fromkeys([*header.columns, *frame["task"].unique()]))

    has_phases = spec.phases or frame["draft_s"].notna().any()
    no_times = WITH_PHASES if has_phases else None
    source = CellSource(table, header, survivors, no_times)
    roofline = read_roofline(header.roofline, run.records, header.threads)
    costs = {
        key: measure_cost(key, table, rows, roofline, no_times)
        for key, rows in source.shared_rows.items()
    }
    cells: dict[CellKey, CellMetrics] = {}
    overall: dict[tuple[str, float], MethodMetrics] = {}
    for temperature in temperatures:
        for task in (*tasks, POOLED):
            draws = None if task == POOLED else Draws(bootstrap, task)
            for method in methods:
                key = CellKey(method, temperature, task)
                cell = source.measure_cell(key, draws, arithmetic)
                cell = _with_counters(cell, key, header, table.served.contradictions)
                if task == POOLED:
                    cell = _with_mat_of_costs(cell, costs.get(key))
                cells[key] = cell
        overall |= _overall(cells, methods, temperature, tasks=tasks)

    # Ranking replaces speedups in `overall` and `cells` by those with the intervals of its tests.
    rankings: dict[float, Ranking] = {}
    task_rankings: dict[tuple[float, str], Ranking] = {}
    for temperature in temperatures:
        keys = {method: (method, temperature) for method in methods}
        rankings[temperature] = _rank(overall, keys)
        for task in tasks:
            cell_keys = {method: CellKey(method, temperature, task) for method in methods}
            task_rankings[temperature, task] = _rank(cells, cell_keys)

    agreements = find_agreements(table, spec.history)
    serving = measure_serving(header, table, bootstrap, parse_goodput(spec.goodput))
    has_clocks = bool(header.gpu and header.gpu.sm_clock_mhz)
    warnings = (
        *find_cheats(table, header),
        *find_idle_drafts(run.records, header.blocks),
        *find_warnings(table, cells, rankings, survivors, has_clocks=has_clocks),
    )
    return RunMetrics(
        info=header,
        methods=methods,
        temperatures=temperatures,
        tasks=tasks,
        cells=cells,
        overall=overall,
        bootstrap=bootstrap,
        arithmetic=arithmetic,
        warnings=warnings,
        left_out=run.left_out,
        missing_text=run.missing_text,
        costs=costs,
        roofline=roofline,
        agreements={method: agreements[method] for method in methods if method in agreements},
        audit=run.audit,
        serving={key: numbers for key, numbers in serving.items() if key in overall},
        scope=Scope("runs" if run.run_of_repeat else "passes", _num_covered(overall, table)),
        rankings=rankings,
        task_rankings=task_rankings,
    )


def _num_covered(overall: Mapping[Any, MethodMetrics], table: RecordTable) -> int:
    """The passes or runs that all intervals cover: not those with few of the requests."""
    nums_covered = []
    for method in overall.values():
        speedup = method.speedup
        if isinstance(speedup, Estimate) and speedup.units:
            unit_logs = speedup.units[0]
            nums_covered.append(int(np.isfinite(unit_logs).sum()))
    return max(1, min(nums_covered, default=table.num_units))


def _rank(metrics: dict[Any, Any], keys: Mapping[str, Any]) -> Ranking:
    """Rank methods by their metrics, whose speedups get the intervals of the tests."""
    ranking = rank({method: metrics[key].speedup for method, key in keys.items()}, BASELINE)
    for method, speedup in ranking.speedups.items():
        key = keys[method]
        metrics[key] = replace(metrics[key], speedup=speedup)
    return ranking


def _with_counters(
    cell: CellMetrics, key: CellKey, header: RunHeader, contradictions: Mapping[BlockKey, str]
) -> CellMetrics:
    """The cell with the MAT of its server's counters, if no answer came with its own counts.

    MAT is missing if one of its blocks contradicts itself.
    """
    task = key.task.partition(BETWEEN)[0]  # without its category
    blocks = [
        block
        for block in header.blocks
        if (block.method, block.temperature) == (key.method, key.temperature)
        and task in (block.task, POOLED)
    ]
    for block in blocks:
        contradiction = contradictions.get(block_key(block))
        if contradiction:
            missing = Missing(contradiction)
            return replace(cell, mat=missing, mat_macro=missing)
    if isinstance(cell.mat, Estimate) or not cell.num_done or not blocks:
        return cell
    if task != key.task:  # counters are of a whole task
        return cell
    return replace(cell, mat=mat_of_blocks(blocks))


def _with_mat_of_costs(cell: CellMetrics, cost: Cost | None) -> CellMetrics:
    """The cell of all tasks, with the MAT of its costs if both are known."""
    if cost is None or isinstance(cost.mat, Missing) or isinstance(cell.mat, Missing):
        return cell
    return replace(cell, mat=cost.mat)


def check_arithmetic(name: str) -> Arithmetic:
    """The arithmetic of that name.

    Raises:
        UserError: the name is unknown.
    """
    for arithmetic in get_args(Arithmetic):
        if name == arithmetic:
            return arithmetic
    raise unknown_name("arithmetic", name, get_args(Arithmetic))


def _methods(header: RunHeader, frame: DataFrame) -> tuple[str, ...]:
    """The baseline, then the methods asked for, then those that only the records have."""
    asked = [method.spelling for method in header.method_labels]
    methods = dict.fromkeys([*asked, *frame["method"].unique()])
    return tuple(sorted(methods, key=lambda method: method != BASELINE))


def _overall(
    cells: Mapping[CellKey, CellMetrics],
    methods: Sequence[str],
    temperature: float,
    tasks: Sequence[str],
) -> dict[tuple[str, float], MethodMetrics]:
    """The metrics over all tasks of each method at a temperature."""
    rows: dict[str, list[CellMetrics]] = {}
    for method in methods:
        rows[method] = [cells[CellKey(method, temperature, task)] for task in tasks]

    def means(number: Callable[[CellMetrics], Value]) -> dict[str, Value]:
        return means_of_methods({m: [number(cell) for cell in row] for m, row in rows.items()})

    speedups = means(lambda cell: cell.speedup)
    decode_speedups = means(lambda cell: cell.decode_speedup)
    mats = means(lambda cell: cell.mat)
    columns = zip(*rows.values(), strict=True)
    num_tasks = sum(any(cell.num_done for cell in column) for column in columns)
    overall = {}
    for method, row in rows.items():
        num_measured = sum(cell.num_done > 0 for cell in row)
        overall[method, temperature] = MethodMetrics(
            speedup=speedups[method],
            decode_speedup=decode_speedups[method],
            mat=mats[method],
            pooled=cells[CellKey(method, temperature, POOLED)],
            partial=reason_if_partial(num_measured, num_tasks),
        )
    return overall
