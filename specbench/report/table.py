"""The paper's table as a value: what stands in which cell, before anything is drawn.

Knows rows (methods), columns (tasks and their mean), blocks (one per temperature and run), which
cells are best, and the notes below. Knows no markup, colour or width: the renderings do.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.analysis.cells import NOT_RUN, CellKey
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

    @property
    def reason(self) -> str | None:
        """The one reason for which every cell of the row is empty, if there is one."""
        reasons = {cell.reason for cell in self.cells}
        return reasons.pop() if len(reasons) == 1 else None


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of one run at one temperature, and what they say in a sentence."""

    temperature: float
    model: str
    rows: tuple[Row, ...]
    verdict: str

    @property
    def heading(self) -> str:
        return formats.temperature(self.temperature)


@dataclass(frozen=True, slots=True)
class Table:
    """What every rendering draws."""

    title: str
    columns: tuple[Column, ...]
    blocks: tuple[Block, ...]
    notes: tuple[Note, ...]

    @property
    def is_one_model(self) -> bool:
        return len({block.model for block in self.blocks}) < 2


def build_table(runs: Sequence[RunMetrics]) -> Table:
    """The table of one or several runs; several runs are several blocks per temperature."""
    titles = {task: run.info.columns.get(task, task) for run in runs for task in run.tasks}
    columns = [Column(task, title) for task, title in titles.items()]
    if len(columns) > 1:
        columns.append(Column(MEAN, "Mean"))
    names = [run_label(run.info, runs) for run in runs]
    blocks = [
        _block(run, name, temperature, columns)
        for run, name in zip(runs, names, strict=True)
        for temperature in run.temperatures
    ]
    machines = dict.fromkeys(run.info.machine.device for run in runs)
    dtypes = dict.fromkeys(run.info.dtype for run in runs)
    title = f"{'; '.join(names)} on {'; '.join(machines)}, {', '.join(dtypes)}"
    in_order = sorted(blocks, key=lambda block: block.temperature)
    return Table(title, tuple(columns), tuple(in_order), notes(runs))


def run_label(info: RunInfo, runs: Sequence[RunMetrics] = ()) -> str:
    """The model's label. A stand-in says so; runs of one model are told apart by their id."""
    label = info.model_label
    if info.is_stand_in and "stand-in" not in label.lower():
        label += " (stand-in: the real shape, not the real weights)"
    is_ambiguous = sum(run.info.model_label == info.model_label for run in runs) > 1
    return f"{label}, run {info.id}" if is_ambiguous else label


def _block(run: RunMetrics, model: str, temperature: float, columns: Sequence[Column]) -> Block:
    by_column = [_column(run, temperature, column.task) for column in columns]
    rows = tuple(
        Row(method, run.info.method(method).label, cells, run.overall[method, temperature])
        for method, cells in zip(run.methods, zip(*by_column, strict=True), strict=True)
    )
    return Block(temperature, model, rows, verdict(run, temperature))


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
