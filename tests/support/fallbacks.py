"""Fallbacks of a run on a GPU, which change no result."""

from __future__ import annotations

from collections.abc import Iterator

from specbench.engine.graphs.cuda import Graphs
from specbench.engine.target import Target
from specbench.log.header import RunHeader


def fallbacks(target: Target) -> list[str]:
    """Steps of a target that were not recorded or not computed by kernels."""
    execution = target.execution
    found = [target.unfused_reason, execution.ops.reason, *execution.failures]
    if execution.ops.name == "torch":
        found.append("torch's operations were used")
    if not isinstance(execution, Graphs) or not execution.num_recordings:
        found.append("nothing was recorded")
    elif execution.num_late:
        found.append(f"{execution.num_late} steps were recorded late")
    return [reason for reason in found if reason]


def fallbacks_of_run(header: RunHeader) -> list[str]:
    """Methods that were not replayed and kernels that were not used, from a run's header."""
    return [*_of_methods(header), *_of_kernels(header)]


def _of_methods(header: RunHeader) -> Iterator[str]:
    for label in header.spec.values.methods:
        mode = header.execution.get(label)
        if mode is None:
            yield f"{label}: the header tells nothing"
        elif mode.mode != "graph" or mode.reason:
            yield f"{label} ran {mode.mode}: {mode.reason}"


def _of_kernels(header: RunHeader) -> Iterator[str]:
    kernels = header.kernels
    if kernels is None or not kernels.name.startswith("triton") or kernels.reason:
        yield f"layers by {kernels}"
