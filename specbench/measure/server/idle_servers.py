"""The processor that idle servers use while another one is measured."""

from collections.abc import Mapping
from time import perf_counter

from specbench.machine.processes import cpu_seconds

_LEAST_SHARE = 0.01
"""Share of a core below which a server rests."""


class IdleServers:
    """The servers beside the one of a block, from the block's beginning.

    `process_ids` are the processes of all servers that the run started, by method.
    """

    def __init__(self, process_ids: Mapping[str, int], method: str) -> None:
        self._process_ids = {name: pid for name, pid in process_ids.items() if name != method}
        self._cpu_s = {name: cpu_seconds(pid) for name, pid in self._process_ids.items()}
        self._began = perf_counter()

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds since the beginning, of the servers that did not rest."""
        least_s = _LEAST_SHARE * (perf_counter() - self._began)
        used_s = {
            name: cpu_seconds(pid) - self._cpu_s[name] for name, pid in self._process_ids.items()
        }
        return {name: round(seconds, 3) for name, seconds in used_s.items() if seconds >= least_s}
