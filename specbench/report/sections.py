"""Make the tables of a report, with a function for each. All formats write these tables.

A column of the overview or of the latencies is a `Field` in a tuple below. `step_costs` makes the
table of the costs of steps, and `task_tables` makes the tables by task and by category.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import attrgetter

from specbench.analysis.metrics import BASELINE
from specbench.analysis.serving import TIMES, ServingMetrics
from specbench.analysis.stats.estimates import Estimate
from specbench.log.run import NO_LOAD, ONE_AT_A_TIME, loads_of
from specbench.report import formats
from specbench.report.fields import Field, make_table, with_text
from specbench.report.results import MEAN, Block, MethodResults, Report
from specbench.report.step_bins import step_bin_table
from specbench.report.step_costs import step_costs
from specbench.report.table import Cell, Column, Table
from specbench.report.task_tables import MAT, OR_UNKNOWN, SPEEDUP, Part, groups, tone


def has_speedup(block: Block) -> bool:
    """True if a method has a speedup on a task, or over all tasks."""
    results = [task for method in block.methods for task in method.tasks]
    return any(isinstance(task.speedup, Estimate) for task in results)


def screen(report: Report, block: Block, part: Part = SPEEDUP) -> Table:
    """Return the short table of a temperature: mean speedup, tokens/s, MAT, and a column per task.

    The column of a task has speedups, which `part` makes with or without intervals. If no method
    has a speedup, the columns of tasks have MATs, and there is no column of mean speedups. If there
    is only one task, its speedup replaces the mean, and there are no columns of tasks. If there is
    little room, the last tasks are dropped first. `block` has the results at the temperature.
    """
    *tasks, last_task = report.tasks  # the last is the mean, or the only task
    is_mean = last_task.name == MEAN
    # The columns over all tasks, tokens/s and MAT, unless no method has a text in the column.
    fields = with_text(_at_loads(_SCREEN, block), block)
    columns: list[Column] = [*fields]
    shows_speedup = has_speedup(block)
    if shows_speedup:
        columns = [Column("mean\nspeedup" if is_mean else "speedup"), *columns]
        title = "Speedup over vanilla"
    else:
        part = MAT
        title = "Tokens/s and mean accepted tokens (MAT)"
        if is_mean:
            title += ", overall and by task"
    if not is_mean:
        title += f" on {last_task.head}"  # the task's title and number of samples
    # If there is little room, columns with the highest rank are dropped first. These are the tasks.
    first_rank = 1 + max((field.rank for field in fields), default=0)
    columns += [  # `n` is the number of samples
        Column(f"n={task.n}", task.title, rank=rank) for rank, task in enumerate(tasks, first_rank)
    ]

    def cells_of(method: MethodResults) -> list[Cell]:
        """Return the cells of a method's row, in the order of `columns`."""
        # why the mean is missing for a method that lacks tasks, else None
        partial = method.overall.partial
        # `method.reason` is why it has no number on any task. It is None if there is a number, or
        # if reasons differ.
        reason = partial.reason if partial else method.reason
        cells_over_tasks = [Cell(field.text(method), reason=reason) for field in fields]
        if shows_speedup:
            # The mean speedup ± half the width of its interval. "±?" stands for a missing interval.
            cells_over_tasks = [OR_UNKNOWN.cell(method.tasks[-1]), *cells_over_tasks]
        cells_by_task = [part.cell(task_result) for task_result in method.tasks[: len(tasks)]]
        return [*cells_over_tasks, *cells_by_task]

    # There is a group of rows per run.
    return Table(title, tuple(columns), groups(report, block, cells_of))


def tables(report: Report, block: Block, main: Table) -> list[Table]:
    """Return all tables of a block that have numbers.

    `main` is the main table, which differs between formats. Throughput comes first if the block
    `is_loaded`.
    """
    candidates = [
        main,
        overview(report, block),
        step_costs(report, block),
        step_bin_table(report, block),
        latency(report, block),
    ]
    candidates.insert(0 if is_loaded(block) else -1, throughput(report, block))
    return [table for table in candidates if table.columns and table.groups]


def is_loaded(block: Block) -> bool:
    """True if servers ran at load: several requests at once, or a request rate."""
    loads = [load for run in block.runs for load in loads_of(run.source.info.spec.values)]
    is_several = any(load not in (NO_LOAD, ONE_AT_A_TIME) for load in loads)
    return is_several and bool(served(block).methods)


def _same_as_vanilla(method: MethodResults) -> str:
    is_baseline = method.method == BASELINE
    return "" if is_baseline else formats.percent(method.overall.pooled.match_rate)


def _bracketed(method: MethodResults) -> str:
    """Return the mean speedup with its interval, or with the reason why it has none."""
    speedup = method.overall.speedup
    spread = formats.brackets(speedup)
    if formats.no_interval(speedup):
        spread = f" {formats.one_decides(len(method.tasks))}"
    return formats.speedup(speedup) + method.tasks[-1].mark + spread


def _tokens_per_s(method: MethodResults) -> str:
    """Return the tokens/s over the answers on all tasks. They are missing if the method lacks
    tasks.
    """
    return formats.rate(method.overall.partial or method.overall.pooled.tokens_per_s)


_RATE = Field("tok/s", rank=1, text=_tokens_per_s)
_SCREEN = (
    _RATE,
    Field("MAT", rank=4, text=lambda method: formats.mat(method.overall.mat)),
)

_OVERVIEW = (
    Field("speedup [95 %]", text=_bracketed, tone=lambda method: tone(method.tasks[-1])),
    Field(
        "decode\nonly",
        rank=5,
        text=lambda method: formats.speedup(method.overall.decode_speedup),
    ),
    *_SCREEN,
    Field("same as\nvanilla", rank=2, text=_same_as_vanilla),
    Field("done", rank=6, text=lambda method: str(method.overall.pooled.num_done)),
    Field("failed", rank=3, text=lambda method: str(method.overall.pooled.num_failed)),
)


def _at_loads(fields: Sequence[Field], block: Block) -> tuple[Field, ...]:
    """Return the fields, with the heading "tok/s per request" if the block `is_loaded`."""
    per_request = replace(_RATE, heading="tok/s per\nrequest") if is_loaded(block) else _RATE
    return tuple(per_request if field is _RATE else field for field in fields)


def overview(report: Report, block: Block) -> Table:
    """Return the table of the numbers over all tasks that the papers' table does not have."""
    where = "Over all tasks" if len(report.tasks) > 1 else "Overall"
    title = f"{where} (intervals: {report.scope})"
    return make_table(title, report, block, _at_loads(_OVERVIEW, block))


def _server_field(heading: str, text: Callable[[ServingMetrics], str], *, rank: int = 0) -> Field:
    """Return a column about servers, which is empty for a method without a server."""
    return Field(
        heading, rank=rank, text=lambda method: text(method.serving) if method.serving else ""
    )


def _in_flight(server: ServingMetrics) -> str:
    """Return the mean and the largest number of requests at once, or "" if it was never above 1."""
    in_flight = server.in_flight
    return f"{in_flight.mean:.1f} ({in_flight.most})" if in_flight.most > 1 else ""


def _to_vanilla(server: ServingMetrics) -> str:
    return formats.speedup(server.throughput_ratio) + formats.brackets(server.throughput_ratio)


def _by_position(server: ServingMetrics) -> str:
    return " ".join(f"{rate:.2f}" for rate in server.acceptance_rates)


_THROUGHPUT = (
    _server_field("relative\nto vanilla", _to_vanilla),
    _server_field("output\ntok/s", lambda server: formats.rate(server.output_throughput)),
    _server_field("total\ntok/s", lambda server: formats.rate(server.total_throughput), rank=3),
    _server_field("requests/s", lambda server: formats.figures(server.request_throughput)),
    _server_field("in flight\n(max)", _in_flight, rank=1),
    _server_field("goodput\nrequests/s", lambda server: formats.figures(server.goodput)),
    _server_field("accepted per\ndraft + 1", lambda server: formats.mat(server.engine_mat), rank=2),
    _server_field("accepted by\nposition", _by_position, rank=5),
)


def throughput(report: Report, block: Block) -> Table:
    """Return the table of requests and tokens per second. Without servers, it has no columns."""
    block = served(block)
    return make_table("Throughput of all requests", report, block, with_text(_THROUGHPUT, block))


def _milliseconds(path: str, heading: str, task: str = "") -> Field:
    """Return a column of times in milliseconds. `path` names the attribute of `MethodResults`."""
    seconds = attrgetter(path)
    return Field(heading, task, text=lambda method: formats.figures(seconds(method), 1e3))


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
"""The columns of the times of servers, with the names that `vllm bench serve` uses."""


def latency(report: Report, block: Block) -> Table:
    """Return the table of times in milliseconds to the first token, and per later token.

    For servers, they are the times that the client measured.
    """
    title = "Latency in milliseconds"
    on_servers = served(block)
    if on_servers.methods:
        return make_table(title, report, on_servers, _SERVED_LATENCY)
    return make_table(title, report, block, with_text(_LATENCY, block))


def served(block: Block) -> Block:
    """Return the block with only the methods that ran on servers."""
    return block.only(lambda method: method.serving is not None)
