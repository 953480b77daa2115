"""The paper's table as a value: what stands in which cell, before anything is drawn.

Knows rows (methods), columns (tasks and their mean), groups of rows (one per run), blocks of groups
(one per temperature), which cells are best, and the notes below. Knows no markup, colour or width:
the renderings do.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from specbench.analysis.cells import NOT_RUN, CellKey
from specbench.analysis.costs import NO_COST, Cost
from specbench.analysis.header import RunInfo
from specbench.analysis.metrics import BASELINE, MethodMetrics, RunMetrics
from specbench.analysis.stats import Estimate, Missing, Value
from specbench.report import formats
from specbench.report.notes import Note, notes
from specbench.report.verdict import verdict

MEAN = "mean"
"""The task name of the column of means."""


@dataclass(frozen=True, slots=True)
class Column:
    """A task, or the mean over the tasks."""

    task: str
    title: str


@dataclass(frozen=True, slots=True)
class Cell:
    """A column's two values for one method: numbers, or the reason for there being none."""

    speedup: Value
    mat: Value
    is_best_speedup: bool = False
    is_best_mat: bool = False

    @property
    def reason(self) -> str | None:
        """Why the cell is empty; None where it has at least one number."""
        if isinstance(self.speedup, Missing) and isinstance(self.mat, Missing):
            return self.mat.reason
        return None


@dataclass(frozen=True, slots=True)
class Row:
    """One method of a block. `label` carries a star when its output may differ from vanilla's."""

    method: str
    label: str
    cells: tuple[Cell, ...]
    overall: MethodMetrics
    cost: Cost = NO_COST

    @property
    def reason(self) -> str | None:
        """The one reason for which every cell of the row is empty, if there is one."""
        reasons = {cell.reason for cell in self.cells}
        return reasons.pop() if len(reasons) == 1 else None


@dataclass(frozen=True, slots=True)
class Group:
    """The rows of one run at one temperature, and what they say in a sentence. `run` is the run's
    place among those that the table is made from.
    """

    run: int
    label: str
    rows: tuple[Row, ...]
    verdict: str


@dataclass(frozen=True, slots=True)
class Block:
    """One temperature: a group of rows per run, as the papers' tables have one per model."""

    temperature: float
    groups: tuple[Group, ...]

    @property
    def heading(self) -> str:
        return formats.temperature(self.temperature)

    @property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all groups."""
        return tuple(row for group in self.groups for row in group.rows)


@dataclass(frozen=True, slots=True)
class Table:
    """What every rendering draws."""

    title: str
    columns: tuple[Column, ...]
    blocks: tuple[Block, ...]
    notes: tuple[Note, ...]

    @property
    def is_one_run(self) -> bool:
        """Whether groups need no label."""
        return len({group.run for block in self.blocks for group in block.groups}) < 2


def build_table(runs: Sequence[RunMetrics]) -> Table:
    """The table of one or several runs; several runs are several groups of rows per temperature."""
    titles = {task: run.info.columns.get(task, task) for run in runs for task in run.tasks}
    columns = [Column(task, title) for task, title in titles.items()]
    if len(columns) > 1:
        columns.append(Column(MEAN, "Mean"))
    labels = run_labels([run.info for run in runs])
    blocks = [
        Block(
            temperature,
            tuple(
                Group(place, label, _rows(run, temperature, columns), verdict(run, temperature))
                for place, (run, label) in enumerate(zip(runs, labels, strict=True))
                if temperature in run.temperatures
            ),
        )
        for temperature in sorted({t for run in runs for t in run.temperatures})
    ]
    names = dict.fromkeys(_model_label(run.info) for run in runs)
    machines = dict.fromkeys(run.info.machine.device for run in runs)
    dtypes = dict.fromkeys(run.info.dtype for run in runs)
    title = f"{'; '.join(names)} on {'; '.join(machines)}, {', '.join(dtypes)}"
    return Table(title, tuple(columns), tuple(blocks), notes(runs, labels))


def run_labels(infos: Sequence[RunInfo]) -> list[str]:
    """What to call each run among these: its model, and as much more as tells them apart."""
    labels = [_model_label(info) for info in infos]
    facets = (
        [info.machine.device.partition(",")[0] for info in infos],
        [info.dtype for info in infos],
        [f"run {info.id}" for info in infos],
    )
    for facet in facets:
        if len(set(facet)) == 1:
            continue
        times = Counter(labels)
        labels = [
            f"{label}, {more}" if times[label] > 1 else label
            for label, more in zip(labels, facet, strict=True)
        ]
    return labels


def _model_label(info: RunInfo) -> str:
    """The model's label. A stand-in says so."""
    if info.is_stand_in and "stand-in" not in info.model_label.lower():
        return f"{info.model_label} (stand-in: the real shape, not the real weights)"
    return info.model_label


def _rows(run: RunMetrics, temperature: float, columns: Sequence[Column]) -> tuple[Row, ...]:
    by_column = [_column(run, temperature, column.task) for column in columns]
    return tuple(
        Row(
            method,
            run.info.method(method).label,
            cells,
            run.overall[method, temperature],
            run.cost(method, temperature),
        )
        for method, cells in zip(run.methods, zip(*by_column, strict=True), strict=True)
    )


def _column(run: RunMetrics, temperature: float, task: str) -> list[Cell]:
    """One cell per method. All that are best at the two digits shown are best."""
    values = [_values(run, method, temperature, task) for method in run.methods]
    is_contest = [method != BASELINE for method in run.methods]
    best_speedup = _best([speedup for speedup, _ in values], is_contest)
    best_mat = _best([mat for _, mat in values], is_contest)
    return [
        Cell(speedup, mat, _shown(speedup) in best_speedup, _shown(mat) in best_mat)
        for speedup, mat in values
    ]


def _values(run: RunMetrics, method: str, temperature: float, task: str) -> tuple[Value, Value]:
    if task == MEAN:
        overall = run.overall[method, temperature]
        return overall.speedup, overall.mat
    cell = run.cells.get(CellKey(method, temperature, task))
    return (cell.speedup, cell.mat) if cell else (NOT_RUN, NOT_RUN)


def _shown(value: Value) -> float | None:
    return round(value.value, 2) if isinstance(value, Estimate) else None


def _best(values: Sequence[Value], is_contest: Sequence[bool]) -> set[float]:
    """The best value, where there is one to beat: the baseline alone is no contest."""
    shown = [_shown(value) for value in values]
    entered = [number for number, is_in in zip(shown, is_contest, strict=True) if is_in]
    if not any(number is not None for number in entered):
        return set()
    return {max(number for number in shown if number is not None)}
