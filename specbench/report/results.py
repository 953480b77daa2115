"""The results of a report by method and task, for each run and temperature.

`arrange` fills these types, and `sections` turns them into tables.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from specbench.analysis.cells import NOT_RUN, CellKey
from specbench.analysis.costs import NO_COST, Cost
from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.overall import MethodMetrics
from specbench.analysis.ranking import ALONE, is_alone
from specbench.analysis.serving import ServingMetrics
from specbench.analysis.stats.estimates import Missing, Value
from specbench.analysis.step_bins import StepBin
from specbench.log.header import RunHeader
from specbench.log.run import BETWEEN, Run
from specbench.report import formats
from specbench.report.answers import Answers, pick_answers
from specbench.report.load_notes import LOAD_KEYS
from specbench.report.texts import Note

if TYPE_CHECKING:
    from specbench.report.plots.style import Plot

MEAN = "mean"
"""The name of the column with the means over tasks."""
MEAN_TITLE = "Mean"
"""The heading of that column."""
COLUMNS = ("speedup", "mat", "mean")
"""The columns of a LaTeX table: speedups and mean accepted tokens on tasks, and the means."""


@dataclass(frozen=True, slots=True)
class Task:
    """A column of the papers' table: a task, or the mean over the tasks."""

    name: str
    """The name of the task in records, or `MEAN`."""
    title: str
    """The heading."""
    n: str = ""
    """The number of samples as text."""

    @property
    def head(self) -> str:
        return f"{self.title}, n={self.n}" if self.n else self.title


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The speedup and the MAT of a method on a task. Either may be missing, with a reason."""

    speedup: Value
    """The speedup over vanilla."""
    mat: Value
    """The mean accepted tokens."""
    is_best_speedup: bool = False
    """True if no method has a higher speedup on the task, in the digits that are shown."""
    is_best_mat: bool = False
    """True if no method has a higher MAT on the task, in the digits that are shown."""
    p_value: float | None = None
    """The p-value of "the speedup is 1", corrected for all methods of the task. It is None if this
    was not tested.
    """

    @property
    def mark(self) -> str:
        """The mark "~" if only the interval of the speedup shows a difference, else ""."""
        return ALONE if is_alone(self.speedup, self.p_value) else ""

    @property
    def reason(self) -> str | None:
        """The reason if both numbers are missing, or None if there is a number."""
        if isinstance(self.speedup, Missing) and isinstance(self.mat, Missing):
            return self.mat.reason
        return None


@dataclass(frozen=True, slots=True)
class MethodResults:
    """One method of a run at one temperature."""

    method: str
    """The spelling in records, such as "pld:ngram=2"."""
    label: str
    """The name in tables, with a star if the output may differ from vanilla's."""
    tasks: tuple[TaskResult, ...]
    """The results on the report's tasks, in their order [tasks]."""
    overall: MethodMetrics
    """The metrics over all tasks."""
    cost: Cost = NO_COST
    """The cost of the steps."""
    serving: ServingMetrics | None = None
    """The metrics of the method's server, or None if it ran in this process."""
    step_bins: tuple[StepBin, ...] = ()
    """The MAT by position in the answer, by length of the context, and by turn."""

    @property
    def reason(self) -> str | None:
        """The reason if all tasks lack numbers; None if one has a number, or if reasons differ."""
        reasons = {task.reason for task in self.tasks}
        return reasons.pop() if len(reasons) == 1 else None


@dataclass(frozen=True)
class Source:
    """A run of a report."""

    label: str
    """The name that distinguishes the run from the others."""
    metrics: RunMetrics
    """The metrics of the run."""
    run: Run
    """The header and the records."""

    @property
    def info(self) -> RunHeader:
        return self.metrics.info

    @cached_property
    def answers(self) -> tuple[Answers, ...]:
        """The answers that a page shows."""
        return pick_answers(self.run)

    @cached_property
    def categories(self) -> RunMetrics | None:
        """The metrics by category instead of by task, or None if no task has several categories."""
        category_of_sample = {
            sample_id: f"{prompts.task}{BETWEEN}{category}"
            for prompts in self.info.prompts
            for category, sample_ids in prompts.categories.items()
            for sample_id in sample_ids
        }
        if not category_of_sample:
            return None
        metrics = self.metrics
        return measure(self.run.of(category_of_sample), metrics.bootstrap, metrics.arithmetic)


@dataclass(frozen=True, slots=True)
class RunResults:
    """The methods of one run at one temperature."""

    source: Source
    """The run."""
    methods: tuple[MethodResults, ...]
    """The results of the methods, in the order of the rows in tables."""
    verdict: str
    """A sentence or two about which method is the fastest."""
    recommendation: str
    """The recommended method and the next command, or the reason why none is recommended.

    It may be "".
    """


@dataclass(frozen=True, slots=True)
class Block:
    """The results of all runs that have a temperature."""

    temperature: float
    runs: tuple[RunResults, ...]

    @property
    def heading(self) -> str:
        headers = [run.source.info for run in self.runs]
        if all(header.imported and not header.imported.tells("temperatures") for header in headers):
            return "Unknown temperature"
        return formats.temperature(self.temperature)

    @property
    def recommendations(self) -> list[str]:
        """The recommendations, with the names of the runs if recommendations differ."""
        labels_by_text: dict[str, list[str]] = {}
        for run in self.runs:
            if run.recommendation:
                labels_by_text.setdefault(run.recommendation, []).append(run.source.label)
        return [
            text if len(labels) == len(self.runs) else f"{', '.join(labels)}: {text}"
            for text, labels in labels_by_text.items()
        ]

    @property
    def methods(self) -> tuple[MethodResults, ...]:
        """The methods of all runs."""
        return tuple(method for run in self.runs for method in run.methods)

    def only(self, is_kept: Callable[[MethodResults], bool]) -> "Block":
        """Return the block with only the methods for which `is_kept` is true."""
        runs = [replace(run, methods=tuple(filter(is_kept, run.methods))) for run in self.runs]
        return replace(self, runs=tuple(runs))


@dataclass(frozen=True, slots=True)
class Report:
    """All that a report shows, in any format: runs with their metrics, notes and plots."""

    sources: tuple[Source, ...]
    """The runs."""
    title: str
    """The models, machines and dtypes."""
    prompts: str
    """The number of prompts from each source in words, or "" if it is unknown."""
    tasks: tuple[Task, ...]
    """The columns of the papers' table. If there are several tasks, their mean comes last."""
    blocks: tuple[Block, ...]
    """The results at each temperature."""
    notes: tuple[Note, ...]
    """Facts, definitions, missing numbers and warnings."""
    scope: str
    """The scope of the intervals of times, such as "over prompts and 3 passes"."""
    plots: "tuple[Plot, ...]" = ()
    """The plots that have data."""
    columns: tuple[str, ...] = COLUMNS
    """The columns of the LaTeX table, which are some of `COLUMNS`."""
    ours: tuple[str, ...] = ()
    """The methods that the LaTeX table marks as the author's."""

    @property
    def caption(self) -> str:
        """The title and the prompts."""
        return f"{self.title}; {self.prompts}" if self.prompts else self.title

    @property
    def is_one_run(self) -> bool:
        """True if there is only one run, which needs no label."""
        return len(self.sources) < 2

    @property
    def load_notes(self) -> list[Note]:
        """The notes about loads, which are shown first."""
        return [note for note in self.notes if note.key in LOAD_KEYS]

    @property
    def later_notes(self) -> list[Note]:
        """All other notes, which are shown below the tables."""
        return [note for note in self.notes if note.key not in LOAD_KEYS]

    @property
    def is_one_pass(self) -> bool:
        """True if no run has a second pass, so that nothing is claimed."""
        return not any(source.metrics.scope.is_estimated for source in self.sources)

    def methods_of(self, source: Source) -> tuple[str, ...]:
        """Return the methods of a run in the order of its first table, for all lists of a page."""
        runs = [run for block in self.blocks for run in block.runs if run.source is source]
        methods = runs[0].methods if runs else ()
        return tuple(method.method for method in methods)

    @property
    def panels(self) -> list[tuple[str, RunResults]]:
        """Pairs of a heading and the results of a run at a temperature, in the tables' order."""
        return [
            (block.heading if self.is_one_run else f"{block.heading}, {run.source.label}", run)
            for block in self.blocks
            for run in block.runs
        ]

    @property
    def labels(self) -> dict[str, str]:
        """The labels of methods by spelling, without methods that have a `reason`."""
        methods = [method for block in self.blocks for method in block.methods]
        return {method.method: method.label for method in methods if not method.reason}


def task_result(run: RunMetrics, key: CellKey) -> TaskResult:
    """Return the speedup and MAT of a method on a task, or over all tasks for the task `MEAN`.

    The result also has the p-value of "as fast as vanilla", which is None if this was not tested.
    Numbers are missing if the method did not run there. `key` has the method, the temperature and
    the task.
    """
    p_value = p_value_of(run, key)  # corrected for the methods of the task
    if key.task == MEAN:
        overall = run.overall[key.method, key.temperature]  # means over the tasks
        return TaskResult(overall.speedup, overall.mat, p_value=p_value)
    cell = run.cells.get(key)  # the numbers on the task
    if cell is None:
        # the method did not run
        return TaskResult(NOT_RUN, NOT_RUN, p_value=p_value)
    return TaskResult(cell.speedup, cell.mat, p_value=p_value)


def p_value_of(run: RunMetrics, key: CellKey) -> float | None:
    """Return the p-value of "as fast as vanilla", corrected for all methods.

    It is None if this was not tested. `key.task` is a task, or `MEAN` for the mean over tasks.
    """
    if key.task == MEAN:
        ranking = run.rankings.get(key.temperature)
    else:
        ranking = run.task_rankings.get((key.temperature, key.task))
    return ranking.against_baseline.get(key.method) if ranking else None
