"""A method's line on what its steps cost: the numbers that explain its speedup.

Knows the columns, their texts and which of them to give up first. Knows no markup. The four phases
are in steps of vanilla's, so that they add up to the cost of a step.
"""

from collections.abc import Callable, Sequence

from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats import Estimate
from specbench.report import formats
from specbench.report.overview import OverviewColumn
from specbench.report.table import Row
from specbench.types import Phases

TITLE = "The cost of a step (decode speedup = MAT / step cost)"


def _phase(of: Callable[[Phases], float]) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        phases = row.cost.relative_phases
        return formats.NONE if phases is None else f"{of(phases):.2f}"

    return text


def _milliseconds(row: Row) -> str:
    step_s = row.cost.step_s
    return _figures(step_s.value * 1e3) if isinstance(step_s, Estimate) else formats.NONE


def _joules(row: Row) -> str:
    joules = row.cost.joules_per_token
    return _figures(joules.value) if isinstance(joules, Estimate) else formats.NONE


def _figures(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:#.3g}"


def _memory(row: Row) -> str:
    size = row.cost.peak_memory_bytes
    return formats.NONE if size is None else f"{size / 2**30:.1f}"


def _reached(row: Row) -> str:
    """A share that may be over 1; vanilla's limit is itself."""
    reached = row.cost.reached
    if row.method == BASELINE:
        return ""
    return f"{reached.value * 100:.0f} %" if isinstance(reached, Estimate) else formats.NONE


_COSTS = (
    OverviewColumn("MAT", lambda row: formats.mat(row.cost.mat)),
    OverviewColumn("step\ncost", lambda row: formats.mat(row.cost.relative)),
    OverviewColumn("decode\nspeedup", lambda row: formats.speedup(row.cost.decode_speedup)),
    OverviewColumn("draft", _phase(lambda phases: phases.draft_s)),
    OverviewColumn("verify", _phase(lambda phases: phases.verify_s)),
    OverviewColumn("commit", _phase(lambda phases: phases.commit_s), 1),
    OverviewColumn("host", _phase(lambda phases: phases.host_s), 1),
    OverviewColumn("limit", lambda row: formats.speedup(row.cost.limit), 2),
    OverviewColumn("of the\nlimit", _reached, 3),
    OverviewColumn("ms a\nstep", _milliseconds, 4),
    OverviewColumn("J a\ntoken", _joules, 5),
    OverviewColumn("peak\nGiB", _memory, 6),
)


def cost_columns(rows: Sequence[Row]) -> tuple[OverviewColumn, ...]:
    """The columns that any of the rows has something for; none where no step can be compared."""
    if not any(isinstance(row.cost.relative, Estimate) for row in rows):
        return ()
    return tuple(c for c in _COSTS if any(c.text(row) not in ("", formats.NONE) for row in rows))
