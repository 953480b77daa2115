"""Memory that a device has free: a GPU's, or this machine's below the limit of a container."""

import math
from pathlib import Path
from typing import NamedTuple

from specbench.log.machine import gpu_numbers
from specbench.machine.nvml import driver, visible_cards

_CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: str) -> int:
    """Free memory of a device: a GPU, several ("cuda:0-1"), or this machine's ("cpu")."""
    if device == "cpu":
        import psutil

        return int(min(psutil.virtual_memory().available, _container_bytes()))
    import torch

    return sum(int(torch.cuda.mem_get_info(index)[0]) for index in gpu_numbers(device))


def _container_bytes() -> float:
    """Bytes left below a container's limit, which the machine's figures ignore; inf without one."""
    try:
        most_bytes = (_CGROUP / "memory.max").read_text().strip()
        used_bytes = int((_CGROUP / "memory.current").read_text())
        stats = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return math.inf
    if most_bytes == "max":
        return math.inf
    reclaimable_bytes = int(stats.get("inactive_file", 0))
    return int(most_bytes) - used_bytes + reclaimable_bytes


class GpuMemory(NamedTuple):
    """Memory of a GPU."""

    free_bytes: int
    """Bytes that no process uses."""
    total_bytes: int
    """All bytes."""


def gpu_memory() -> GpuMemory | None:
    """Memory of the first GPU that programs see; None if the driver does not report it.

    Torch is not asked: it would itself take memory of the GPU.
    """
    with driver() as nvml:
        for card in visible_cards(nvml)[:1] if nvml else ():
            memory = card.query("nvmlDeviceGetMemoryInfo")
            if memory is not None:
                return GpuMemory(int(memory.total) - int(memory.used), int(memory.total))
    return None
