"""Find how much memory of a GPU or of this machine is free, within a container's limit."""

import math
from pathlib import Path
from typing import NamedTuple

from specbench.log.machine import gpu_numbers
from specbench.machine.nvml import driver, visible_cards

_CGROUP = Path("/sys/fs/cgroup")


def free_bytes(device: str) -> int:
    """The free bytes of a GPU, of several GPUs ("cuda:0-1"), or of this machine ("cpu")."""
    if device == "cpu":
        import psutil

        return int(min(psutil.virtual_memory().available, _container_bytes()))
    import torch

    return sum(int(torch.cuda.mem_get_info(index)[0]) for index in gpu_numbers(device))


def _container_bytes() -> float:
    """The bytes left below the container's limit, or inf without one. psutil ignores this limit."""
    try:
        most_bytes = int((_CGROUP / "memory.max").read_text())  # a number, or "max" without a limit
        used_bytes = int((_CGROUP / "memory.current").read_text())
        stats = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return math.inf
    reclaimable_bytes = int(stats.get("inactive_file", 0))
    return most_bytes - used_bytes + reclaimable_bytes


class GpuMemory(NamedTuple):
    """The memory of a GPU."""

    free_bytes: int
    """Bytes that no process uses."""
    total_bytes: int
    """All bytes of the GPU."""


def gpu_memory() -> GpuMemory | None:
    """The memory of the first GPU that programs see, or None if the driver does not report it.

    Torch is not asked, because it would take some of the GPU's memory itself.
    """
    with driver() as nvml:
        for card in visible_cards(nvml)[:1] if nvml else ():
            memory = card.query("nvmlDeviceGetMemoryInfo")
            if memory is not None:
                return GpuMemory(int(memory.total) - int(memory.used), int(memory.total))
    return None
