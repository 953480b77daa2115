"""Figures from the folders of parts that succeeded, failed or were killed."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.gpu.figures import describe_run
from benchmarks.gpu.lines import read_figures as read_figures
from specbench.log.store import HEADER, read_run

LOG = "log.txt"
"""File with the output of a part, in its folder."""
_TEST = re.compile(r"^(tests/\S+?::.+?) (PASSED|FAILED|SKIPPED|ERROR)\b", re.MULTILINE)
_FINDING = re.compile(r"^(ok|PROBLEM|note) +([^:]+): (.*)$", re.MULTILINE)
_OPERATION = re.compile(r"^ *(\d+)  (\S.*?) {2,}(.*)$", re.MULTILINE)
_MEASURED = re.compile(r"([\d.]+) us(?: +(\d+)%)?")
_WAYS = re.compile(r"^rows  operation +MB(.*)$", re.MULTILINE)


def read_nothing(folder: Path) -> dict[str, Any]:
    """No figures."""
    return {}


def read_suite(folder: Path) -> dict[str, Any]:
    """All figures of the suite; if its first run was killed, those of its samples."""
    found = read_figures(folder)
    if "methods" not in found and (folder / "all" / HEADER).exists():
        found |= describe_run(read_run(folder / "all"))
    return found


def read_doctor(folder: Path) -> dict[str, Any]:
    """Results of the doctor by name."""
    found = _FINDING.findall(_log(folder))
    return {name: {"verdict": verdict, "text": text} for verdict, name, text in found}


def read_tests(folder: Path) -> dict[str, Any]:
    """Numbers of tests that passed, failed and were skipped, and the names of failed ones."""
    ended = _TEST.findall(_log(folder))
    counts = Counter(outcome.lower() for _, outcome in ended)
    failed = [name for name, outcome in ended if outcome in ("FAILED", "ERROR")]
    return {**counts, "names_failed": failed}


def read_layers(folder: Path) -> dict[str, Any]:
    """Operation -> rows -> microseconds and share of the bandwidth in each way to compute it.

    The ways are in the order of the columns; the one that a run would use is first.
    """
    text = _log(folder)
    heads = _WAYS.search(text)
    found: dict[str, Any] = {"ways": re.split(r" {2,}", heads[1].strip()) if heads else []}
    for rows, operation, cells in _OPERATION.findall(text):
        measured = [
            {"us": float(us), **({"share": int(share) / 100} if share else {})}
            for us, share in _MEASURED.findall(cells)
        ]
        if measured:
            found.setdefault(operation, {})[rows] = measured
    return found


def _log(folder: Path) -> str:
    path = folder / LOG
    return path.read_text("utf-8", "replace") if path.exists() else ""
