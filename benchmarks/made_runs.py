"""Runs that a benchmark makes in a folder. Complete runs are not made again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.neighbour import ALL_CORES, neighbour
from specbench.log.run import Run
from specbench.log.store import HEADER, read_run


def run_of(path: Path, arguments: str, *, is_busy: bool = False) -> Run:
    """The run in a folder. If it is missing, make it, with all cores kept busy if `is_busy`."""
    if not (path / HEADER).is_file() or read_run(path).header.status != "complete":
        command = [sys.executable, "-m", "specbench", "run", *arguments.split()]
        with neighbour(is_busy, ALL_CORES):
            subprocess.run([*command, "--output", str(path)], check=True, capture_output=True)
    return read_run(path)
