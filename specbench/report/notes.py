"""The notes below a report: the origin of the numbers, their definitions, gaps and warnings."""

from collections.abc import Sequence
from dataclasses import replace

from specbench.analysis.metrics import RunMetrics
from specbench.report.definition_notes import bounds, definitions, gaps
from specbench.report.fact_notes import fact_notes
from specbench.report.texts import Note, make_note
from specbench.report.warning_notes import warnings

_MOST_WARNINGS = 3
"""Warnings on a short screen."""
_GIST = 150
"""Characters of a warning on a short screen: two lines."""


def notes(runs: Sequence[RunMetrics], labels: Sequence[str]) -> tuple[Note, ...]:
    """Facts, definitions, then gaps and warnings per run. What not all runs share begins with
    the run's label.
    """
    facts_by_run = [[*fact_notes(run), *bounds(run)] for run in runs]
    shared = set(facts_by_run[0]).intersection(*facts_by_run) if facts_by_run else set()
    facts: list[Note] = []
    doubts: list[Note] = []
    for run, label, facts_of_run in zip(runs, labels, facts_by_run, strict=True):
        prefix = f"{label}: " if len(runs) > 1 else ""
        for note in facts_of_run:
            is_common = note.key == "run" or note in shared
            facts.append(note if is_common else _with_prefix(note, prefix))
        doubts += [_with_prefix(note, prefix) for note in (*gaps(run), *warnings(run))]
    doubts.sort(key=lambda note: note.is_warning)
    return tuple(dict.fromkeys([*facts, *definitions(runs), *doubts]))


def _with_prefix(note: Note, prefix: str) -> Note:
    return replace(note, text=prefix + note.text)


def short_notes(notes: Sequence[Note]) -> tuple[Note, ...]:
    """Notes of the default screen: gaps, definitions, and the first sentence of each warning."""
    gaps = [note for note in notes if note.key in ("cpu_trees", "alone", "missing", "lossy")]
    warnings = [note for note in notes if note.is_warning]
    scopes = [note.numbers["scope"] for note in notes if note.key == "intervals"]
    shown = [
        make_note("short_speedup", scope=scopes[0] if scopes else ""),
        make_note("short_mat"),
    ]
    for note in (*gaps, *warnings[:_MOST_WARNINGS]):
        shown.append(replace(note, text=_gist(note)))
    num_more = len(warnings) - _MOST_WARNINGS
    if num_more > 0:
        shown.append(make_note("more_warnings", number=num_more))
    return tuple(shown)


def _gist(note: Note) -> str:
    """The first sentence, and those after it as long as there is room; of failures all."""
    text = note.text
    if len(text) <= _GIST or note.key == "failed_completions":
        return text
    end = text.find(". ")
    if end < 0:
        return text
    while 0 <= (following := text.find(". ", end + 1)) < _GIST:
        end = following
    return text[: end + 1]
