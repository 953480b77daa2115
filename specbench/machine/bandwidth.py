"""Measure the memory's bandwidth on blocks that are larger than any cache.

A step only reads weights, so blocks are only read. A copy would be slower on any device. On a CPU
the block lies in huge pages, as weights do, because pages of 4 KB are read up to 40 % slower.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from specbench.engine.huge_pages import huge_block
from specbench.errors import checked_seconds
from specbench.machine.memory import free_bytes
from specbench.machine.nvml import driver, find_card

MIB = 2**20
GPU_BYTES = 512 * MIB
"""Block size on a GPU. It is ten times the cache, and is read in a fraction of a millisecond."""
LEAST_BYTES = 64 * MIB
"""Smallest block on a CPU. Larger caches need larger blocks; cache sizes differ a hundredfold."""
MOST_BYTES = 512 * MIB
"""Largest block on a CPU."""
MOST_SECONDS = 0.5
"""Seconds in which a call is repeated. The fastest call counts."""
MOST_CALLS = 20
"""The most calls in `MOST_SECONDS`."""
_READS = "the calls that measure the memory's bandwidth"
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def bandwidth(device: torch.device, block: int | None = None) -> float:
    """The bandwidth of the device's memory in bytes/s, from the fastest of several reads.

    `block` is the number of bytes to read, by default `block_bytes`. A CPU reads with as many
    threads as torch uses. The measurement takes about a second and at most a gigabyte.
    """
    num_integers = (block or block_bytes(device)) // 8
    if device.type == "cuda":
        read = _reader(device)
        return 8 * num_integers / _gpu_seconds(device, num_integers, lambda source, _: read(source))
    huge = huge_block(8 * num_integers)
    source = torch.ones(num_integers, dtype=torch.int64) if huge is None else huge.view(torch.int64)
    source.fill_(1)
    return source.nbytes / _fastest(source.sum, _timed)


def copy_bandwidth(device: torch.device, block: int | None = None) -> float:
    """The bytes/s that a GPU reads and writes while it copies a block. 0 on a CPU."""
    if device.type != "cuda":
        return 0.0
    num_integers = (block or block_bytes(device)) // 8
    seconds = _gpu_seconds(device, num_integers, lambda source, target: target.copy_(source))
    return 2 * 8 * num_integers / seconds


def nominal_bandwidth(device: torch.device) -> float:
    """The bandwidth of a GPU's memory in bytes/s, computed from its clock and bus width.

    Data move twice per clock: 2 * clock * width. 0 on a CPU, or if the driver reports neither.
    """
    if device.type != "cuda":
        return 0.0
    with driver() as nvml:
        card = nvml and find_card(nvml, torch.cuda.get_device_properties(device))
        if card is None:
            return 0.0
        clock_mhz = card.query("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM) or 0
        width_bits = card.query("nvmlDeviceGetMemoryBusWidth") or 0
    return 2 * clock_mhz * 1e6 * width_bits / 8


def cache_bytes(device: torch.device) -> int:
    """The size of the last-level cache in bytes, or 0 if it is unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = [0]
    for file in _CACHES.glob("index*/size"):  # contents such as 32768K, always in this unit
        with suppress(OSError, ValueError):
            sizes.append(int(file.read_text().strip().removesuffix("K")) * 2**10)
    return max(sizes)


def _fastest(work: Callable[[], Tensor], timed: Callable[[Callable[[], Tensor]], float]) -> float:
    """The seconds of the fastest call of `work`. A first call warms up and does not count."""
    work()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < MOST_CALLS and (not times or time.perf_counter() - began < MOST_SECONDS):
        times.append(timed(work))
    # If the clock jumps back, only one of the times is wrong.
    return checked_seconds(min((seconds for seconds in times if seconds > 0), default=0.0), _READS)


def block_bytes(device: torch.device, weights: int = 0) -> int:
    """The size of the block in bytes: at most a quarter of the free memory.

    On a CPU the block is as large as the `weights`, because a cache helps large blocks less. It is
    never smaller than twice the cache or `LEAST_BYTES`, or larger than `MOST_BYTES`.
    """
    if device.type == "cuda":
        num_free = torch.cuda.mem_get_info(device)[0]
        return max(MIB, min(GPU_BYTES, num_free // 4))
    preferred_bytes = min(MOST_BYTES, max(LEAST_BYTES, 2 * cache_bytes(device), weights))
    return max(MIB, min(preferred_bytes, free_bytes("cpu") // 4))


def _reader(device: torch.device) -> Callable[[Tensor], Tensor]:
    """A function that sums all numbers of a block: our kernel if its sums are right on this GPU,
    else torch's.
    """
    with suppress(Exception):  # no Triton, no compiler, or a GPU that is too old
        from specbench.engine.read_kernel import READ_BLOCK, block_sums

        if block_sums(torch.ones(READ_BLOCK + 1, dtype=torch.int64, device=device))[1] == 1:
            return block_sums
    return torch.sum


def _gpu_seconds(
    device: torch.device, num_integers: int, work: Callable[[Tensor, Tensor], Tensor]
) -> float:
    """The seconds of the fastest call of `work`, which gets two blocks of a GPU's memory."""
    first, second = torch.ones((2, num_integers), dtype=torch.int64, device=device)
    timed = partial(_timed_on_gpu, partial(work, first, second))
    seconds = _fastest(partial(work, second, first), timed)
    del first, second, timed
    torch.cuda.empty_cache()  # leave the memory to the model
    return seconds


def _timed(call: Callable[[], Tensor]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _timed_on_gpu(before: Callable[[], Tensor], call: Callable[[], Tensor]) -> float:
    """The seconds of `call`, which is launched while the GPU still works on `before`.

    This way the time of the launch is not counted, and the cache does not hold the call's memory.
    """
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before()
    began.record()
    call()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1e3
