"""A row of the suite: a run or a command in a process of its own, with a time limit."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from specbench.errors import SpecbenchError
from specbench.log.options import options
from specbench.log.store import read_run
from specbench.measure.progress import Progress
from specbench.measure.spec import RunSpec
from specbench.measure.suite.apart import Order, complete_apart
from specbench.measure.suite.process import run_tried

COLD = 3
"""Time limit of a row divided by its usual time. It leaves time to compile kernels and to make a
model.
"""
LEAST_S = 90.0
"""No run begins with less time left: it could not load its model."""


class Figures(NamedTuple):
    """A file in a command's folder, and a regular expression that must match a part of it."""

    file: str
    pattern: str


ANY_OUTPUT = Figures("log.txt", r"\S")
PASSED_TESTS = Figures("log.txt", r"\b[1-9]\d* passed")
"""Shows that at least one test passed."""


@dataclass(frozen=True, slots=True)
class Row:
    """A run if it has a `spec`, or else a command, in which "{}" stands for the row's folder.

    `settles` says what the row is for. The row usually takes `usual_s` seconds. A command begins
    only if the call has that much time left.
    """

    name: str
    settles: str
    usual_s: float
    spec: RunSpec | None = None
    command: tuple[str, ...] = ()
    is_required: bool = True
    after: str = ""
    """Name of the row whose results this row reads. This row waits until that row is complete."""
    figures: Figures = ANY_OUTPUT
    """The figures that a command writes to a file. Without them, the row fails."""

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]

    @property
    def limit_s(self) -> float:
        return COLD * self.usual_s

    @property
    def least_s(self) -> float:
        """Seconds that a call must have left. A run needs few: the next call can continue it."""
        return min(self.usual_s, LEAST_S) if self.spec else self.usual_s


def run_row(row: Row, folder: Path, left_s: float) -> dict[str, Any]:
    """Run a row, at most twice, within `left_s` seconds. Returns the row's line for rows.jsonl."""
    began, status, reason = time.monotonic(), "ok", ""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if row.spec is not None:
            given = tuple(
                option.parameter
                for option in options(RunSpec)
                if getattr(row.spec, option.name) != option.default
            )
            order = Order(row.spec, given, str(folder), is_offline=True)
            complete_apart(order, Progress(print), row.limit_s, left_s)
        else:
            (folder / row.figures.file).unlink(missing_ok=True)  # left by an earlier try
            words = [word.replace("{}", str(folder)) for word in row.command]
            with (folder / "log.txt").open("w", encoding="utf-8") as out:
                run_tried(
                    [sys.executable, "-m", *words],
                    lambda line: print(line, file=out, flush=True),
                    timeout_s=row.limit_s,
                    total_s=left_s,
                    only_killed=True,
                )
        check_figures(row, folder)
        check_energy(row, folder)
    except SpecbenchError as error:
        is_late = time.monotonic() - began >= left_s
        status, reason = "stopped" if is_late else "failed", error.message
    seconds = round(time.monotonic() - began, 1)
    return {"row": row.name, "status": status, "seconds": seconds, "reason": reason}


def check_energy(row: Row, folder: Path) -> None:
    """If the row is a run on a GPU that measures energy, check that each method has its energy.

    Raises:
        SpecbenchError: a method has no energy.
    """
    if row.spec is None or not row.spec.energy or row.spec.device == "cpu":
        return
    energies = read_run(folder).header.energy
    metered = {energy.method for energy in energies if energy.joules_per_token is not None}
    if missing := sorted({*row.spec.methods} - metered):
        message = f"{row.name} has no energy for {', '.join(missing)}."
        raise SpecbenchError(message, "See `energy` in its run.json.")


def check_figures(row: Row, folder: Path) -> None:
    """Check that a run has answers of each method, or that a command has written its figures.

    Raises:
        SpecbenchError: the row is empty, or all of its tests were skipped.
    """
    if row.spec is not None:
        run = read_run(folder)
        answered = {record.key.method for record in run.records if record.status == "ok"}
        if missing := sorted({*run.header.methods} - answered):
            message = f"{row.name} has no finished answer from {', '.join(missing)}."
            raise SpecbenchError(message, "See its samples.jsonl.")
        return
    file, pattern = row.figures
    path = folder / file
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if not re.search(pattern, text):
        raise SpecbenchError(f"{row.name} left no figures in {file}.", "See its log.txt.")


def read_rows(log: Path, settings: Sequence[object]) -> dict[str, Mapping[str, Any]]:
    """The last line of each row that ran with these settings, by the row's name."""
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    lines = text.splitlines(keepends=True)
    ended = [json.loads(line) for line in lines if line.endswith("\n")]  # drops a half-written line
    return {row["row"]: row for row in ended if row["settings"] == [*settings]}
