"""The numbers of a run, in the order in which reports show them.

Knows which cells a run has and how they combine over tasks. Does not know how a cell's numbers are
defined (`cells`) or shown (`report`).

Means over tasks are arithmetic, as in the papers' tables; `pooled` takes all tasks as one cell.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, get_args

import numpy as np

from specbench.analysis.cells import (
    BASELINE_FAILED,
    NO_BASELINE,
    NO_CHECKPOINT,
    NO_SHARED,
    NOT_RUN,
    WITH_PHASES,
    Arithmetic,
    Cell,
    CellKey,
    CellMetrics,
    measure_cell,
)
from specbench.analysis.costs import NO_COST, Conditions, Cost, measure_costs
from specbench.analysis.divergence import Agreement, find_agreements
from specbench.analysis.frames import CELL_KEY
from specbench.analysis.goodput import parse_goodput
from specbench.analysis.records import BASELINE as BASELINE
from specbench.analysis.records import IntArray, RecordTable, make_table
from specbench.analysis.roofline import NO_BANDWIDTH, Roofline, read_roofline
from specbench.analysis.serving import ServingMetrics, mat_of_blocks, measure_serving
from specbench.analysis.stats.bootstrap import Bootstrap, Draws, Estimate, Missing, Value, mean
from specbench.analysis.warnings import RunWarning, find_warnings
from specbench.errors import unknown_name
from specbench.log.audit import StoredAudit
from specbench.log.header import RunHeader
from specbench.types import Record

if TYPE_CHECKING:
    from pandas import DataFrame

POOLED = ""
"""The task of a cell that takes all tasks together."""


class Run(Protocol):
    """A stored run: its header (`run.json`) and its records."""

    @property
    def header(self) -> RunHeader: ...
    @property
    def records(self) -> Sequence[Record]: ...


@dataclass(frozen=True, slots=True)
class MethodMetrics:
    """A method at one temperature over all tasks.

    The values are means of its cells, with intervals; `pooled` is all tasks as one cell, without.
    """

    speedup: Value
    decode_speedup: Value
    mat: Value
    pooled: CellMetrics


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """All numbers of one run."""

    info: RunHeader
    methods: tuple[str, ...]
    temperatures: tuple[float, ...]
    tasks: tuple[str, ...]
    cells: Mapping[CellKey, CellMetrics]
    overall: Mapping[tuple[str, float], MethodMetrics]
    bootstrap: Bootstrap
    arithmetic: Arithmetic = "ours"
    warnings: tuple[RunWarning, ...] = ()
    left_out: tuple[str, ...] = ()
    costs: Mapping[CellKey, Cost] = field(default_factory=dict)
    roofline: Roofline | Missing = NO_BANDWIDTH
    agreements: Mapping[str, Agreement] = field(default_factory=dict)
    audit: StoredAudit | None = None
    serving: Mapping[tuple[str, float], ServingMetrics] = field(default_factory=dict)

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
    table, info = make_table(run.records), run.header
    frame = table.frame
    methods, temperatures = _methods(info, frame), _temperatures(info, frame)
    tasks = tuple(dict.fromkeys([*info.columns, *frame["task"].unique()]))
    has_phases = info.spec.values.phases or frame["draft_s"].notna().any()
    no_times = WITH_PHASES if has_phases else None
    source = _CellSource(table, info.no_checkpoint, no_times)
    cells: dict[CellKey, CellMetrics] = {}
    overall: dict[tuple[str, float], MethodMetrics] = {}
    for temperature in temperatures:
        for task in (*tasks, POOLED):
            draws = None if task == POOLED else Draws(bootstrap, task)
            for method in methods:
                key = CellKey(method, temperature, task)
                cell = measure_cell(source.cell(key), draws, arithmetic)
                cells[key] = _with_counters(cell, key, info)
        overall |= _overall(cells, methods, temperature, tasks=tasks)
    speedups = {key: metrics.speedup for key, metrics in overall.items()}
    roofline = read_roofline(info.roofline, run.records)
    return RunMetrics(
        info=info,
        methods=methods,
        temperatures=temperatures,
        tasks=tasks,
        cells=cells,
        overall=overall,
        bootstrap=bootstrap,
        arithmetic=arithmetic,
        warnings=find_warnings(table, cells, speedups),
        left_out=tuple(getattr(run, "left_out", ())),
        costs=measure_costs(table, source.rows, Conditions(roofline, no_times)),
        roofline=roofline,
        agreements=find_agreements(table, info.spec.values.history),
        audit=getattr(run, "audit", None),
        serving=measure_serving(
            info, run.records, bootstrap, parse_goodput(info.spec.values.goodput)
        ),
    )


def _with_counters(cell: CellMetrics, key: CellKey, info: RunHeader) -> CellMetrics:
    """The cell with the MAT of its server's counters, if no answer came with its own counts."""
    if isinstance(cell.mat, Estimate) or not cell.num_done or not info.blocks:
        return cell
    own = [
        block
        for block in info.blocks
        if (block.method, block.temperature) == (key.method, key.temperature)
        and key.task in (block.task, POOLED)
    ]
    return replace(cell, mat=mat_of_blocks(own))


def check_arithmetic(name: str) -> Arithmetic:
    """The arithmetic of that name.

    Raises:
        UserError: there is no such arithmetic.
    """
    for known in get_args(Arithmetic):
        if name == known:
            return known
    raise unknown_name("arithmetic", name, get_args(Arithmetic))


class _CellSource:
    """Cells of a run, cut from the table of its records."""

    def __init__(
        self, table: RecordTable, no_checkpoint: Collection[str], no_times: Missing | None
    ) -> None:
        self._table, self._no_checkpoint, self._no_times = table, no_checkpoint, no_times
        self._is_measured = table.columns["is_measured"]
        self.rows = rows_by_cell(table.frame)

    def cell(self, key: CellKey) -> Cell:
        """The rows of a cell, of which there may be none."""
        rows, baseline = self._rows(key), self._rows(replace(key, method=BASELINE))
        is_measured = self._is_measured[rows]
        unpaired = NO_SHARED if self._is_measured[baseline].any() else BASELINE_FAILED
        return Cell(
            key=key,
            table=self._table,
            rows=rows[is_measured],
            failed=rows[~is_measured],
            empty=NO_CHECKPOINT if key.method in self._no_checkpoint else NOT_RUN,
            unpaired=unpaired if len(baseline) else NO_BASELINE,
            no_times=self._no_times,
        )

    def _rows(self, key: CellKey) -> IntArray:
        return self.rows.get(key, np.empty(0, dtype=np.intp))


def rows_by_cell(frame: DataFrame) -> dict[CellKey, IntArray]:
    """The rows of every cell with records, and of all tasks together under `POOLED`.

    Cells stand in the order of their first records.
    """
    by_task: dict[Any, IntArray] = frame.groupby(CELL_KEY, observed=True, sort=False).indices
    pooled: dict[Any, IntArray] = frame.groupby(CELL_KEY[:2], observed=True, sort=False).indices
    cells = {CellKey(*names): rows for names, rows in by_task.items()}
    cells |= {CellKey(names[0], names[1], POOLED): rows for names, rows in pooled.items()}
    return dict(sorted(cells.items(), key=lambda cell: (cell[1][0], cell[0].task == POOLED)))


def _methods(info: RunHeader, frame: DataFrame) -> tuple[str, ...]:
    """The baseline, then the methods asked for, then those that only the records have."""
    asked = [method.spelling for method in info.method_labels]
    names = dict.fromkeys([*asked, *frame["method"].unique()])
    return tuple(sorted(names, key=lambda name: name != BASELINE))


def _temperatures(info: RunHeader, frame: DataFrame) -> tuple[float, ...]:
    asked = info.spec.values.temperatures
    return tuple(sorted({*asked, *frame["temperature"].unique().tolist()}))


def _overall(
    cells: Mapping[CellKey, CellMetrics],
    methods: Sequence[str],
    temperature: float,
    tasks: Sequence[str],
) -> dict[tuple[str, float], MethodMetrics]:
    rows = {m: [cells[CellKey(m, temperature, task)] for task in tasks] for m in methods}
    speedups, decode_speedups, mats = (
        _means({method: [getattr(cell, name) for cell in row] for method, row in rows.items()})
        for name in ("speedup", "decode_speedup", "mat")
    )
    return {
        (method, temperature): MethodMetrics(
            speedup=speedups[method],
            decode_speedup=decode_speedups[method],
            mat=mats[method],
            pooled=cells[CellKey(method, temperature, POOLED)],
        )
        for method in methods
    }


def _means(rows: Mapping[str, Sequence[Value]]) -> dict[str, Value]:
    """Each method's mean over its row of tasks.

    Means are compared down a column, so a method without a task that another one has gets none.
    Tasks that no method has yet are left out; the baseline alone does not make a task count.
    """
    others = [row for method, row in rows.items() if method != BASELINE] or list(rows.values())
    columns = zip(*others, strict=True)
    is_measured = [any(isinstance(value, Estimate) for value in column) for column in columns]
    counted = [i for i, is_any in enumerate(is_measured) if is_any or not any(is_measured)]
    return {method: mean_over_tasks([row[i] for i in counted]) for method, row in rows.items()}


def mean_over_tasks(values: Sequence[Value]) -> Value:
    """The arithmetic mean; missing if the value of any task is."""
    known = [value for value in values if isinstance(value, Estimate)]
    if known and len(known) == len(values):
        return mean(known)
    if known:
        return Missing(f"{len(known)} of {len(values)} tasks")
    reasons = {value.reason for value in values if isinstance(value, Missing)}
    return Missing(reasons.pop() if len(reasons) == 1 else "no task measured")
