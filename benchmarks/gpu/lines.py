"""JSON lines that are on disk once written: a kill loses no earlier line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FIGURES = "figures.jsonl"
"""File of a part's figures in its folder."""


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append one object as its own line, even after a line that was cut short by a kill."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell() > 0:
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")
        file.write(json.dumps(value).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All complete objects in a file; empty if the file does not exist."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text("utf-8").splitlines():
        try:
            value = json.loads(line)
        except json.JSONDecodeError:  # cut short by a kill
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def read_figures(folder: Path) -> dict[str, Any]:
    """All figures in a part's folder; later ones replace earlier ones of the same name."""
    figures: dict[str, Any] = {}
    for line in read_lines(folder / FIGURES):
        figures |= line
    return figures
