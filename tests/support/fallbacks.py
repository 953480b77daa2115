"""The fallbacks of a run on a GPU, which change no result."""

import torch

from specbench.engine.graphs.cuda import Graphs
from specbench.engine.kernels.pick_ops import NO_OVERLAP
from specbench.engine.target import Target
from specbench.log.header import RunHeader

IS_OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 9)
"""True if this torch's Triton does not support overlapped launches."""


def fallbacks(target: Target) -> list[str]:
    """The reasons why a target's steps were not recorded, or not computed by kernels."""
    execution = target.execution
    replaced = [what for what in execution.ops.fallbacks if not (IS_OLD and what == NO_OVERLAP)]
    reasons = [target.unfused_reason, *replaced, *execution.failures]
    reasons.append(execution.ops.kernels_unsupported_reason)
    if execution.ops.name == "torch":
        reasons.append("torch's operations were used")
    if not isinstance(execution, Graphs) or not execution.num_recordings:
        reasons.append("nothing was recorded")
    elif execution.num_late:
        reasons.append(f"{execution.num_late} steps were recorded late")
    return [reason for reason in reasons if reason]


def fallbacks_of_run(header: RunHeader) -> list[str]:
    """The methods that were not replayed and the kernels that were not used, by a run's header."""
    modes = {label: header.execution.get(label) for label in header.spec.values.methods}
    reasons = [
        f"{label} ran {mode}"
        for label, mode in modes.items()
        if mode is None or mode.mode != "graph" or mode.reason
    ]
    kernels = header.kernels
    reason = (kernels and kernels.reason) or ""
    is_known = not reason or (IS_OLD and reason.startswith(NO_OVERLAP))
    if kernels is None or not kernels.name.startswith("triton") or not is_known:
        reasons.append(f"layers by {kernels}")
    return reasons
