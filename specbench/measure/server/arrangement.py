"""The arrangement of a run's servers: side by side if their memory fits, else in turns.

Servers that are up all the time take turns by block, so that drift of the machine affects all
methods alike.
"""

import math
from collections.abc import Mapping, Sequence
from typing import get_args

from specbench.log.backend import Arrangement
from specbench.machine.memory import GpuMemory, free_bytes, gpu_memory
from specbench.measure.server.engine import Engine, Launch
from specbench.models.cards import Dtype
from specbench.models.checkpoints import config_if_readable
from specbench.models.memory import kv_bytes

_USED = 0.8
"""Share of the free memory that all servers may need: below 1, since the need is an estimate."""
_GIB = 2**30


def arrange(
    engine: Engine, launches: Sequence[Launch], engine_args: Sequence[str]
) -> Arrangement | None:
    """The arrangement of the servers; None for a single one.

    Servers are side by side if the weights, caches and processes of all fit into the free memory,
    in equal shares of a GPU. `engine_args` are the user's further arguments. Their effect on memory
    is unknown, so with them the servers take turns.
    """
    if len(launches) < 2:
        return None
    if engine_args:
        return Arrangement(False, reason="--engine-args may change the memory of a server")
    needs = [_needed_bytes(engine, launch) for launch in launches]
    if launches[0].is_cpu:
        return _arranged(sum(needs), free_bytes("cpu"))
    on_host = _arranged(engine.process_bytes * len(launches), free_bytes("cpu"))
    if not on_host.is_side_by_side:
        return on_host
    gpu = gpu_memory()
    if gpu is None:
        return Arrangement(False, reason="the memory of the GPU cannot be read")
    if not engine.fills_gpu:  # a server takes what it needs
        return _arranged(sum(needs), gpu.free_bytes)
    if not engine.share_flag:
        reason = f"{engine.title} cannot be given a share of a GPU's memory"
        return Arrangement(False, reason=reason)
    return _in_shares(needs, gpu)


def _arranged(needed_bytes: int, num_free: int) -> Arrangement:
    """Side by side if the servers need at most _USED of the free bytes."""
    is_side_by_side = needed_bytes <= _USED * num_free
    return Arrangement(is_side_by_side, needed_bytes=needed_bytes, free_bytes=num_free)


def _in_shares(needs: Sequence[int], gpu: GpuMemory) -> Arrangement:
    """Side by side if an equal share of a GPU holds the largest server."""
    share_bytes = _USED * gpu.free_bytes / len(needs)
    percent = math.floor(100 * share_bytes / gpu.total_bytes)
    is_side_by_side = max(needs) <= percent / 100 * gpu.total_bytes
    return Arrangement(
        is_side_by_side,
        needed_bytes=max(needs) * len(needs),  # in equal shares
        free_bytes=gpu.free_bytes,
        gpu_share=percent / 100 if is_side_by_side else 0.0,
    )


def _needed_bytes(engine: Engine, launch: Launch) -> int:
    """Estimated bytes of a device's memory that a server needs."""
    folders = [launch.model, *([launch.weights] if launch.weights else [])]
    config = config_if_readable(launch.model)
    dtype = _dtype(launch.dtype, config)
    num_tokens = launch.context * launch.num_at_once
    weight_bytes = sum(engine.weight_bytes(folder, dtype) for folder in folders)
    cache_bytes = sum(kv_bytes(folder, dtype, num_tokens) for folder in folders)
    least_bytes = engine.cpu_cache_gib * _GIB if launch.is_cpu else 0  # a fixed pool
    return weight_bytes + max(cache_bytes, least_bytes) + engine.process_bytes


def _dtype(asked: str, config: Mapping[str, object]) -> Dtype:
    """The dtype of a server: as asked, or as stored; float32, the largest, if it is unknown."""
    stored = asked or config.get("dtype") or config.get("torch_dtype")
    dtypes: tuple[Dtype, ...] = get_args(Dtype)
    return next((dtype for dtype in dtypes if dtype == stored), "float32")
