"""The numbers of a report in the papers' layout: methods by task, per run and temperature.

Decides which numbers stand together and which are the best of their column; `sections` turns
these values into tables.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import comb
from typing import TYPE_CHECKING, Literal

from specbench.analysis.cells import NOT_RUN, CellKey
from specbench.analysis.costs import NO_COST, Cost
from specbench.analysis.frames import value_or_none
from specbench.analysis.metrics import BASELINE, MethodMetrics, RunMetrics, measure, partial
from specbench.analysis.ranking import ALONE, Ranking, is_alone, is_claimed
from specbench.analysis.serving import ServingMetrics
from specbench.analysis.stats.bootstrap import Estimate, Missing, Value
from specbench.log.header import RunHeader
from specbench.log.options import options
from specbench.log.run import BETWEEN, Run
from specbench.log.spec import SpecValues
from specbench.report import facts, formats
from specbench.report.answers import Answers, pick_answers
from specbench.report.notes import notes, scope_text
from specbench.report.texts import Note

if TYPE_CHECKING:
    from specbench.report.plots.style import Plot

Sort = Literal["paper", "speedup"]
"""The order of the methods."""
MEAN, MEAN_TITLE = "mean", "Mean"
"""The name and the heading of the column of means over the tasks."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task, or the mean over the tasks. `n` is the number of its samples, as text."""

    name: str
    title: str
    n: str = ""

    @property
    def head(self) -> str:
        return f"{self.title}, n={self.n}" if self.n else self.title


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The two numbers of a method on a task, or the reasons for their absence.

    `p_value` is of "the speedup is 1", corrected for all methods there.
    """

    speedup: Value
    mat: Value
    is_best_speedup: bool = False
    is_best_mat: bool = False
    p_value: float | None = None

    @property
    def mark(self) -> str:
        """The sign of a speedup whose interval shows a difference that its test does not."""
        return ALONE if is_alone(self.speedup, self.p_value) else ""

    @property
    def reason(self) -> str | None:
        """The reason for an empty result; None if there is at least one number."""
        if isinstance(self.speedup, Missing) and isinstance(self.mat, Missing):
            return self.mat.reason
        return None


@dataclass(frozen=True, slots=True)
class MethodResults:
    """One method of a run. `label` carries a star if the output may differ from vanilla's."""

    method: str
    label: str
    tasks: tuple[TaskResult, ...]
    overall: MethodMetrics
    cost: Cost = NO_COST
    serving: ServingMetrics | None = None

    @property
    def reason(self) -> str | None:
        """The one reason for which the method has no number on any task, if there is one."""
        reasons = {task.reason for task in self.tasks}
        return reasons.pop() if len(reasons) == 1 else None


@dataclass(frozen=True)
class Source:
    """One run of a report. `label` tells it from the others."""

    label: str
    metrics: RunMetrics
    run: Run

    @property
    def info(self) -> RunHeader:
        return self.metrics.info

    @cached_property
    def answers(self) -> tuple[Answers, ...]:
        """The answers that a page shows."""
        return pick_answers(self.run)

    @cached_property
    def categories(self) -> RunMetrics | None:
        """The numbers of each category, as of a task; None if no task has several."""
        names = {
            sample_id: f"{one.task}{BETWEEN}{category}"
            for one in self.info.prompts
            for category, sample_ids in one.categories.items()
            for sample_id in sample_ids
        }
        own = self.metrics
        return measure(self.run.of(names), own.bootstrap, own.arithmetic) if names else None


@dataclass(frozen=True, slots=True)
class RunResults:
    """The methods of one run at one temperature, and a sentence on who wins."""

    source: Source
    methods: tuple[MethodResults, ...]
    verdict: str


@dataclass(frozen=True, slots=True)
class Block:
    """One temperature: the results of every run that has it."""

    temperature: float
    runs: tuple[RunResults, ...]

    @property
    def heading(self) -> str:
        return formats.temperature(self.temperature)

    @property
    def methods(self) -> tuple[MethodResults, ...]:
        """The methods of all runs."""
        return tuple(method for run in self.runs for method in run.methods)


@dataclass(frozen=True, slots=True)
class Report:
    """The content of a report, for every format: runs with their numbers, notes and plots.

    `title` names model, weights, machine and dtype; `prompts` says what was asked, and how
    much; `scope` says what the intervals of times cover.
    """

    sources: tuple[Source, ...]
    title: str
    prompts: str
    tasks: tuple[Task, ...]
    blocks: tuple[Block, ...]
    notes: tuple[Note, ...]
    scope: str
    plots: "tuple[Plot, ...]" = ()

    @property
    def caption(self) -> str:
        """The title and the prompts."""
        return f"{self.title}; {self.prompts}" if self.prompts else self.title

    @property
    def is_one_run(self) -> bool:
        """True if runs need no label."""
        return len(self.sources) < 2

    @property
    def panels(self) -> list[tuple[str, RunResults]]:
        """Each run at each temperature below its heading, in the order of the tables."""
        return [
            (block.heading if self.is_one_run else f"{block.heading}, {run.source.label}", run)
            for block in self.blocks
            for run in block.runs
        ]

    @property
    def labels(self) -> dict[str, str]:
        """The labels of the methods that have any number."""
        found = (method for block in self.blocks for method in block.methods)
        return {method.method: method.label for method in found if not method.reason}


def arrange(runs: Sequence[RunMetrics], records: Sequence[Run], sort: Sort) -> Report:
    """The results of one or several runs, methods in the papers' order or the fastest first."""
    titles = {task: run.info.task_title(task) for run in runs for task in run.tasks}
    tasks = [Task(name, title, _num_samples(runs, name)) for name, title in titles.items()]
    if len(tasks) > 1:
        tasks.append(Task(MEAN, MEAN_TITLE))
    labels = run_labels([run.info for run in runs], [*map(facts.load_text, runs)])
    sources = tuple(map(Source, labels, runs, records))
    blocks = [
        Block(
            temperature,
            tuple(
                RunResults(
                    source,
                    methods=_sorted(_methods(run, temperature, tasks), sort),
                    verdict=verdict(run, temperature),
                )
                for source, run in zip(sources, _comparable(runs, temperature), strict=True)
                if temperature in run.temperatures
            ),
        )
        for temperature in sorted({t for run in runs for t in run.temperatures})
    ]
    names = dict.fromkeys(facts.model_text(run.info) for run in runs)
    machines = dict.fromkeys(run.info.device_phrase for run in runs)
    dtypes = dict.fromkeys(run.info.model.precision for run in runs)
    title = f"{'; '.join(names)} on {'; '.join(machines)}, {', '.join(dtypes)}"
    if any(run.info.spec.values.is_first_look for run in runs):
        title = f"First look: {title}"
    prompts = "; ".join(dict.fromkeys(filter(None, (facts.prompts_text(r.info) for r in runs))))
    return Report(
        sources,
        title,
        prompts,
        tasks=tuple(tasks),
        blocks=tuple(blocks),
        notes=notes(runs, labels),
        scope=scope_text(runs),
    )


def _num_samples(runs: Sequence[RunMetrics], task: str) -> str:
    """The samples that methods are compared on: "8", or "6-8" if runs or temperatures differ."""
    found: dict[tuple[int, float], int] = {}
    for i, run in enumerate(runs):
        for key, cell in run.cells.items():
            if key.task == task:
                place = i, key.temperature
                found[place] = max(found.get(place, 0), cell.num_samples)
    known = sorted({number for number in found.values() if number})
    return "-".join(str(number) for number in dict.fromkeys([*known[:1], *known[-1:]]))


def run_labels(infos: Sequence[RunHeader], loads: Sequence[str] = ()) -> list[str]:
    """A distinct name for each run: its model if these differ, and as much more as it takes.

    `loads` are texts of their loads.
    """
    models = [facts.model_label(info) for info in infos]
    labels = models if len({*models}) > 1 else [""] * len(models)
    facets = (
        [info.device_phrase.partition(",")[0] for info in infos],
        [info.model.precision for info in infos],
        loads or [""] * len(infos),
        *_settings(infos),
        [f"run {info.id}" for info in infos],
    )
    for facet in facets:
        if len(set(facet)) == 1:
            continue
        times = Counter(labels)
        labels = [
            ", ".join(filter(None, (label, more))) if times[label] > 1 else label
            for label, more in zip(labels, facet, strict=True)
        ]
    return [label or model for label, model in zip(labels, models, strict=True)]


_IN_TABLES = {"model", "methods", "temperatures", "labels", "urls", "concurrency", "request_rates"}
"""Options that tables show, or that loads name."""


def _settings(infos: Sequence[RunHeader]) -> Iterator[list[str]]:
    """For each other option, its text in each run: "--limit 5"; empty without a value."""
    for option in options(SpecValues):
        values = [getattr(info.spec.values, option.name) for info in infos]
        if option.name == "tasks":
            yield [f"{len(one)} tasks" if len(one) > 2 else ", ".join(one) for one in values]
        elif option.name not in _IN_TABLES:
            texts = (option.write(one).rpartition("/")[2] for one in values)
            yield [f"{option.flag} {text}" if text not in ("", "None") else "" for text in texts]


def _sorted(methods: tuple[MethodResults, ...], sort: Sort) -> tuple[MethodResults, ...]:
    def speed(method: MethodResults) -> list[float]:
        values = (method.overall.speedup, method.overall.pooled.tokens_per_s)
        return [value_or_none(value) or 0.0 for value in values]

    return methods if sort == "paper" else tuple(sorted(methods, key=speed, reverse=True))


def _comparable(runs: Sequence[RunMetrics], temperature: float) -> Iterator[RunMetrics]:
    """The runs, without means where one lacks tasks that others have at this temperature."""
    measured = [
        {key.task for key, cell in run.cells.items() if cell.num_done and key.task} for run in runs
    ]
    every = set[str]().union(
        *(own for run, own in zip(runs, measured, strict=True) if temperature in run.temperatures)
    )
    for run, own in zip(runs, measured, strict=True):
        if found := partial(len(own & every), len(every)):
            overall = {
                key: replace(one, speedup=found, decode_speedup=found, mat=found, partial=found)
                for key, one in run.overall.items()
            }
            yield replace(run, overall=overall)
        else:
            yield run


def _methods(
    run: RunMetrics, temperature: float, tasks: Sequence[Task]
) -> tuple[MethodResults, ...]:
    by_task = [_task_results(run, temperature, task.name) for task in tasks]
    return tuple(
        MethodResults(
            method,
            run.info.method(method).label,
            results,
            overall=run.overall[method, temperature],
            cost=run.cost(method, temperature),
            serving=run.serving.get((method, temperature)),
        )
        for method, results in zip(run.methods, zip(*by_task, strict=True), strict=True)
    )


def _task_results(run: RunMetrics, temperature: float, task: str) -> list[TaskResult]:
    """One result per method. All that are best at the two digits shown are best."""
    found = [task_result(run, CellKey(method, temperature, task)) for method in run.methods]
    speedups = _are_best(run.methods, [one.speedup for one in found])
    mats = _are_best(run.methods, [one.mat for one in found])
    return [
        replace(one, is_best_speedup=is_fastest, is_best_mat=is_longest)
        for one, is_fastest, is_longest in zip(found, speedups, mats, strict=True)
    ]


def task_result(run: RunMetrics, key: CellKey) -> TaskResult:
    """The numbers of a cell, or of a method's mean over the tasks."""
    overall = run.overall[key.method, key.temperature]
    cell = overall if key.task == MEAN else run.cells.get(key)
    speedup, mat = (cell.speedup, cell.mat) if cell else (NOT_RUN, NOT_RUN)
    return TaskResult(speedup, mat, p_value=p_value_of(run, key))


def p_value_of(run: RunMetrics, key: CellKey) -> float | None:
    """The p-value of "as fast as vanilla", corrected for the methods of a task or of `MEAN`."""
    at, task = key.temperature, key.task
    ranking = run.rankings.get(at) if task == MEAN else run.task_rankings.get((at, task))
    return ranking.against_baseline.get(key.method) if ranking else None


def _are_best(methods: Sequence[str], values: Sequence[Value]) -> list[bool]:
    """True for the best values as shown; nowhere if the baseline has no rival."""
    shown = [round(one.value, 2) if isinstance(one, Estimate) else None for one in values]
    known = {m: number for m, number in zip(methods, shown, strict=True) if number is not None}
    best = max(known.values(), default=None)
    has_rival = bool(known.keys() - {BASELINE})
    return [has_rival and number == best for number in shown]


def verdict(run: RunMetrics, temperature: float) -> str:
    """The fastest method against vanilla and against the next one, by the mean over tasks."""
    ranking = run.rankings.get(temperature, Ranking())
    if not ranking.methods:
        reasons = {
            overall.speedup.reason
            for (method, at), overall in run.overall.items()
            if at == temperature and method != BASELINE and isinstance(overall.speedup, Missing)
        }
        return f"No speedup to report: {', '.join(sorted(reasons)) or 'only vanilla was run'}."
    first, *others = ranking.methods
    best = ranking.speedups[first]
    doubt = _doubt(best, ranking.against_baseline[first], len(ranking.methods))
    where = " on average" if len(run.tasks) > 1 else ""
    times = f"{best.value:.2f}x vanilla's speed{where}{formats.brackets(best)}"
    if best.value <= 1:
        times = times.replace("x vanilla's speed", "x")
        label = run.info.method(first).label
        sentences = [f"No method is faster than vanilla; {label} comes closest ({times})."]
        if best.interval and doubt:
            sentences.append(f"That is {doubt.removeprefix(': ')}.")
        others = []
    else:
        p_values = (ranking.against_baseline[first], *ranking.against_best.values())
        is_ahead = all(map(is_claimed, p_values))
        here = "" if run.scope.kind == "runs" else " in this run"
        verb = f"is the fastest{here}, at" if is_ahead else "has the highest speedup,"
        doubt = doubt.replace("a significant difference", "significantly different from vanilla")
        sentences = [f"{run.info.method(first).label} {verb} {times}{doubt}."]
    if others:
        ratio = ranking.ratios[others[0]]
        lead = f"It is {ratio.value:.2f}x as fast as {run.info.method(others[0]).label}, the next"
        doubt = _doubt(ratio, ranking.against_best[others[0]], comb(len(ranking.methods) + 1, 2))
        sentences.append(f"{lead}{formats.brackets(ratio)}{doubt}.")
    if best.interval is not None and best.machine is None:
        sentences.append(ONE_PASS)
    return " ".join(sentences)


ONE_PASS = (
    "Nothing is claimed from one pass: it does not show how far the machine's passes differ. "
    "Use --repeats 3, or --runs 5."
)


def _doubt(value: Estimate, p_value: float | None, number: int) -> str:
    """The doubt about a difference, one of this number, as the end of a sentence; empty if it is
    significant, or not tested.
    """
    if value.interval is None:
        return "; too few samples for an interval"
    if p_value is None or is_claimed(p_value):
        return ""
    if is_alone(value, p_value):
        return f": alone a difference, not among {number} comparisons"
    return ": not a significant difference"
