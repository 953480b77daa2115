"""The bytes that the engine's models read, for the roofline of a run.

`analysis.roofline` computes the limit from them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from specbench.log.backend import RooflineHeader
from specbench.types import Record

if TYPE_CHECKING:
    from specbench.engine.drafter import Drafter
    from specbench.engine.target import Target

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def measure_traffic(target: Target) -> RooflineHeader:
    """Measure the memory's bandwidth, and count the bytes that a step of the target reads.

    For a mixture of experts, the bytes are those of all experts, of which a step reads a part.
    """
    from specbench.engine.layers.weights import pass_bytes
    from specbench.machine.bandwidth import bandwidth, block_bytes, cache_bytes

    experts = (getattr(target.config, name, None) or 1 for name in _EXPERTS)
    weights = pass_bytes(target.model)
    block = block_bytes(target.device, weights)
    return RooflineHeader(
        bandwidth_bytes_per_s=bandwidth(target.device, block),
        block_bytes=block,
        cache_bytes=cache_bytes(target.device),
        target_bytes=weights,
        kv_bytes_per_token=target.cache.bytes_per_token,
        is_mixture_of_experts=max(experts) > 1,
    )


def draft_bytes(drafters: Mapping[str, Drafter], records: Sequence[Record]) -> dict[str, float]:
    """Bytes that each method's mean draft reads, over the steps of its records, if it has any."""
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
