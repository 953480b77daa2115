"""Arrange the results of runs as in the papers, with a row per method and a column per task.

This module decides which numbers are shown together, and which are the best in their column.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from specbench.analysis.cells import CellKey
from specbench.analysis.columns import value_or_none
from specbench.analysis.means import reason_if_partial
from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.overall import MethodMetrics
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.log.run import Run
from specbench.report import facts
from specbench.report.definition_notes import scope_text
from specbench.report.notes import notes
from specbench.report.recommendation import recommendation
from specbench.report.results import (
    MEAN,
    MEAN_TITLE,
    Block,
    MethodResults,
    Report,
    RunResults,
    Source,
    Task,
    TaskResult,
    task_result,
)
from specbench.report.run_labels import run_labels
from specbench.report.verdict import verdict

Sort = Literal["paper", "speedup"]
"""The order of the methods: "paper" keeps the order of the run, "speedup" puts the fastest first.
"""


def arrange(measured: Sequence[RunMetrics], runs: Sequence[Run], sort: Sort) -> Report:
    """Return the report of one or several runs, with the methods sorted by `sort`.

    `measured` has the metrics of each run in `runs`.
    """
    headers = [run.info for run in measured]
    labels = run_labels(headers, [facts.load_text(run) for run in measured])
    sources = tuple(
        Source(label, metrics, run)
        for label, metrics, run in zip(labels, measured, runs, strict=True)
    )
    tasks = _tasks(measured)
    temperatures = {temperature for run in measured for temperature in run.temperatures}
    prompts = [facts.prompts_text(header) for header in headers]
    return Report(
        sources,
        title=_title(measured),
        prompts=_distinct(text for text in prompts if text),
        tasks=tasks,
        blocks=tuple(
            _block(sources, temperature, tasks, sort) for temperature in sorted(temperatures)
        ),
        notes=notes(measured, labels),
        scope=scope_text(measured),
    )


def _title(runs: Sequence[RunMetrics]) -> str:
    """Return the models, machines and dtypes of the runs in words."""
    models = _distinct(facts.model_text(run.info) for run in runs)
    machines = _distinct(run.info.device_phrase for run in runs)
    dtypes = ", ".join(dict.fromkeys(run.info.model.precision for run in runs))
    title = f"{models} on {machines}, {dtypes}"
    is_first_look = any(run.info.spec.values.is_first_look for run in runs)
    return f"First look: {title}" if is_first_look else title


def _distinct(texts: Iterable[str]) -> str:
    """Join the texts into one, leaving out duplicates."""
    return "; ".join(dict.fromkeys(texts))


def _tasks(runs: Sequence[RunMetrics]) -> tuple[Task, ...]:
    """Return the tasks of all runs. If there are several, their mean comes last."""
    titles = {task: run.info.task_title(task) for run in runs for task in run.tasks}
    tasks = [Task(name, title, _num_samples(runs, name)) for name, title in titles.items()]
    if len(tasks) > 1:
        tasks.append(Task(MEAN, MEAN_TITLE))
    return tuple(tasks)


def _num_samples(runs: Sequence[RunMetrics], task: str) -> str:
    """Return the number of samples on which the methods are compared on a task, as text.

    It is "8", or "6-8" if runs or temperatures differ, or "" if there are no samples. At each
    temperature of a run, the method with the most samples counts. `task` is the name in records. A
    cell has the numbers of one method at one temperature on one task.
    """
    # The largest number of samples of any method, by the index of the run and by temperature.
    most_samples: dict[tuple[int, float], int] = defaultdict(int)
    for i, run in enumerate(runs):
        for key, cell in run.cells.items():
            if key.task == task:
                place = (i, key.temperature)
                most_samples[place] = max(most_samples[place], cell.num_samples)
    nums_samples = {number for number in most_samples.values() if number > 0}
    if not nums_samples:
        return ""
    fewest = min(nums_samples)
    largest = max(nums_samples)
    return str(fewest) if fewest == largest else f"{fewest}-{largest}"


def _block(
    sources: Sequence[Source], temperature: float, tasks: Sequence[Task], sort: Sort
) -> Block:
    """Return the results and verdicts of all runs that have this temperature.

    `sources` are the runs with their metrics. `tasks` are the columns of the report's tables.
    `sort` is the order of a run's methods.
    """
    sources = [source for source in sources if temperature in source.metrics.temperatures]
    # The metrics of each run. Means are missing if the run lacks some of the tasks.
    metrics_of_runs = _comparable([source.metrics for source in sources])
    results_of_runs = []
    for source, metrics in zip(sources, metrics_of_runs, strict=True):
        methods = _methods(metrics, temperature, tasks)  # the results of each method
        if sort == "speedup":
            methods.sort(key=_speed, reverse=True)  # by mean speedup, then by tokens/s
        results = RunResults(
            source,
            tuple(methods),
            verdict(metrics, temperature),  # a sentence about which method is the fastest
            recommendation(metrics, temperature),  # which method to use, and the next command
        )
        results_of_runs.append(results)
    return Block(temperature, tuple(results_of_runs))


def _speed(method: MethodResults) -> list[float]:
    """Return the sort key of a method: its mean speedup, then its tokens per second."""
    numbers = (method.overall.speedup, method.overall.pooled.tokens_per_s)
    return [value_or_none(number) or 0.0 for number in numbers]


def _comparable(runs: Sequence[RunMetrics]) -> list[RunMetrics]:
    """Return the metrics of the runs, in order, with means that are comparable between runs.

    If a run lacks some of the tasks, its means over tasks become missing, with a reason such as "4
    of 6 tasks". A cell has the numbers of one method at one temperature on one task.
    """
    # The tasks that were measured in each run. `num_done` is the number of completions. A key with
    # the task "" is for all tasks together.
    tasks_of_runs = [
        {key.task for key, cell in run.cells.items() if cell.num_done and key.task} for run in runs
    ]
    all_tasks = set[str]().union(*tasks_of_runs)
    comparable_runs = []
    for run, tasks in zip(runs, tasks_of_runs, strict=True):
        # the reason if the run lacks some of the tasks, else None
        if missing_mean := reason_if_partial(len(tasks), len(all_tasks)):
            # The numbers over all tasks, by method and temperature, with missing means.
            overall_without_means = {
                (method, temperature): _without_means(overall, missing_mean)
                for (method, temperature), overall in run.overall.items()
            }
            run = replace(run, overall=overall_without_means)
        comparable_runs.append(run)
    return comparable_runs


def _without_means(metrics: MethodMetrics, missing: Missing) -> MethodMetrics:
    return replace(metrics, speedup=missing, decode_speedup=missing, mat=missing, partial=missing)


def _methods(run: RunMetrics, temperature: float, tasks: Sequence[Task]) -> list[MethodResults]:
    """Return the methods of a run with their results on each task at a temperature."""
    columns = [_column(run, temperature, task.name) for task in tasks]
    return [
        MethodResults(
            method,
            run.info.method(method).label,
            tasks=tuple(column[method] for column in columns),
            overall=run.overall[method, temperature],
            cost=run.cost(method, temperature),
            serving=run.serving.get((method, temperature)),
            step_bins=run.step_bins.get((method, temperature), ()),
        )
        for method in run.methods
    ]


def _column(run: RunMetrics, temperature: float, task: str) -> dict[str, TaskResult]:
    """Return the results of all methods on a task at a temperature, with the best ones marked."""
    results = {
        method: task_result(run, CellKey(method, temperature, task)) for method in run.methods
    }
    fastest = _best({method: result.speedup for method, result in results.items()})
    longest = _best({method: result.mat for method, result in results.items()})
    return {
        method: replace(result, is_best_speedup=method in fastest, is_best_mat=method in longest)
        for method, result in results.items()
    }


def _best(numbers: dict[str, Value]) -> set[str]:
    """Return the methods with the highest number, compared as shown with two decimals.

    The result is empty if only vanilla has a number.
    """
    shown = {
        method: round(number.value, 2)
        for method, number in numbers.items()
        if isinstance(number, Estimate)
    }
    has_rival = bool(shown.keys() - {BASELINE})
    if not has_rival:
        return set()
    best = max(shown.values())
    return {method for method, number in shown.items() if number == best}
