"""The numbers of a run, in the order in which reports show them.

Decides which cells a run has and how they combine over tasks. `cells` defines the numbers of a
cell, and `report` shows them.

Means over tasks are arithmetic, as in the papers' tables; `pooled` takes all tasks as one cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from specbench.analysis.cells import WITH_PHASES, Arithmetic, CellKey, CellMetrics, CellSource
from specbench.analysis.cells import rows_by_cell as rows_by_cell
from specbench.analysis.cheats import find_cheats
from specbench.analysis.costs import NO_COST, Cost, Roofline, measure_cost, read_roofline
from specbench.analysis.divergence import Agreement, find_agreements
from specbench.analysis.ranking import Ranking, rank
from specbench.analysis.records import BASELINE as BASELINE
from specbench.analysis.records import POOLED as POOLED
from specbench.analysis.records import RecordTable, find_survivors, make_table
from specbench.analysis.serving import ServingMetrics, mat_of_blocks, measure_serving
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.stats.combining import mean
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.analysis.stats.scope import ONE_PASS, Scope
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
    """A method at one temperature over all tasks.

    The values are means of its cells, with intervals. `pooled` is all tasks as one cell,
    without intervals; its MAT is over the completions that vanilla finished too, as costs are.
    `partial` is set if the method lacks tasks, so that its numbers compare with no others.
    """

    speedup: Value
    decode_speedup: Value
    mat: Value
    pooled: CellMetrics
    partial: Missing | None = None


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """All numbers of one run, or of a pool of runs.

    `scope` tells what the intervals of times cover. `rankings` has the fastest method at each
    temperature, with the tests behind every claim about it; `task_rankings` has the same for
    each task.
    """

    info: RunHeader
    methods: tuple[str, ...]
    temperatures: tuple[float, ...]
    tasks: tuple[str, ...]
    cells: Mapping[CellKey, CellMetrics]
    overall: Mapping[tuple[str, float], MethodMetrics]
    bootstrap: Bootstrap
    roofline: Roofline | Missing
    arithmetic: Arithmetic = "ours"
    warnings: tuple[RunWarning, ...] = ()
    left_out: tuple[str, ...] = ()
    missing_text: str = ""
    costs: Mapping[CellKey, Cost] = field(default_factory=dict)
    agreements: Mapping[str, Agreement] = field(default_factory=dict)
    audit: StoredAudit | None = None
    serving: Mapping[tuple[str, float], ServingMetrics] = field(default_factory=dict)
    scope: Scope = ONE_PASS
    rankings: Mapping[float, Ranking] = field(default_factory=dict)
    task_rankings: Mapping[tuple[float, str], Ranking] = field(default_factory=dict)

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
    table, info = make_table(run.records, run.run_of_repeat, run.header.blocks), run.header
    frame, survivors = table.frame, find_survivors(table.frame)
    methods, asked = _methods(info, frame), info.spec.values.temperatures
    temperatures = tuple(sorted({*asked, *frame["temperature"].unique().tolist()}))
    tasks = tuple(dict.fromkeys([*info.columns, *frame["task"].unique()]))
    has_phases = info.spec.values.phases or frame["draft_s"].notna().any()
    no_times = WITH_PHASES if has_phases else None
    source = CellSource(table, info, survivors, no_times)
    roofline = read_roofline(info.roofline, run.records, info.threads)
    rows = source.shared_rows
    costs = {key: measure_cost(key, table, rows[key], roofline, no_times) for key in rows}
    cells: dict[CellKey, CellMetrics] = {}
    overall: dict[tuple[str, float], MethodMetrics] = {}
    for temperature in temperatures:
        for task in (*tasks, POOLED):
            draws = None if task == POOLED else Draws(bootstrap, task)
            for method in methods:
                key = CellKey(method, temperature, task)
                cell = source.measure_cell(key, draws, arithmetic)
                cell = _with_counters(cell, key, info, table.served.contradictions)
                cells[key] = _all_steps(cell, costs.get(key)) if task == POOLED else cell
        overall |= _overall(cells, methods, temperature, tasks=tasks)
    rankings = {at: _rank(overall, {m: (m, at) for m in methods}) for at in temperatures}
    task_rankings = {
        (at, task): _rank(cells, {m: CellKey(m, at, task) for m in methods})
        for at, task in product(temperatures, tasks)
    }
    agreements = find_agreements(table, info.spec.values.history)
    serving = measure_serving(info, table, bootstrap, parse_goodput(info.spec.values.goodput))
    has_clocks = bool(info.gpu and info.gpu.sm_clock_mhz)
    return RunMetrics(
        info=info,
        methods=methods,
        temperatures=temperatures,
        tasks=tasks,
        cells=cells,
        overall=overall,
        bootstrap=bootstrap,
        arithmetic=arithmetic,
        warnings=(
            *find_cheats(table, info),
            *find_idle_drafts(run.records, info.blocks),
            *find_warnings(table, cells, rankings, survivors, has_clocks=has_clocks),
        ),
        left_out=run.left_out,
        missing_text=run.missing_text,
        costs=costs,
        roofline=roofline,
        agreements={m: agreements[m] for m in methods if m in agreements},
        audit=run.audit,
        serving={key: one for key, one in serving.items() if key in overall},
        scope=Scope("runs" if run.run_of_repeat else "passes", _num_known(overall, table)),
        rankings=rankings,
        task_rankings=task_rankings,
    )


def _num_known(overall: Mapping[Any, MethodMetrics], table: RecordTable) -> int:
    """The passes or runs that all intervals cover: not those with few of the requests."""
    speedups = [one.speedup for one in overall.values()]
    units = [one.units[0] for one in speedups if isinstance(one, Estimate) and one.units]
    return max(1, min((int(np.isfinite(one).sum()) for one in units), default=table.num_units))


def _rank(numbers: dict[Any, Any], keys: Mapping[str, Any]) -> Ranking:
    """Rank methods by their numbers, whose speedups get the intervals of the tests."""
    ranking = rank({method: numbers[key].speedup for method, key in keys.items()}, BASELINE)
    for method, value in ranking.speedups.items():
        numbers[keys[method]] = replace(numbers[keys[method]], speedup=value)
    return ranking


def _with_counters(
    cell: CellMetrics, key: CellKey, info: RunHeader, contradictions: Mapping[BlockKey, str]
) -> CellMetrics:
    """The cell with the MAT of its server's counters, if no answer came with its own counts.

    MAT is missing if one of its blocks contradicts itself.
    """
    task = key.task.partition(BETWEEN)[0]
    own = [
        block
        for block in info.blocks
        if (block.method, block.temperature) == (key.method, key.temperature)
        and task in (block.task, POOLED)
    ]
    if texts := [text for block in own if (text := contradictions.get(block_key(block)))]:
        return replace(cell, mat=Missing(texts[0]), mat_macro=Missing(texts[0]))
    if isinstance(cell.mat, Estimate) or not cell.num_done or not own or task != key.task:
        return cell
    return replace(cell, mat=mat_of_blocks(own))


def _all_steps(cell: CellMetrics, cost: Cost | None) -> CellMetrics:
    """The cell of all tasks, with the MAT of its costs if they are known."""
    is_known = cost and isinstance(cost.mat, Estimate) and isinstance(cell.mat, Estimate)
    return replace(cell, mat=cost.mat) if cost and is_known else cell


def check_arithmetic(name: str) -> Arithmetic:
    """The arithmetic of that name.

    Raises:
        UserError: the name is unknown.
    """
    for known in get_args(Arithmetic):
        if name == known:
            return known
    raise unknown_name("arithmetic", name, get_args(Arithmetic))


def _methods(info: RunHeader, frame: DataFrame) -> tuple[str, ...]:
    """The baseline, then the methods asked for, then those that only the records have."""
    asked = [method.spelling for method in info.method_labels]
    names = dict.fromkeys([*asked, *frame["method"].unique()])
    return tuple(sorted(names, key=lambda name: name != BASELINE))


def _overall(
    cells: Mapping[CellKey, CellMetrics],
    methods: Sequence[str],
    temperature: float,
    tasks: Sequence[str],
) -> dict[tuple[str, float], MethodMetrics]:
    rows = {m: [cells[CellKey(m, temperature, task)] for task in tasks] for m in methods}
    means = {
        name: _means({method: [getattr(one, name) for one in row] for method, row in rows.items()})
        for name in ("speedup", "decode_speedup", "mat")
    }
    columns = zip(*rows.values(), strict=True)
    num_tasks = sum(any(cell.num_done for cell in column) for column in columns)
    return {
        (method, temperature): MethodMetrics(
            **{name: found[method] for name, found in means.items()},
            pooled=cells[CellKey(method, temperature, POOLED)],
            partial=partial(sum(cell.num_done > 0 for cell in row), num_tasks),
        )
        for method, row in rows.items()
    }


def _means(rows: Mapping[str, Sequence[Value]]) -> dict[str, Value]:
    """Each method's mean over its row of tasks.

    Means are compared down a column, so a method that lacks a task of another one gets no
    mean. Tasks without any method but the baseline are left out.
    """
    others = [row for method, row in rows.items() if method != BASELINE] or list(rows.values())
    columns = zip(*others, strict=True)
    is_measured = [any(isinstance(value, Estimate) for value in column) for column in columns]
    counted = [i for i, is_any in enumerate(is_measured) if is_any or not any(is_measured)]
    return {method: mean_over_tasks([row[i] for i in counted]) for method, row in rows.items()}


def partial(number: int, num_tasks: int) -> Missing | None:
    """The reason why a mean over this number of tasks does not compare with one over all."""
    return Missing(f"{number} of {num_tasks} tasks") if 0 < number < num_tasks else None


def mean_over_tasks(values: Sequence[Value]) -> Value:
    """The arithmetic mean; missing if the value of any task is."""
    known = [value for value in values if isinstance(value, Estimate)]
    if known and len(known) == len(values):
        return mean(known)
    if known and (found := partial(len(known), len(values))):
        return found
    reasons = {value.reason for value in values if isinstance(value, Missing)}
    return Missing(reasons.pop() if len(reasons) == 1 else "no task measured")
