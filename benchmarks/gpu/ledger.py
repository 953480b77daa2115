"""Results of the parts on disk: one line when a part ends, so a later call can continue.

Knows parts by their names, not what they do.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.lines import append_line, read_lines

Status = Literal["ok", "failed", "timeout"]


@dataclass(frozen=True, slots=True)
class Ended:
    """Result of a part, with its settings, and the reason if it is not ok."""

    part: str
    status: Status
    seconds: float
    began: str
    reason: str | None = None
    figures: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    git: Mapping[str, Any] | None = None


class Ledger:
    """File of all parts that ended with these settings; lines of other settings are ignored."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self._path, self._settings = path, dict(settings)

    def append(self, ended: Ended) -> None:
        """Add a line; it is on disk when this returns."""
        append_line(self._path, asdict(ended))

    def ended(self) -> dict[str, Ended]:
        """The last line of each part, with figures of earlier lines that it lacks."""
        found: dict[str, Ended] = {}
        for line in read_lines(self._path):
            if line.get("settings") != self._settings:
                continue
            before = found.get(line["part"])
            figures = {**(before.figures if before else {}), **line["figures"]}
            found[line["part"]] = Ended(**{**line, "figures": figures})
        return found
