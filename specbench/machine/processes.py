"""A process with its descendants, such as a server and its workers."""

from contextlib import suppress

import psutil


def process_tree(process_id: int) -> list[psutil.Process]:
    """The process and its living descendants; empty if it has ended."""
    with suppress(psutil.Error):
        process = psutil.Process(process_id)
        return [process, *process.children(recursive=True)]
    return []


def cpu_seconds(process_id: int) -> float:
    """CPU seconds that a process and its living descendants have used."""
    seconds = 0.0
    for process in process_tree(process_id):
        with suppress(psutil.Error):  # it has ended meanwhile
            times = process.cpu_times()
            seconds += times.user + times.system
    return seconds
