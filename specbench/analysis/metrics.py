"""A run's records -> the numbers of a report, in the order in which they are shown.

Knows which cells a run has and how they combine over tasks. Refuses to know how a cell's numbers
are defined (`cells`) and how they are shown (`report`).

Means over tasks are arithmetic, as in the papers' tables; `pooled` takes all tasks as one cell.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, get_args

import numpy as np

from specbench.analysis.cells import BASELINE as BASELINE
from specbench.analysis.cells import (
    NO_CHECKPOINT,
    NOT_RUN,
    WITH_PHASES,
    Arithmetic,
    CellKey,
    CellMetrics,
    CellRows,
    Outcomes,
    measure_rows,
    split,
    why_unpaired,
)
from specbench.analysis.columns import IntArray, Table
from specbench.analysis.costs import NO_COST, Conditions, Cost, costs
from specbench.analysis.divergence import Agreement, agreements
from specbench.analysis.doubts import Doubt, find_doubts
from specbench.analysis.header import RunInfo, read_header
from specbench.analysis.roofline import NO_BANDWIDTH, Roofline, read_roofline
from specbench.analysis.stats import Bootstrap, Draws, Estimate, Missing, Value, mean
from specbench.errors import unknown_name
from specbench.types import Record

POOLED = ""
"""The task of a cell that takes all tasks together."""


class Run(Protocol):
    """What is read of a stored run: its header (`run.json`) and its records."""

    @property
    def header(self) -> Mapping[str, Any]: ...
    @property
    def records(self) -> Sequence[Record]: ...


@dataclass(frozen=True, slots=True)
class MethodMetrics:
    """A method at one temperature over all tasks: the means of its cells with their intervals, and
    all tasks as one cell, without intervals.
    """

    speedup: Value
    decode_speedup: Value
    mat: Value
    pooled: CellMetrics


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """All numbers of one run."""

    info: RunInfo
    methods: tuple[str, ...]
    temperatures: tuple[float, ...]
    tasks: tuple[str, ...]
    cells: Mapping[CellKey, CellMetrics]
    overall: Mapping[tuple[str, float], MethodMetrics]
    bootstrap: Bootstrap
    arithmetic: Arithmetic = "ours"
    doubts: tuple[Doubt, ...] = ()
    costs: Mapping[CellKey, Cost] = field(default_factory=dict)
    roofline: Roofline | Missing = NO_BANDWIDTH
    agreements: Mapping[str, Agreement] = field(default_factory=dict)

    def cell(self, method: str, temperature: float, task: str) -> CellMetrics:
        return self.cells[CellKey(method, temperature, task)]

    def pooled(self, method: str, temperature: float) -> CellMetrics:
        return self.overall[method, temperature].pooled

    def cost(self, method: str, temperature: float, task: str = POOLED) -> Cost:
        """What a cell costs: by default all tasks as one."""
        return self.costs.get(CellKey(method, temperature, task), NO_COST)


def measure(
    run: Run, bootstrap: Bootstrap | None = None, arithmetic: Arithmetic = "ours"
) -> RunMetrics:
    """Every number of a run. Nothing is raised for what is missing."""
    bootstrap = bootstrap or Bootstrap()
    grouped = _group(run.records)
    info = read_header(run.header)
    methods = _methods(info, grouped)
    temperatures = _temperatures(info, grouped)
    tasks = tuple(dict.fromkeys([*info.columns, *(key.task for key in grouped if key.task)]))
    no_times = WITH_PHASES if _has_phases(info, run.records) else None
    source = _Source(_outcomes(grouped), info.no_checkpoint, no_times, arithmetic)
    cells = {}
    for temperature in temperatures:
        for task in (*tasks, POOLED):
            draws = None if task == POOLED else Draws(bootstrap, task)
            for method in methods:
                key = CellKey(method, temperature, task)
                cells[key] = measure_rows(source.cell(key), draws)
    overall: dict[tuple[str, float], MethodMetrics] = {}
    for temperature in temperatures:
        overall |= _overall(cells, methods, temperature, tasks)
    speedups = {place: metrics.speedup for place, metrics in overall.items()}
    doubts = find_doubts(run.records, cells, speedups)
    roofline = read_roofline(run.header, run.records)
    return RunMetrics(
        info, methods, temperatures, tasks, cells, overall, bootstrap, arithmetic, doubts,
        costs(grouped, Conditions(roofline, no_times)), roofline,
        agreements(run.records, str(info.spec.get("history"))),
    )  # fmt: skip


def check_arithmetic(name: str) -> Arithmetic:
    """The arithmetic of that name.

    Raises:
        UserError: there is none.
    """
    for known in get_args(Arithmetic):
        if name == known:
            return known
    raise unknown_name("arithmetic", name, get_args(Arithmetic))


def _has_phases(info: RunInfo, records: Iterable[Record]) -> bool:
    return bool(info.spec.get("phases")) or any(record.phases is not None for record in records)


def _group(records: Iterable[Record]) -> dict[CellKey, list[Record]]:
    """The records of every cell, and of all tasks together under `POOLED`."""
    by_names: dict[tuple[str, float, str], list[Record]] = defaultdict(list)
    for record in records:
        key = record.key
        by_names[key.method, key.temperature, key.task].append(record)
    grouped: dict[CellKey, list[Record]] = defaultdict(list)
    for (method, temperature, task), own in by_names.items():
        grouped[CellKey(method, temperature, task)] = own
        grouped[CellKey(method, temperature, POOLED)] += own
    return grouped


def _outcomes(grouped: Mapping[CellKey, Sequence[Record]]) -> dict[CellKey, Outcomes]:
    return {key: split(records) for key, records in grouped.items()}


class _Source:
    """Cuts a run's records into cells, from one table of all that were measured."""

    def __init__(
        self,
        outcomes: Mapping[CellKey, Outcomes],
        no_checkpoint: Collection[str],
        no_times: Missing | None,
        arithmetic: Arithmetic,
    ) -> None:
        self._outcomes, self._no_checkpoint = outcomes, no_checkpoint
        self._no_times, self._arithmetic = no_times, arithmetic
        self._rows: dict[CellKey, IntArray] = {}
        records: list[Record] = []
        baseline: list[int] = []
        for key, outcome in outcomes.items():
            if key.task == POOLED:
                continue
            rows = range(len(records), len(records) + len(outcome.measured))
            records += outcome.measured
            self._rows[key] = np.array(rows, dtype=np.intp)
            if key.method == BASELINE:
                baseline += rows
        self._table = Table(records, baseline)
        for pooled in {replace(key, task=POOLED) for key in self._rows}:
            parts = [
                rows for key, rows in self._rows.items() if replace(key, task=POOLED) == pooled
            ]
            self._rows[pooled] = np.concatenate(parts)

    def cell(self, key: CellKey) -> CellRows:
        """What there is of a cell, which may be nothing."""
        nothing = Outcomes((), ())
        return CellRows(
            key,
            self._table,
            self._rows.get(key, np.empty(0, dtype=np.intp)),
            self._outcomes.get(key, nothing).failed,
            NO_CHECKPOINT if key.method in self._no_checkpoint else NOT_RUN,
            why_unpaired(self._outcomes.get(replace(key, method=BASELINE), nothing)),
            self._no_times,
            self._arithmetic,
        )


def _methods(info: RunInfo, grouped: Iterable[CellKey]) -> tuple[str, ...]:
    """The baseline first, then as asked for, then what only the records know."""
    asked = [method.spelling for method in info.methods]
    names = dict.fromkeys([*asked, *(key.method for key in grouped)])
    return tuple(sorted(names, key=lambda name: name != BASELINE))


def _temperatures(info: RunInfo, grouped: Iterable[CellKey]) -> tuple[float, ...]:
    asked = info.spec.get("temperatures")
    listed = asked if isinstance(asked, list | tuple) else []
    numbers = [float(item) for item in listed if isinstance(item, int | float)]
    return tuple(sorted({*numbers, *(key.temperature for key in grouped)}))


def _overall(
    cells: Mapping[CellKey, CellMetrics],
    methods: Sequence[str],
    temperature: float,
    tasks: Sequence[str],
) -> dict[tuple[str, float], MethodMetrics]:
    rows = {
        method: [cells[CellKey(method, temperature, task)] for task in tasks] for method in methods
    }
    speedups = _means({method: [cell.speedup for cell in row] for method, row in rows.items()})
    decoded = _means(
        {method: [cell.decode_speedup for cell in row] for method, row in rows.items()}
    )
    mats = _means({method: [cell.mat for cell in row] for method, row in rows.items()})
    return {
        (method, temperature): MethodMetrics(
            speedups[method],
            decoded[method],
            mats[method],
            cells[CellKey(method, temperature, POOLED)],
        )
        for method in methods
    }


def _means(rows: Mapping[str, Sequence[Value]]) -> dict[str, Value]:
    """Each method's mean over its row of tasks.

    Means are compared down a column, so a method that lacks a task which another one has gets none.
    Tasks that no method has yet are left out; the baseline alone does not make a task count.
    """
    others = [row for method, row in rows.items() if method != BASELINE] or list(rows.values())
    wanted = [
        any(isinstance(value, Estimate) for value in column) for column in zip(*others, strict=True)
    ]
    return {
        method: _mean(
            [
                value
                for value, is_wanted in zip(row, wanted, strict=True)
                if is_wanted or not any(wanted)
            ]
        )
        for method, row in rows.items()
    }


def _mean(values: Sequence[Value]) -> Value:
    known = [value for value in values if isinstance(value, Estimate)]
    if known and len(known) == len(values):
        return mean(known)
    if known:
        return Missing(f"{len(known)} of {len(values)} tasks")
    reasons = {value.reason for value in values if isinstance(value, Missing)}
    return Missing(reasons.pop() if len(reasons) == 1 else "no task measured")
