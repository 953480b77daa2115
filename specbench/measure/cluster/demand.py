"""The GPUs or CPUs of a worker, and how many workers the nodes of a cluster can hold.

Counts resources. Must not talk to Ray.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from specbench.errors import TooLarge, UserError


class Demand(NamedTuple):
    """The resources of one worker, and the number of workers that the cluster can hold."""

    resource: Literal["GPU", "CPU"]
    amount: int
    number: int


def demand_of(device: str, nodes: Sequence[dict[str, float]], address: str) -> Demand:
    """The demand of workers for `--device` on nodes with these resources.

    A worker has a GPU, or, on a CPU, all cores of the smallest node, so that none disturbs another.
    `with_more_gpus` is for a model that is too large for one.

    Raises:
        UserError: the device has a number, or the cluster has no GPU or CPU for a worker.
    """
    num_gpus = int(sum(node.get("GPU", 0) for node in nodes))
    if ":" in device:
        raise UserError(
            f"--device {device} names GPUs, and Ray chooses those of its workers.",
            "Give --device cuda, or leave it out.",
        )
    if device == "cuda" and not num_gpus:
        raise UserError(
            f"A worker needs 1 GPU, and the cluster at {address} has 0.",
            "Start its machines with `ray start --num-gpus N`, or use --device cpu.",
        )
    if num_gpus and device != "cpu":
        return Demand("GPU", 1, num_gpus)
    cores = [int(node.get("CPU", 0)) for node in nodes if node.get("CPU", 0) >= 1]
    if not cores:
        raise UserError(
            f"A worker needs 1 CPU, and the cluster at {address} has 0.",
            "Start its machines with `ray start --num-cpus N`.",
        )
    return Demand("CPU", min(cores), sum(count // min(cores) for count in cores))


def with_more_gpus(demand: Demand, nodes: Sequence[dict[str, float]], error: TooLarge) -> Demand:
    """The demand for a model that is too large for `demand`: workers with more GPUs, on one node.

    Raises:
        TooLarge: no node has enough GPUs, or the model is too large for a CPU.
    """
    if not error.num_gpus_needed:
        raise error
    amount = max(error.num_gpus_needed, demand.amount + 1)
    counts = [int(node.get("GPU", 0)) for node in nodes]
    if amount > max(counts):
        raise TooLarge(
            f"{error.message} The largest machine of the cluster has {max(counts)}.",
            error.hint,
            num_gpus_needed=amount,
        ) from error
    return Demand("GPU", amount, sum(count // amount for count in counts))
