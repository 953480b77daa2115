"""Make the columns with numbers over all tasks, which only the summary's rows "pooled" have."""

from dataclasses import asdict
from typing import Any

from specbench.analysis.columns import value_columns, value_or_none
from specbench.analysis.metrics import RunMetrics
from specbench.analysis.serving import TIMES, ServingMetrics, Times

_SERVING_VALUES = (
    "throughput_ratio",
    "output_throughput",
    "total_throughput",
    "request_throughput",
    "goodput",
    "engine_mat",
)
"""Fields of `ServingMetrics` with columns for an interval and for the reason if it is missing."""


def pooled_columns(metrics: RunMetrics, method: str, temperature: float) -> dict[str, Any]:
    """Make the columns of step costs, equality with vanilla, bins of steps, and servers."""
    return {
        **_costs(metrics, method, temperature),
        **_agreement(metrics, method, temperature),
        **_step_bins(metrics, method, temperature),
        **_serving(metrics.serving.get((method, temperature))),
    }


def _costs(metrics: RunMetrics, method: str, temperature: float) -> dict[str, Any]:
    """Make the columns of the cost of steps. Unknown numbers are None.

    `cost_speedup` is MAT / (seconds of a step / seconds of vanilla's step), over completions that
    vanilla has too. `relative_verify` and so on are seconds of a step's phase / seconds of
    vanilla's step. `step_bytes` are the bytes of weights that a step reads, `bytes_per_s` the speed
    at which it reads them. `nominal_share` is this speed / the bandwidth that the memory's clock
    and bus width give.
    """
    cost = metrics.cost(method, temperature)
    phases = asdict(cost.relative_phases) if cost.relative_phases else {}
    return {
        "cost_speedup": value_or_none(cost.decode_speedup),
        **{f"relative_{name.removesuffix('_s')}": share for name, share in phases.items()},
        "step_bytes": cost.step_bytes or None,
        "bytes_per_s": cost.bytes_per_s or None,
        "nominal_share": cost.nominal_share or None,
    }


def _agreement(metrics: RunMetrics, method: str, temperature: float) -> dict[str, Any]:
    """Make the columns that count greedy answers equal to vanilla's, and different ones.

    `first_difference` is the smallest position, in tokens, at which an answer differs, or None.
    """
    agreement = metrics.agreements.get(method)
    if agreement is None or temperature:
        return {}
    return {
        "num_compared": agreement.num_compared,
        "num_identical": agreement.num_identical,
        "num_different": len(agreement.divergences),
        "first_difference": agreement.first_position,
    }


def _step_bins(metrics: RunMetrics, method: str, temperature: float) -> dict[str, Any]:
    """Make columns with the MAT in each bin of steps, under names such as `mat_position_32_63`."""
    columns: dict[str, Any] = {}
    for step_bin in metrics.step_bins.get((method, temperature), ()):
        range_name = step_bin.range_text.replace("-", "_")  # 32-63 becomes 32_63
        columns |= value_columns(f"mat_{step_bin.axis}_{range_name}", step_bin.mat)
    return columns


def _serving(serving: ServingMetrics | None) -> dict[str, Any]:
    """Make columns with the numbers of a server; empty without a server.

    A throughput, the goodput and `engine_mat` have columns for the number, the ends of its interval
    and the reason if it is missing. `throughput_ratio` is output tokens/s / vanilla's; the goodput
    is requests/s within the bounds on latency that the user gave; `engine_mat` is 1 + accepted
    draft tokens / drafts, as engines define MAT. A time such as TTFT has columns for its mean and
    percentiles in seconds. `in_flight_mean` and `in_flight_most` are the mean and the largest
    number of requests that the server worked on at once; 0 if they are unknown. `acceptance_rate_2`
    is the share of drafts whose first two tokens were accepted.
    """
    if serving is None:
        return {}
    columns: dict[str, Any] = {}
    for name in _SERVING_VALUES:
        columns |= value_columns(name, getattr(serving, name))
    columns |= {"in_flight_mean": serving.in_flight.mean, "in_flight_most": serving.in_flight.most}
    for name in TIMES:
        columns |= _times(name, getattr(serving, name))
    rates = enumerate(serving.acceptance_rates, start=1)  # by position
    columns |= {f"acceptance_rate_{position}": rate for position, rate in rates}
    return columns


def _times(name: str, times: Times) -> dict[str, Any]:
    percentiles = {which: getattr(times.percentiles, which) for which in ("p50", "p90", "p99")}
    return {
        f"{name}_{which}_s": value_or_none(seconds)
        for which, seconds in {"mean": times.mean, **percentiles}.items()
    }
