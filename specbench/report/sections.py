"""The tables of a report, one function each: a report -> a `Table` for every writer.

A column of the overview, of the step costs or of the latencies is one `Field` in a tuple below.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from specbench.analysis.cells import CellKey
from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.ranking import ALONE, is_claimed
from specbench.analysis.serving import TIMES, ServingMetrics
from specbench.analysis.stats.estimates import Estimate, Value
from specbench.log.header import RunHeader
from specbench.log.run import BETWEEN
from specbench.report import formats
from specbench.report.results import (
    MEAN,
    MEAN_TITLE,
    Block,
    MethodResults,
    Report,
    TaskResult,
    task_result,
)
from specbench.report.table import Cell, Column, Group, Row, Table, Tone


@dataclass(frozen=True, slots=True)
class Part:
    """One of the numbers of a task's column."""

    heading: str
    cell: Callable[[TaskResult], Cell]
    short: str = ""

    def column(self, task: str) -> Column:
        return Column(self.heading, task, short=self.short)


@dataclass(frozen=True, slots=True)
class Field:
    """One column over all tasks. `rank` and `task` are the column's."""

    heading: str
    text: Callable[[MethodResults], str]
    rank: int = 0
    task: str = ""
    tone: Callable[[MethodResults], Tone] = lambda method: ""


def tone(task: TaskResult) -> Tone:
    """Good and bad are claims, tested with all of their column; unsure is a speedup that
    differs too little from 1 for one, or whose machine's variance is unknown.
    """
    speedup = task.speedup
    if not isinstance(speedup, Estimate):
        return "missing"
    if formats.interval_of(speedup) is None:
        return ""
    if not is_claimed(task.p_value):
        return "unsure"
    return "good" if speedup.value > 1.0 else "bad"


def _speedup(spread: Callable[[Value], str]) -> Callable[[TaskResult], Cell]:
    return lambda task: Cell(
        formats.speedup(task.speedup) + task.mark + spread(task.speedup),
        tone(task),
        is_best=task.is_best_speedup,
        interval=formats.interval_of(task.speedup),
        reason=task.reason,
    )


SPEEDUP = Part("speedup", _speedup(lambda value: ""), short="speed")
PLUS_MINUS = Part("speedup", _speedup(formats.plus_minus), short="speed")
ON_SCREEN = Part(
    "speedup",
    _speedup(lambda value: " ±?" if formats.no_interval(value) else formats.plus_minus(value)),
    short="speed",
)
MAT = Part(
    "MAT",
    lambda task: Cell(formats.mat(task.mat), is_best=task.is_best_mat, reason=task.reason),
)


def by_task(report: Report, block: Block, parts: Sequence[Part] = (SPEEDUP, MAT)) -> Table:
    """The papers' table: these numbers of every method on every task."""
    columns = [part.column(task.head) for task in report.tasks for part in parts]

    def cells(method: MethodResults) -> list[Cell]:
        return [part.cell(task) for task in method.tasks for part in parts]

    return Table("", tuple(columns), _groups(report, block, cells))


def mean_first(report: Report, block: Block) -> Table:
    """The papers' table with the columns of the mean over the tasks before those of the tasks."""
    table = by_task(report, block)
    places = range(len(table.columns))
    return table.take(sorted(places, key=lambda i: table.columns[i].task != MEAN_TITLE))


def by_category(report: Report) -> list[Table]:
    """The tables of the runs with categories, with the run's name where there are several."""
    return [
        table if report.is_one_run else replace(table, title=f"{one.label}: {table.title}")
        for one in report.sources
        if one.categories
        for table in category_tables(one.info, one.categories)
    ]


def category_tables(info: RunHeader, run: RunMetrics) -> Iterable[Table]:
    """A table per temperature: a group of rows per task, two columns per method."""
    parts = (SPEEDUP, MAT)
    labels = [info.method(method).label for method in run.methods]
    columns = tuple(part.column(label) for label in labels for part in parts)
    for temperature in run.temperatures:
        groups: dict[str, list[Row]] = defaultdict(list)
        legend = ""
        for name in run.tasks:
            task, _, category = name.partition(BETWEEN)
            results = [task_result(run, CellKey(m, temperature, name)) for m in run.methods]
            if any(one.mark for one in results):
                legend = f" ({ALONE}: alone a difference, not among the methods of a row)"
            cells = tuple(part.cell(one) for one in results for part in parts)
            groups[info.task_title(task)].append(Row("", category or "none", cells))
        title = f"By category, {formats.temperature(temperature)}{legend}"
        made = tuple(Group(label, tuple(rows)) for label, rows in groups.items())
        yield Table(title, columns, made, heading="Category")


def has_speedup(block: Block) -> bool:
    """True if a method has a speedup on any task, or over all."""
    return any(isinstance(task.speedup, Estimate) for m in block.methods for task in m.tasks)


def screen(report: Report, block: Block, part: Part = SPEEDUP) -> Table:
    """The short table: mean speedup, tokens/s and MAT, then the speedup on each task.

    Without any speedup, it has tokens/s and MAT. The last tasks are dropped first.
    """
    is_sped, whole = has_speedup(block), report.tasks[-1]
    others = report.tasks[:-1]
    heading = "mean\nspeedup" if whole.name == MEAN else "speedup"
    shown = part if is_sped else MAT
    fields = [field for field in _SCREEN if _known([field], block)]
    columns = [Column(heading)] * is_sped + [Column(field.heading) for field in fields]
    columns += [Column(f"n={task.n}", task.title, rank=rank) for rank, task in enumerate(others, 1)]

    def cells(method: MethodResults) -> list[Cell]:
        partial = method.overall.partial
        reason = partial.reason if partial else method.reason
        first = [ON_SCREEN.cell(method.tasks[-1])] * is_sped
        overall = [Cell(field.text(method), reason=reason) for field in fields]
        return [*first, *overall, *map(shown.cell, method.tasks[: len(others)])]

    title = "Speedup over vanilla" if is_sped else "Tokens/s and mean accepted tokens (MAT)"
    title += f" on {whole.head}" if whole.name != MEAN else ", overall and by task" * (not is_sped)
    return Table(title, tuple(columns), _groups(report, block, cells))


def tables(report: Report, block: Block, main: Table) -> list[Table]:
    """The tables of a block that have numbers: `main`, which a format chooses, and the others."""
    others = (overview, step_costs, throughput, latency)
    every = (main, *(make(report, block) for make in others))
    return [table for table in every if table.columns and table.groups]


def _same_as_vanilla(method: MethodResults) -> str:
    is_baseline = method.method == BASELINE
    return "" if is_baseline else formats.percent(method.overall.pooled.match_rate)


def _bracketed(method: MethodResults) -> str:
    """The mean speedup with its interval, or with the reason why it has none."""
    speedup = method.overall.speedup
    reason = formats.no_interval(speedup)
    spread = f" [{reason}]" if reason else formats.brackets(speedup)
    return formats.speedup(speedup) + method.tasks[-1].mark + spread


def _tokens_per_s(method: MethodResults) -> str:
    """Over the answers of all tasks; missing for a method that lacks tasks."""
    return formats.rate(method.overall.partial or method.overall.pooled.tokens_per_s)


_SCREEN = (
    Field("tok/s", _tokens_per_s, 1),
    Field("MAT", lambda method: formats.mat(method.overall.mat), 4),
)

_OVERVIEW = (
    Field("speedup [95 %]", _bracketed, tone=lambda m: tone(m.tasks[-1])),
    Field("decode\nonly", lambda m: formats.speedup(m.overall.decode_speedup), 5),
    *_SCREEN,
    Field("same as\nvanilla", _same_as_vanilla, 2),
    Field("done", lambda m: str(m.overall.pooled.num_done), 6),
    Field("failed", lambda m: str(m.overall.pooled.num_failed), 3),
)


def overview(report: Report, block: Block) -> Table:
    """The numbers over all tasks that have no room in the papers' table."""
    where = "Over all tasks" if len(report.tasks) > 1 else "Overall"
    title = f"{where} (intervals: {report.scope})"
    return _fields(title, report, block, _OVERVIEW)


def _phase(name: str, rank: int = 0) -> Field:
    """The column of a phase of `Phases`, in steps of vanilla."""

    def text(method: MethodResults) -> str:
        phases = method.cost.relative_phases
        return formats.NONE if phases is None else f"{getattr(phases, name):.2f}"

    return Field(name.removesuffix("_s"), text, rank)


def _peak_memory(method: MethodResults) -> str:
    size = method.cost.peak_memory_bytes
    return formats.NONE if size is None else f"{size / 2**30:.1f}"


def _limit_reached(method: MethodResults) -> str:
    """A share that may exceed 1. Vanilla is its own limit."""
    reached = method.cost.reached
    if method.method == BASELINE:
        return ""
    return f"{reached.value * 100:.0f} %" if isinstance(reached, Estimate) else formats.NONE


_COSTS = (
    Field("all steps\nMAT", lambda m: formats.mat(m.cost.mat)),
    Field("step\ncost", lambda m: formats.mat(m.cost.relative)),
    Field("all steps\nspeedup", lambda m: formats.speedup(m.cost.decode_speedup)),
    *(_phase("draft_s"), _phase("verify_s"), _phase("commit_s", 1), _phase("host_s", 1)),
    Field("limit", lambda m: formats.speedup(m.cost.limit), 2),
    Field("of the\nlimit", _limit_reached, 3),
    Field("ms per\nstep", lambda m: formats.figures(m.cost.step_s, 1e3), 4),
    Field("J per\ntoken", lambda m: formats.figures(m.cost.joules_per_token), 5),
    Field("peak\nGiB", _peak_memory, 6),
)
"""Phases are in steps of vanilla, so that they add up to the cost of a step."""


def step_costs(report: Report, block: Block) -> Table:
    """The numbers that explain a speedup; no columns if no step can be compared."""
    is_known = any(isinstance(m.cost.relative, Estimate) for m in block.methods)
    fields = _known(_COSTS, block) if is_known else ()
    title = "The cost of a step, steps of all tasks (speedup = MAT / step cost), no prefill"
    return _fields(title, report, block, fields)


def _served(text: Callable[[ServingMetrics], str]) -> Callable[[MethodResults], str]:
    """A text about a method's server."""
    return lambda method: text(method.serving) if method.serving else ""


def _in_flight(server: ServingMetrics) -> str:
    """Requests at once, on average and at most; empty if there was never more than one."""
    found = server.in_flight
    return f"{found.mean:.1f} ({found.most})" if found.most > 1 else ""


def _to_vanilla(server: ServingMetrics) -> str:
    return formats.speedup(server.throughput_ratio) + formats.brackets(server.throughput_ratio)


def _by_position(server: ServingMetrics) -> str:
    return " ".join(f"{share:.2f}" for share in server.acceptance_rates)


_THROUGHPUT = (
    Field("requests/s", _served(lambda server: formats.figures(server.request_throughput))),
    Field("output\ntok/s", _served(lambda server: formats.rate(server.output_throughput))),
    Field("total\ntok/s", _served(lambda server: formats.rate(server.total_throughput)), 3),
    Field("to\nvanilla", _served(_to_vanilla)),
    Field("in flight\n(most)", _served(_in_flight), 1),
    Field("goodput\nrequests/s", _served(lambda server: formats.figures(server.goodput))),
    Field("accepted per\ndraft + 1", _served(lambda server: formats.mat(server.engine_mat)), 2),
    Field("accepted by\nposition", _served(_by_position), 5),
)


def throughput(report: Report, block: Block) -> Table:
    """Requests and tokens per second of each method; no columns without a server."""
    block = served(block)
    return _fields("Throughput", report, block, _known(_THROUGHPUT, block))


def _milliseconds(path: str, heading: str, task: str = "") -> Field:
    """A column for the time at this path of attributes."""
    of = attrgetter(path)
    return Field(heading, lambda method: formats.figures(of(method), 1e3), task=task)


_PERCENTILES = ("p50", "p90", "p99")
_LATENCY = tuple(
    _milliseconds(f"overall.pooled.latency.{name}.{which}", f"{name.replace('_', ' ')} {which}")
    for name in ("first_token", "per_token")
    for which in _PERCENTILES
)
_SERVED_LATENCY = tuple(
    _milliseconds(f"serving.{name}.{path}", path.rpartition(".")[2], name.upper())
    for name in TIMES
    for path in ("mean", *(f"percentiles.{which}" for which in _PERCENTILES))
)
"""Times by the names that `vllm bench serve` uses."""


def latency(report: Report, block: Block) -> Table:
    """Time to the first token and per token after it; the client's times of servers."""
    title = "Latency in milliseconds"
    if (on_servers := served(block)).methods:
        return _fields(title, report, on_servers, _SERVED_LATENCY)
    return _fields(title, report, block, _known(_LATENCY, block))


def served(block: Block) -> Block:
    """The block with its methods on servers alone."""
    runs = (
        replace(run, methods=tuple(method for method in run.methods if method.serving))
        for run in block.runs
    )
    return replace(block, runs=tuple(runs))


def _known(fields: Sequence[Field], block: Block) -> tuple[Field, ...]:
    """The fields for which any method has a text."""
    empty = ("", formats.NONE)
    return tuple(f for f in fields if any(f.text(m) not in empty for m in block.methods))


def _fields(title: str, report: Report, block: Block, fields: Sequence[Field]) -> Table:
    def cells(method: MethodResults) -> list[Cell]:
        return [Cell(field.text(method), field.tone(method)) for field in fields]

    columns = tuple(Column(one.heading, one.task, rank=one.rank) for one in fields)
    return Table(title, columns, _groups(report, block, cells))


def _groups(
    report: Report, block: Block, cells: Callable[[MethodResults], list[Cell]]
) -> tuple[Group, ...]:
    """A group per run with a row per method; runs without a row are left out."""
    groups = []
    for run in block.runs:
        rows = tuple(
            Row(m.method, m.label, tuple(cells(m)), has_failed=m.overall.pooled.num_failed > 0)
            for m in run.methods
        )
        if rows:
            groups.append(Group("" if report.is_one_run else run.source.label, rows))
    return tuple(groups)
