"""Branch coverage by room of the package, from what the last `make coverage` recorded.

    python -m tests.support.room_coverage    # exit status 1 where a room is below the threshold

Knows paths and counts. pyproject.toml lists the excluded files, with reasons.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coverage import Coverage

THRESHOLD = 95.0
ROOMS: Mapping[str, tuple[str, ...]] = {
    "engine": ("specbench/engine/",),
    "methods": ("methods/",),
    "analysis": ("specbench/analysis/",),
    "run log": ("specbench/log/",),
}
"""Rooms by the beginnings of their files' paths. A wrong line in one of them is a wrong number."""


@dataclass(frozen=True, slots=True)
class File:
    """Lines and branches of a file, and the number of covered ones."""

    path: str
    num_covered: int
    num_all: int
    missing: tuple[str, ...]  # lines, and branches as "from->to"

    @property
    def percent(self) -> float:
        return percent([self])


def percent(files: Iterable[File]) -> float:
    """Covered lines and branches of all files, in percent."""
    files = list(files)
    total = sum(file.num_all for file in files)
    return 100 * sum(file.num_covered for file in files) / total if total else 100.0


def read_files(report: Mapping[str, Any]) -> list[File]:
    """The files of a report of coverage.py as JSON."""
    return [_read_file(path, found) for path, found in sorted(report["files"].items())]


def _read_file(path: str, found: Mapping[str, Any]) -> File:
    counts = Counter(found["summary"])  # without branches where no file of ours was run
    branches = (f"{start}->{end}" for start, end in found.get("missing_branches", ()))
    return File(
        Path(path).as_posix(),
        counts["covered_lines"] + counts["covered_branches"],
        counts["num_statements"] + counts["num_branches"],
        (*map(str, found["missing_lines"]), *branches),
    )


def in_room(files: Iterable[File], room: str) -> list[File]:
    """The files of a room."""
    return [file for file in files if file.path.startswith(ROOMS[room])]


def summary(files: list[File]) -> Iterator[str]:
    """The coverage of each room, then of everything, as lines of text."""
    rooms = {room: in_room(files, room) for room in ROOMS}
    for name, part in {**rooms, "total": files}.items():
        yield f"{name:<9} {percent(part):5.1f} %  {len(part):3} files"


def shortfalls(files: list[File]) -> list[str]:
    """A message for each room that is below the threshold, with the files that are."""
    messages = []
    for room in ROOMS:
        part = in_room(files, room)
        if not part:
            messages.append(f"{room}: no file begins with {', '.join(ROOMS[room])}. Update ROOMS.")
        elif percent(part) < THRESHOLD:
            messages.append(f"{room}: {percent(part):.1f} %, below {THRESHOLD:.0f} %.")
            low = sorted((f for f in part if f.percent < THRESHOLD), key=lambda f: f.percent)
            messages += [f"  {f.path} {f.percent:.1f} %: {', '.join(f.missing)}" for f in low]
    return messages


def recorded() -> list[File]:
    """The files as the last run of the tests recorded them.

    Raises:
        coverage.exceptions.NoDataError: nothing was recorded.
    """
    data = Coverage()
    data.load()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        data.json_report(outfile=str(report))
        return read_files(json.loads(report.read_text(encoding="utf-8")))


def main() -> int:
    """Print the rooms and what they lack."""
    files = recorded()
    print(*summary(files), sep="\n")
    messages = shortfalls(files)
    print(*messages, sep="\n", file=sys.stderr)
    return 1 if messages else 0


if __name__ == "__main__":
    raise SystemExit(main())
