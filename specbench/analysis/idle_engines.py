"""Servers that use the processor or a GPU while another one is measured."""

from collections.abc import Iterator

from specbench.analysis.warnings import RunWarning
from specbench.log.header import RunHeader

LEAST_CORES = 0.05
"""An idle server is named if it uses at least this many cores on average."""
LEAST_GPU = 0.05
"""An idle server is named if it uses at least this share of a GPU's time. The largest share in each
block is averaged over blocks.
"""
_LEAST_S = 0.1
"""Fewest CPU seconds of use that are reported: the system counts hundredths of a second."""


def find_idle_engines(header: RunHeader) -> Iterator[RunWarning]:
    """The warning about servers that used more than LEAST_CORES or LEAST_GPU while idle."""
    names = {name for block in header.blocks for name in (*block.idle_cpu_s, *block.idle_gpu)}
    methods = []
    for method in sorted(names):
        blocks = [block for block in header.blocks if block.method != method]
        cpu_s = sum(block.idle_cpu_s.get(method, 0.0) for block in blocks)
        duration_s = sum(block.duration_s for block in blocks)
        gpu_share = sum(block.idle_gpu.get(method, 0.0) for block in blocks) / len(blocks)
        is_on_cpu = cpu_s >= _LEAST_S and cpu_s >= LEAST_CORES * duration_s > 0
        if is_on_cpu or gpu_share >= LEAST_GPU:
            cores = cpu_s / duration_s if is_on_cpu else None
            methods.append({"method": method, "cores": cores, "gpu": gpu_share or None})
    if methods:
        yield RunWarning("idle_engines", {"methods": methods})
