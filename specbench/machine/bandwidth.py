"""Memory bandwidth, measured on blocks larger than any cache.

Blocks are read, as a step reads weights. Copies are slower, on a CPU and on a GPU. On a CPU the
block lies in huge pages, as weights do: pages of 4 KB are read up to 40 % slower.
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
"""Block size on a GPU: ten times its cache, read in a fraction of a millisecond."""
LEAST_BYTES = 64 * MIB
"""Smallest block on a CPU; CPU caches differ by a factor of a hundred."""
MOST_BYTES = 512 * MIB
"""Largest block on a CPU."""
MOST_SECONDS = 0.5
"""Seconds of repeated calls, of which the fastest counts."""
MOST_CALLS = 20
"""Largest number of calls in `MOST_SECONDS`."""
_READS = "the calls that measure the memory's bandwidth"
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def bandwidth(device: torch.device, block: int | None = None) -> float:
    """Bandwidth of the device's memory in bytes/s: the best of several reads.

    `block` is the number of bytes, by default `block_bytes`. A CPU uses torch's number of threads.
    The measurement takes about a second and at most a gigabyte.
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
    """Bytes/s that a GPU reads and writes when it copies a block; 0 on a CPU."""
    if device.type != "cuda":
        return 0.0
    num_integers = (block or block_bytes(device)) // 8
    seconds = _gpu_seconds(device, num_integers, lambda source, target: target.copy_(source))
    return 2 * 8 * num_integers / seconds


def nominal_bandwidth(device: torch.device) -> float:
    """Bandwidth of a GPU's memory in bytes/s by its clock and bus width.

    Data move twice per clock: 2 * clock * width. 0 on a CPU, or without a report of the driver.
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
    """Size of the last-level cache in bytes; 0 if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    sizes = [0]
    for file in _CACHES.glob("index*/size"):  # contents such as 32768K, always in this unit
        with suppress(OSError, ValueError):
            sizes.append(int(file.read_text().strip().removesuffix("K")) * 2**10)
    return max(sizes)


def _fastest(work: Callable[[], Tensor], timed: Callable[[Callable[[], Tensor]], float]) -> float:
    """Seconds of the fastest call of `work`, after a call that does not count."""
    work()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < MOST_CALLS and (not times or time.perf_counter() - began < MOST_SECONDS):
        times.append(timed(work))
    # If the clock jumps back, only one of the times is wrong.
    return checked_seconds(min((seconds for seconds in times if seconds > 0), default=0.0), _READS)


def block_bytes(device: torch.device, weights: int = 0) -> int:
    """Size of the block: twice the cache or more, and at most a quarter of the free memory.

    On a CPU it is the size of the `weights` in bytes, within these limits: a cache helps large
    blocks less.
    """
    if device.type == "cuda":
        num_free = torch.cuda.mem_get_info(device)[0]
        return max(MIB, min(GPU_BYTES, num_free // 4))
    preferred_bytes = min(MOST_BYTES, max(LEAST_BYTES, 2 * cache_bytes(device), weights))
    return max(MIB, min(preferred_bytes, free_bytes("cpu") // 4))


def _reader(device: torch.device) -> Callable[[Tensor], Tensor]:
    """Sums all numbers of a block on a GPU: our own kernel if it is right here, else torch's."""
    with suppress(Exception):  # no Triton, no compiler, or a GPU that is too old
        from specbench.engine.read_kernel import READ_BLOCK, block_sums

        if block_sums(torch.ones(READ_BLOCK + 1, dtype=torch.int64, device=device))[1] == 1:
            return block_sums
    return torch.sum


def _gpu_seconds(
    device: torch.device, num_integers: int, work: Callable[[Tensor, Tensor], Tensor]
) -> float:
    """Seconds of the fastest call of `work` from one block of a GPU's memory to another."""
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
    """Seconds of `call`, launched while the GPU still works on `before`.

    So the time of the launch is not counted, and the cache holds other memory.
    """
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before()
    began.record()
    call()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) / 1e3
