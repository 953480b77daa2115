"""Verifications on a terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from specbench.judge.files import Verification
from specbench.report.export.json import plain
from specbench.report.export.terminal import notes_grid, print_parts
from specbench.report.notes import Note

_MOST_FAULTS = 10


def print_verifications(found: Sequence[Verification], console: Console) -> None:
    """Print the result of each run with its reasons."""
    parts: list[RenderableType] = []
    for one in found:
        style = "red" if one.faults else "yellow" if one.exclusions else "green"
        parts += [Text(f"{one.run}: {verdict(one)}", style=style), notes_grid([*_notes(one)])]
    print_parts(parts, console)


def verdict(one: Verification) -> str:
    """The result in a few words."""
    if one.faults:
        count = len(one.faults)
        return "1 fault" if count == 1 else f"{count} faults"
    return "sound, not for the leaderboard" if one.exclusions else "sound, for the leaderboard"


def to_json(found: Sequence[Verification]) -> str:
    """The verifications as a document."""
    runs = [
        {
            "run": one.run,
            "num_records": one.num_records,
            "is_sound": one.is_sound,
            "is_eligible": one.is_eligible,
            "faults": plain(one.faults),
            "exclusions": plain(one.exclusions),
            "unchecked": plain(one.unchecked),
            "audit": one.audit,
        }
        for one in found
    ]
    document = {"schema": 1, "kind": "specbench verification", "runs": runs}
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _notes(one: Verification) -> Iterable[Note]:
    yield from (Note("Fault", text, is_warning=True) for text in one.faults[:_MOST_FAULTS])
    if (rest := len(one.faults) - _MOST_FAULTS) > 0:
        yield Note("Fault", f"{rest} more: --json lists them.", is_warning=True)
    yield from (Note("Excluded", text, is_warning=True) for text in one.exclusions)
    yield from (Note("Unchecked", text) for text in one.unchecked)
    if one.audit:
        yield Note("Audit", one.audit)
