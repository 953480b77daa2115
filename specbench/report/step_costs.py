"""Make the table of what a step costs: time and phases, bytes read, energy and memory."""

from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats.estimates import Estimate
from specbench.report import formats
from specbench.report.fields import Field, make_table, with_text
from specbench.report.results import Block, MethodResults, Report
from specbench.report.table import Table


def _phase(name: str, rank: int = 0) -> Field:
    """Return the column for a step's phase / vanilla's step. `name` is a field of `Phases`."""

    def text(method: MethodResults) -> str:
        phases = method.cost.relative_phases
        return formats.NONE if phases is None else f"{getattr(phases, name):.2f}"

    return Field(name.removesuffix("_s"), rank=rank, text=text)


def _peak_memory(method: MethodResults) -> str:
    num_bytes = method.cost.peak_memory_bytes
    return formats.NONE if num_bytes is None else f"{num_bytes / 2**30:.1f}"


def _share_of_bound(method: MethodResults) -> str:
    """Return the decode speedup / the bandwidth bound, which may exceed 1.

    The text is empty for vanilla, which is its own bound.
    """
    share = method.cost.reached
    if method.method == BASELINE:
        return ""
    return f"{share.value * 100:.0f} %" if isinstance(share, Estimate) else formats.NONE


_FAST = 1e12
"""Read speeds of at least this many bytes/s are shown in TB/s instead of GB/s."""


def _figures(number: float) -> str:
    """Write the number with three significant figures. 0 means unknown and becomes a dash."""
    return formats.figures(Estimate(number)) if number else formats.NONE


def _terabytes_per_s(method: MethodResults) -> str:
    speed = method.cost.bytes_per_s
    return _figures(speed / 1e12 if speed >= _FAST else 0.0)


def _gigabytes_per_s(method: MethodResults) -> str:
    speed = method.cost.bytes_per_s
    return _figures(speed / 1e9 if speed < _FAST else 0.0)


def _share_of_nominal(method: MethodResults) -> str:
    share = method.cost.nominal_share
    return f"{share * 100:.0f} %" if share else formats.NONE


_COSTS = (
    Field("all steps\nMAT", text=lambda method: formats.mat(method.cost.mat)),
    Field("step\ncost", text=lambda method: formats.mat(method.cost.relative)),
    Field("all steps\nspeedup", text=lambda method: formats.speedup(method.cost.decode_speedup)),
    _phase("draft_s"),
    _phase("verify_s"),
    _phase("commit_s", rank=1),
    _phase("host_s", rank=1),
    Field(
        "bandwidth\nbound",
        rank=2,
        short="bound",
        text=lambda method: formats.speedup(method.cost.bound),
    ),
    Field("of the\nbound", rank=3, text=_share_of_bound),
    Field("ms per\nstep", rank=4, text=lambda method: formats.figures(method.cost.step_s, 1e3)),
    Field("GB per\nstep", rank=4, text=lambda method: _figures(method.cost.step_bytes / 1e9)),
    Field("TB/s", rank=4, text=_terabytes_per_s),
    Field("GB/s", rank=4, text=_gigabytes_per_s),
    Field("of\nnominal", rank=5, text=_share_of_nominal),
    Field(
        "J per\ntoken",
        rank=5,
        text=lambda method: formats.figures(method.cost.joules_per_token),
    ),
    Field("peak\nGiB", rank=6, text=_peak_memory),
)
"""The columns of the table. Phases are relative to vanilla's step, so they sum to the step cost."""


def step_costs(report: Report, block: Block) -> Table:
    """Return the table of numbers that explain a speedup.

    It has no columns if no step can be compared.
    """
    can_compare = any(isinstance(method.cost.relative, Estimate) for method in block.methods)
    fields = with_text(_COSTS, block) if can_compare else ()
    title = "Cost of a step over all tasks, without prefill (decode speedup = MAT / step cost)"
    return make_table(title, report, block, fields)
