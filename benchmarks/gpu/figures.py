"""Figures of stored runs: speeds, shares of the limit, and the host's part of a step.

Knows runs on disk, including killed ones. Loads no model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specbench.analysis.cells import BASELINE
from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.stats.bootstrap import Estimate, Missing, Value
from specbench.log.header import header_values
from specbench.log.run import Run


def describe_run(run: Run) -> dict[str, Any]:
    """Figures of a run: its machine, its preparation and every method."""
    metrics, header = measure(run), header_values(run.header)
    preparation, bandwidth = header.get("preparation", {}), header.get("roofline", {})
    return {
        "status": header["status"],
        "bandwidth_gb_s": round(bandwidth.get("bandwidth_bytes_per_s", 0.0) / 1e9, 1),
        "capture_s": preparation.get("warm_up_s"),
        "num_late": preparation.get("num_late", 0) if "warm_up_s" in preparation else None,
        "kernels": header.get("kernels"),
        "execution": header.get("execution"),
        "vanilla_bandwidth_share": vanilla_share(metrics),
        "methods": {method: _describe(metrics, method) for method in metrics.methods},
    }


def vanilla_share(metrics: RunMetrics) -> float | str:
    """The share of the bandwidth that vanilla's steps use, or the reason it is missing."""
    roofline = metrics.roofline
    if isinstance(roofline, Missing):
        return roofline.reason
    return shown(roofline.bandwidth_share(metrics.cost(BASELINE, metrics.temperatures[0]).step_s))


def describe_host(run: Run) -> dict[str, Mapping[str, float]]:
    """Method -> part of a step in which the device waits for the host."""
    metrics = measure(run)
    found: dict[str, Mapping[str, float]] = {}
    for method in metrics.methods:
        phases = metrics.cost(method, metrics.temperatures[0]).phases
        if phases:
            total = phases.draft_s + phases.verify_s + phases.commit_s + phases.host_s
            share = round(phases.host_s / total, 4)
            found[method] = {"ms": round(1e3 * phases.host_s, 4), "share": share}
    return found


def shown(value: Value, scale: float = 1.0) -> float | str:
    """The number, or the reason it is missing."""
    return round(scale * value.value, 4) if isinstance(value, Estimate) else value.reason


def _describe(metrics: RunMetrics, method: str) -> dict[str, float | str]:
    """A method's speedup, the cost of its steps, and its share of the limit."""
    temperature = metrics.temperatures[0]
    cost, pooled = metrics.cost(method, temperature), metrics.pooled(method, temperature)
    return {
        "speedup": shown(pooled.speedup),
        "mat": shown(pooled.mat),
        "step_ms": shown(cost.step_s, 1e3),
        "step_cost": shown(cost.relative),
        "limit": shown(cost.limit),
        "share_of_limit": shown(cost.reached),
    }
