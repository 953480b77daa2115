"""The tables of servers: throughput and latency, by the names that `vllm bench serve` uses."""

from __future__ import annotations

from collections.abc import Callable

from specbench.analysis.serving import TIMES, InFlight, ServingMetrics, Times
from specbench.analysis.stats.bootstrap import Value
from specbench.report import formats
from specbench.report.results import Block, MethodResults, Results
from specbench.report.table import Cell, Column, Group, Row, Table

_THROUGHPUT: tuple[tuple[str, int, Callable[[ServingMetrics], str]], ...] = (
    ("requests/s", 0, lambda s: formats.figures(s.request_throughput)),
    ("output\ntok/s", 0, lambda s: formats.rate(s.output_throughput)),
    ("95 %", 4, lambda s: _span(s.output_throughput)),
    ("total\ntok/s", 3, lambda s: formats.rate(s.total_throughput)),
    (
        "to\nvanilla",
        0,
        lambda s: formats.speedup(s.throughput_ratio) + formats.brackets(s.throughput_ratio),
    ),
    ("in flight\n(most)", 1, lambda s: _in_flight(s.in_flight)),
    ("goodput\nrequests/s", 0, lambda s: formats.figures(s.goodput)),
    ("accepted per\ndraft + 1", 2, lambda s: formats.mat(s.engine_mat)),
    ("accepted by\nposition", 5, lambda s: " ".join(f"{x:.2f}" for x in s.acceptance_rates)),
)


def throughput(results: Results, block: Block) -> Table:
    """Requests and tokens per second of each method; no columns without a server."""
    known = [
        (heading, rank, text)
        for heading, rank, text in _THROUGHPUT
        if any(text(m.serving) not in ("", formats.NONE) for m in block.methods if m.serving)
    ]

    def cells(serving: ServingMetrics) -> list[Cell]:
        return [Cell(text(serving)) for _, _, text in known]

    columns = tuple(Column(heading, rank=rank) for heading, rank, _ in known)
    return Table("Throughput", columns, _groups(results, block, cells))


def latency(results: Results, block: Block) -> Table:
    """TTFT, TPOT, ITL and E2E of each method in milliseconds: mean and percentiles."""
    headings = ("mean", "p50", "p90", "p99")
    is_served = any(method.serving for method in block.methods)

    def cells(serving: ServingMetrics) -> list[Cell]:
        every = (value for name in TIMES for value in _values(getattr(serving, name)))
        return [Cell(formats.figures(value, 1e3)) for value in every]

    columns = [Column(text, name.upper()) for name in TIMES for text in headings] * is_served
    title = "Latency in milliseconds"
    return Table(title, tuple(columns), _groups(results, block, cells))


def _values(times: Times) -> tuple[Value, ...]:
    found = times.percentiles
    return (times.mean, found.p50, found.p90, found.p99)


def _span(value: Value) -> str:
    interval = formats.interval_of(value)
    return f"{interval.low:.0f}–{interval.high:.0f}" if interval else ""


def _in_flight(found: InFlight) -> str:
    """Requests at once, on average and at most; empty if there was never more than one."""
    return f"{found.mean:.1f} ({found.most})" if found.most > 1 else ""


def _groups(
    results: Results, block: Block, cells: Callable[[ServingMetrics], list[Cell]]
) -> tuple[Group, ...]:
    groups = []
    for run in block.runs:
        rows = tuple(_row(m, cells(m.serving)) for m in run.methods if m.serving)
        if rows:
            groups.append(Group("" if results.is_one_run else run.label, rows))
    return tuple(groups)


def _row(method: MethodResults, cells: list[Cell]) -> Row:
    has_failed = method.overall.pooled.num_failed > 0
    return Row(method.method, method.label, tuple(cells), has_failed=has_failed)
