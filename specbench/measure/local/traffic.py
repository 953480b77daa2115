"""Measure the bytes that steps read, and the memory's bandwidth. Both bound the speed of a run.

`analysis.roofline` computes the bandwidth bound of a method from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from statistics import mean
from typing import TYPE_CHECKING

from msgspec.structs import replace

from specbench.errors import ClockError
from specbench.log.backend import RooflineHeader
from specbench.types import Record

if TYPE_CHECKING:
    import torch

    from specbench.engine.drafter import Drafter
    from specbench.engine.target import Target

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Names that configs use for the number of experts per layer."""


def measure_traffic(target: Target) -> RooflineHeader:
    """Measure the memory's bandwidth, and count the bytes that a step of the target reads.

    For a mixture of experts, `target_bytes` counts all experts, and `unread_bytes` are those of the
    experts that a step of one row does not choose and so does not read.
    """
    from specbench.engine.layers.weights import weight_bytes
    from specbench.engine.model_parts import pass_bytes
    from specbench.machine.bandwidth import (
        bandwidth,
        block_bytes,
        cache_bytes,
        copy_bandwidth,
        nominal_bandwidth,
    )

    config = target.config  # the settings of the text model in config.json
    # Experts per layer; 1 for a dense model. Configs use one of several names for it.
    num_experts = max(getattr(config, name, None) or 1 for name in _EXPERTS)
    num_chosen = getattr(config, "num_experts_per_tok", None) or num_experts  # experts per token
    if not isinstance(num_chosen, int):  # a list with a number per layer
        num_chosen = mean(num_chosen)
    expert_modules = [  # each module has all experts of a layer; none in a dense model
        module for name, module in target.model.named_modules() if name.endswith(".experts")
    ]
    unread_share = 1 - num_chosen / num_experts  # share of experts that a step of one row skips
    target_bytes = pass_bytes(target.model)  # bytes of weights that a step reads
    num_block_bytes = block_bytes(target.device, target_bytes)  # read to time the memory
    return RooflineHeader(
        bandwidth_bytes_per_s=bandwidth(target.device, num_block_bytes),
        block_bytes=num_block_bytes,
        cache_bytes=cache_bytes(target.device),  # size of the processor's last-level cache
        target_bytes=target_bytes,
        kv_bytes_per_token=target.cache.bytes_per_token,
        is_mixture_of_experts=num_experts > 1,
        unread_bytes=round(weight_bytes(*expert_modules) * unread_share),
        nominal_bytes_per_s=nominal_bandwidth(target.device),
        copy_bytes_per_s=copy_bandwidth(target.device, num_block_bytes),
    )


def draft_bytes(drafters: Mapping[str, Drafter], records: Sequence[Record]) -> dict[str, float]:
    """The mean bytes that drafting reads per step, by the method's label.

    `drafters` has the methods' drafters by label. The mean of a method covers all steps in its
    records among `records`. Methods without steps are left out.
    """
    bytes_by_label = {}
    for label, drafter in drafters.items():
        # The number of this method's steps, by the number of nodes of the step's tree.
        num_steps_by_nodes = Counter(
            num_nodes
            for record in records
            if record.key.method == label
            for num_nodes in record.num_nodes  # nodes of each step's tree
        )
        with suppress(Exception):  # a plug-in that fails here is left out; its samples count
            if num_steps_by_nodes:
                num_bytes = sum(
                    drafter.bytes_read(num_nodes) * num_steps
                    for num_nodes, num_steps in num_steps_by_nodes.items()
                )
                bytes_by_label[label] = num_bytes / num_steps_by_nodes.total()
    return bytes_by_label


def measure_again(roofline: RooflineHeader, device: torch.device) -> RooflineHeader:
    """The header with the bandwidth measured again, after the run. The largest sample counts.

    A sample is one measured bandwidth. Samples differ, because the memory of a shared machine
    varies in speed.
    """
    from specbench.machine.bandwidth import bandwidth

    try:
        bytes_per_s = bandwidth(device, roofline.block_bytes)
    except ClockError:  # the run has been measured all the same
        return roofline
    # `bandwidth_samples` is empty while there is a single sample.
    samples = (*(roofline.bandwidth_samples or (roofline.bandwidth_bytes_per_s,)), bytes_per_s)
    return replace(roofline, bandwidth_bytes_per_s=max(samples), bandwidth_samples=samples)
