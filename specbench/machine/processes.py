"""Find and measure a process with its descendants, such as a server with its workers."""

import os
from collections.abc import Collection, Iterable
from contextlib import suppress

import psutil

from specbench.machine.nvml import Card

_FORWARDERS = ("docker-proxy", "rootlessport", "slirp4netns", "pasta", "ssh", "kubectl", "socat")
"""Programs that only forward requests to a server in a container or on another machine."""


def process_tree(process_id: int) -> list[psutil.Process]:
    """The process and its living descendants. Empty if the process has ended."""
    with suppress(psutil.Error):
        process = psutil.Process(process_id)
        return [process, *process.children(recursive=True)]
    return []


def cpu_seconds(process_id: int) -> float:
    """The CPU seconds that a process and its living descendants have used."""
    seconds = 0.0
    for process in process_tree(process_id):
        with suppress(psutil.Error):  # it has ended meanwhile
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds


def memory_bytes(process_id: int) -> int | None:
    """The bytes that a process and its descendants use. Shared pages are divided equally (PSS).

    None without the right to read it, or if the system does not count it.
    """
    num_bytes = 0
    for process in process_tree(process_id):
        try:
            num_bytes += process.memory_full_info().pss
        except psutil.NoSuchProcess:  # it has ended meanwhile
            continue
        except (psutil.AccessDenied, AttributeError):
            return None
    return num_bytes or None


def listening_process(port: int) -> int:
    """The id of the process that serves at a port of this machine, or 0 if it is unknown.

    A program that only forwards to another server does not count, nor does this process.
    """
    with suppress(psutil.Error):
        for connection in psutil.net_connections("tcp"):
            is_listening = connection.status == psutil.CONN_LISTEN
            if is_listening and connection.laddr.port == port and connection.pid:
                is_server = psutil.Process(connection.pid).name() not in _FORWARDERS
                return int(connection.pid) if is_server and connection.pid != os.getpid() else 0
    return 0


def gpu_memory_bytes(cards: Iterable[Card], process_ids: Collection[int]) -> int | None:
    """The bytes that processes hold on cards, or None if the driver does not list them."""
    sizes = [
        int(process.usedGpuMemory)
        for card in cards
        for process in card.query("nvmlDeviceGetComputeRunningProcesses") or ()
        if process.pid in process_ids and process.usedGpuMemory
    ]
    return sum(sizes) or None
