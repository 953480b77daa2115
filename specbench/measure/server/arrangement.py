"""Run the servers of a run side by side if they all fit into memory, else one at a time.

Servers that are up all the time take turns block by block, so that drift of the machine affects
all methods alike.
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
"""The largest share of the free memory that all servers may need together. Needs are estimates."""
_GIB = 2**30


def arrange(
    engine: Engine, launches: Sequence[Launch], engine_args: Sequence[str]
) -> Arrangement | None:
    """Decide whether servers run side by side or one at a time; None for a single server.

    They are side by side if their weights, caches and processes need at most _USED of the device's
    free memory, which is the machine's on a CPU, else the first GPU's. With a GPU, the processes
    must also fit into the machine's memory in the same way. If the engine takes all of a GPU, each
    server gets an equal share, which must be enough for the largest server. This needs a flag of
    the engine.

    Args:
        engine: the engine of all servers.
        launches: the servers to start.
        engine_args: the user's further arguments for the engine. Their effect on memory is unknown,
            so with them the servers run one at a time.
    """
    if len(launches) < 2:
        return None
    if engine_args:
        reason = "--engine-args may change the memory of a server"
        return Arrangement(is_side_by_side=False, reason=reason)
    server_bytes = [_needed_bytes(engine, launch) for launch in launches]
    if launches[0].is_cpu:  # all servers have the same device
        return _by_free_bytes(sum(server_bytes), free_bytes("cpu"))
    # The arrangement if only the processes, without weights and caches, need memory of the machine.
    on_machine = _by_free_bytes(engine.process_bytes * len(launches), free_bytes("cpu"))
    if not on_machine.is_side_by_side:
        return on_machine
    gpu = gpu_memory()
    if gpu is None:  # the driver does not report its memory
        return Arrangement(is_side_by_side=False, reason="the memory of the GPU cannot be read")
    if not engine.fills_gpu:  # a server takes no more than it needs
        return _by_free_bytes(sum(server_bytes), gpu.free_bytes)
    if not engine.share_flag:  # the engine's flag for the share of a GPU that a server takes
        reason = f"{engine.title} cannot be given a share of a GPU's memory"
        return Arrangement(is_side_by_side=False, reason=reason)
    return _in_shares(server_bytes, gpu)


def _by_free_bytes(needed_bytes: int, num_free: int) -> Arrangement:
    """The arrangement is side by side if the servers' `needed_bytes` are at most _USED of
    `num_free`.
    """
    return Arrangement(
        is_side_by_side=needed_bytes <= _USED * num_free,
        needed_bytes=needed_bytes,
        free_bytes=num_free,
    )


def _in_shares(server_bytes: Sequence[int], gpu: GpuMemory) -> Arrangement:
    """The arrangement is side by side if an equal share of a GPU is enough for every server. Shares
    are whole percentages.

    `server_bytes` has the bytes that each server needs.
    """
    share_bytes = _USED * gpu.free_bytes / len(server_bytes)
    percent = math.floor(100 * share_bytes / gpu.total_bytes)
    is_side_by_side = max(server_bytes) <= percent / 100 * gpu.total_bytes
    return Arrangement(
        is_side_by_side=is_side_by_side,
        needed_bytes=max(server_bytes) * len(server_bytes),  # in equal shares
        free_bytes=gpu.free_bytes,
        gpu_share=percent / 100 if is_side_by_side else 0.0,
    )


def _needed_bytes(engine: Engine, launch: Launch) -> int:
    """The estimated bytes that a server's weights, caches and process need on its device.

    `launch` is the server to start. It has the folders of the model and of the draft weights (None
    if the method has none), the dtype of the weights, the context of a request in tokens, and the
    number of requests at once.
    """
    folders = [launch.model, *([launch.weights] if launch.weights else [])]
    config = config_if_readable(launch.model)  # config.json; empty if it cannot be read
    dtype = _dtype(launch.dtype, config)
    num_tokens = launch.context * launch.num_at_once  # in the caches of keys and values
    weight_bytes = sum(engine.weight_bytes(folder, dtype) for folder in folders)
    cache_bytes = sum(kv_bytes(folder, dtype, num_tokens) for folder in folders)
    # On a CPU, some engines reserve a fixed number of GiB for the caches, even if fewer would do.
    reserved_bytes = engine.cpu_cache_gib * _GIB if launch.is_cpu else 0
    return weight_bytes + max(cache_bytes, reserved_bytes) + engine.process_bytes


def _dtype(requested: str, config: Mapping[str, object]) -> Dtype:
    """The requested dtype of a server, or if that is empty, the model's stored dtype.

    `config` is the model's config.json. Without a known dtype in either, it is float32, the
    largest.
    """
    wanted = requested or config.get("dtype") or config.get("torch_dtype")
    dtypes: tuple[Dtype, ...] = get_args(Dtype)
    return next((dtype for dtype in dtypes if dtype == wanted), "float32")
