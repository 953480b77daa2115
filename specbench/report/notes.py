"""Gather the notes below a report: facts, definitions, missing numbers and warnings."""

from collections.abc import Sequence
from dataclasses import replace

from specbench.analysis.metrics import RunMetrics
from specbench.report.definition_notes import bounds, definitions, gaps
from specbench.report.fact_notes import fact_notes
from specbench.report.imported_notes import imported_notes
from specbench.report.load_notes import load_notes
from specbench.report.texts import Note, make_note
from specbench.report.warning_notes import warnings

_MOST_WARNINGS = 3
"""The largest number of warnings in a short report."""
_GIST = 150
"""The largest number of characters of a warning in a short report: about two lines."""
_WHOLE = "failed_completions"
"""The key of the note that is not cut in a short report."""


def notes(runs: Sequence[RunMetrics], labels: Sequence[str]) -> tuple[Note, ...]:
    """Return the notes of a report on these runs, without repetitions.

    They are facts, definitions, missing numbers and warnings. `labels` are the names of the runs.
    In a report of several runs, a fact begins with the name of its run. A missing number or a
    warning begins with the names of all runs that have it. A note that is true for all runs has no
    name.
    """
    # The notes of each run about how it was made, and about the smallest possible MATs.
    facts_of_runs = [
        [*(imported_notes(run) if run.info.imported else fact_notes(run)), *bounds(run)]
        for run in runs
    ]
    common_facts = set(facts_of_runs[0]).intersection(*facts_of_runs) if facts_of_runs else set()
    facts: list[Note] = []
    # The labels of the runs that have a missing number or a warning.
    labels_by_note: dict[Note, list[str]] = {}
    for run, label, facts_of_run in zip(runs, labels, facts_of_runs, strict=True):
        prefix = f"{label}: " if len(runs) > 1 else ""
        for note in facts_of_run:
            # The note "run" has the id of its run.
            is_unprefixed = note.key == "run" or note in common_facts
            facts.append(note if is_unprefixed else _with_prefix(note, prefix))
        for note in dict.fromkeys([*gaps(run), *warnings(run)]):  # gaps: missing numbers
            labels_by_note.setdefault(note, []).append(label)
    facts += load_notes(runs)  # about throughput by load; they do not name runs
    gaps_and_warnings = [
        note if len(run_labels) == len(runs) else _with_prefix(note, f"{', '.join(run_labels)}: ")
        for note, run_labels in labels_by_note.items()
    ]
    gaps_and_warnings.sort(key=lambda note: note.is_warning)  # gaps first
    return tuple(dict.fromkeys([*facts, *definitions(runs), *gaps_and_warnings]))


def _with_prefix(note: Note, prefix: str) -> Note:
    return replace(note, text=prefix + note.text)


def short_notes(notes: Sequence[Note]) -> tuple[Note, ...]:
    """Return the notes of a short report, given all notes of a report.

    They are two definitions, the notes about CPUs, marks and missing numbers, the first
    `_MOST_WARNINGS` warnings, and the number of all other warnings. Except for the definitions and
    this number, notes are cut to their first sentences. The key of a note names its sentence, which
    `numbers` fill.
    """
    # Trees on a CPU, the mark "~" for a speedup that is significant on its own, but not after
    # correction for all methods, missing numbers, and the mark "*" for methods that are not
    # lossless.
    kept_keys = ("cpu_trees", "alone", "missing", "lossy")
    kept_notes = [note for note in notes if note.key in kept_keys]
    warnings = [note for note in notes if note.is_warning]  # run after run, with the gravest first
    # what intervals cover, such as "over prompts and 3 passes"
    scopes = [note.numbers["scope"] for note in notes if note.key == "intervals"]
    shown_notes = [
        make_note("short_speedup", scope=scopes[0] if scopes else ""),
        make_note("short_mat"),
    ]
    shown_notes += [
        replace(note, text=_gist(note))  # its first sentences
        for note in (*kept_notes, *warnings[:_MOST_WARNINGS])
    ]
    num_left_out = len(warnings) - _MOST_WARNINGS
    if num_left_out > 0:
        shown_notes.append(make_note("more_warnings", number=num_left_out))
    return tuple(shown_notes)


def _gist(note: Note) -> str:
    """Return the first sentences of a note, at least one, up to `_GIST` characters.

    A text that fits is not cut, nor is the note about failed completions.
    """
    note_text = note.text
    if len(note_text) <= _GIST or note.key == _WHOLE:
        return note_text
    full_stop = note_text.rfind(". ", 0, _GIST + 1)  # the last full stop that fits
    if full_stop < 0:
        full_stop = note_text.find(". ")  # the first sentence is too long, but is kept
    return note_text if full_stop < 0 else note_text[: full_stop + 1]
