"""Started servers that use the processor while another one is measured."""

from collections import Counter
from collections.abc import Iterator

from specbench.analysis.warnings import RunWarning
from specbench.log.header import RunHeader

LEAST_CORES = 0.05
"""Cores that an idle server may use on average."""
_LEAST_S = 0.1
"""CPU seconds that show it: the system counts them in hundredths."""


def find_idle_engines(header: RunHeader) -> Iterator[RunWarning]:
    """The warning about servers that used more than LEAST_CORES while others were measured."""
    used_s: Counter[str] = Counter()
    for block in header.blocks:
        used_s.update(block.idle_cpu_s)
    methods = []
    for method, cpu_s in used_s.items():
        blocks = [block for block in header.blocks if block.method != method]
        duration_s = sum(block.duration_s for block in blocks)
        if cpu_s >= _LEAST_S and cpu_s >= LEAST_CORES * duration_s > 0:
            methods.append({"method": method, "cores": cpu_s / duration_s})
    if methods:
        yield RunWarning("idle_engines", {"methods": methods})
