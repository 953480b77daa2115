"""Warn about servers that use the processor or a GPU while another one is measured."""

from collections.abc import Iterator

from specbench.analysis.warnings import RunWarning
from specbench.log.header import RunHeader

LEAST_CORES = 0.05
"""An idle server is named if it uses at least this many CPU cores on average."""
LEAST_GPU = 0.05
"""An idle server is named if it uses at least this share of a GPU's time. It is the mean over
blocks of the largest share of any GPU in a block.
"""
_LEAST_S = 0.1
"""The fewest CPU seconds that are reported, since the system counts only hundredths of a second."""


def find_idle_engines(header: RunHeader) -> Iterator[RunWarning]:
    """Yield a warning if servers used LEAST_CORES or LEAST_GPU while other methods were measured.

    A block is a group of requests that the server of its method completed together. Its
    `idle_cpu_s` and `idle_gpu` map other methods, whose servers should be idle, to the CPU seconds
    and the largest share of a GPU's time that these used. Servers that used nothing are absent.
    """
    idle_methods = {
        method for block in header.blocks for method in (*block.idle_cpu_s, *block.idle_gpu)
    }
    named_methods = []  # for each method in the warning: its name, CPU cores and share of a GPU
    for method in sorted(idle_methods):
        # blocks of other methods, in which the server should be idle
        idle_blocks = [block for block in header.blocks if block.method != method]
        cpu_s = sum(block.idle_cpu_s.get(method, 0.0) for block in idle_blocks)
        duration_s = sum(block.duration_s for block in idle_blocks)
        gpu_share = sum(block.idle_gpu.get(method, 0.0) for block in idle_blocks) / len(idle_blocks)
        used_cpu = cpu_s >= _LEAST_S and cpu_s >= LEAST_CORES * duration_s > 0  # enough to be named
        if used_cpu or gpu_share >= LEAST_GPU:
            cores = cpu_s / duration_s if used_cpu else None
            named_methods.append({"method": method, "cores": cores, "gpu": gpu_share or None})
    if named_methods:
        yield RunWarning("idle_engines", {"methods": named_methods})
