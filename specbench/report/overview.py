"""A method's line over all tasks: the numbers that have no room in the paper's table.

Knows the columns, their texts and which of them to give up first. Knows no markup.
"""

from collections.abc import Callable
from dataclasses import dataclass

from specbench.analysis.metrics import BASELINE
from specbench.report import formats
from specbench.report.table import Row


@dataclass(frozen=True, slots=True)
class OverviewColumn:
    """A line break in the heading is where it may be broken. `rank` 0 always stays; where room is
    short, the highest rank goes first.
    """

    heading: str
    text: Callable[[Row], str]
    rank: int = 0


def _same(row: Row) -> str:
    return "" if row.method == BASELINE else formats.percent(row.overall.pooled.match_rate)


OVERVIEW = (
    OverviewColumn("speedup [95 %]", lambda row: formats.bracketed(row.overall.speedup)),
    OverviewColumn("decode\nonly", lambda row: formats.speedup(row.overall.decode_speedup), 5),
    OverviewColumn("tok/s", lambda row: formats.rate(row.overall.pooled.tokens_per_s), 1),
    OverviewColumn("MAT\npooled", lambda row: formats.mat(row.overall.pooled.mat), 4),
    OverviewColumn("MAT\nmacro", lambda row: formats.mat(row.overall.pooled.mat_macro), 7),
    OverviewColumn("same as\nvanilla", _same, 2),
    OverviewColumn("done", lambda row: str(row.overall.pooled.num_done), 6),
    OverviewColumn("failed", lambda row: str(row.overall.pooled.num_failed), 3),
)
