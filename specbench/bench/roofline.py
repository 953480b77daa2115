"""What `run.json` keeps of the machine's memory, and of what the models read of it.

Knows the loaded target and drafters. Computes no limit: `analysis.roofline` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specbench.types import Record

if TYPE_CHECKING:
    from specbench.engine.drafter import Drafter
    from specbench.engine.target import Target

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def describe_target(target: Target) -> dict[str, Any]:
    """The memory's bandwidth, measured now, and what a step of the target reads, in bytes.

    Of a mixture of experts a step reads the experts that its tokens choose; the bytes are of all.
    """
    from specbench.bench.bandwidth import bandwidth, cache_bytes
    from specbench.engine.weights import pass_bytes

    experts = (getattr(target.config, name, None) or 1 for name in _EXPERTS)
    return {
        "bandwidth_bytes_per_s": bandwidth(target.device),
        "cache_bytes": cache_bytes(target.device),
        "target_bytes": pass_bytes(target.model),
        "kv_bytes_per_token": target.cache.bytes_per_token,
        "is_mixture_of_experts": max(experts) > 1,
    }


def describe_drafts(drafters: Mapping[str, Drafter], records: Sequence[Record]) -> dict[str, float]:
    """Bytes that each method's mean draft read, over the steps of its records; none without any."""
    found = {}
    for label, drafter in drafters.items():
        nodes = [n for record in records if record.key.method == label for n in record.num_nodes]
        if not nodes:
            continue
        try:
            found[label] = float(drafter.bytes_read(sum(nodes) / len(nodes)))
        except Exception:  # any plug-in; its samples are worth more than its limit
            continue
    return found
