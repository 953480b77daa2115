"""A comparison as a table (rows, sentences and notes), and in every format.

The runs have letters: A is the reference, unless methods are crossed. A number that is missing is
empty in CSV and null in JSON; a dash stands for it in Markdown. Sentences claim what the
intervals support, and no more.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any, NamedTuple

from rich.console import Console, RenderableType
from rich.text import Text

from specbench.analysis.cells import BASELINE, CellKey
from specbench.analysis.frames import value_columns, value_or_none
from specbench.analysis.metrics import POOLED
from specbench.analysis.ranking import ALONE
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.errors import few, unknown_name
from specbench.judge.comparison import MEAN, Comparison, Pair
from specbench.log.differences import Difference
from specbench.log.header import RunHeader
from specbench.report import facts, formats
from specbench.report.build import write_files
from specbench.report.export.csv import csv_text
from specbench.report.export.markdown import escape, note_lines, table_lines
from specbench.report.export.terminal import notes_grid, print_parts, report_console
from specbench.report.layout import draw
from specbench.report.table import Cell, Column, Group, Row, Table, Tone
from specbench.report.texts import Note

FORMATS = ("table", "markdown", "csv", "json")
_ENDINGS = {"markdown": "md", "csv": "csv", "json": "json"}
NOT_COMPARABLE = "NOT COMPARABLE: these runs did not do the same work"


RATE = ("tokens_per_s", "tokens/s", formats.rate)
NUMBERS = (("speedup", "speedup", formats.speedup), ("mat", "MAT", formats.mat), RATE)
"""The compared numbers: name in a cell, heading, and how to write one."""

_EXACT = 1e-9
"""Rounding: an interval that ends this close to 1 includes 1."""
_TOO_FEW_WHOLE = "not judged, since fewer than two passes or runs have most requests"


class ComparedBlock(NamedTuple):
    """Two runs at one temperature."""

    heading: str
    table: Table
    sentence: str


class ComparisonTable(NamedTuple):
    """All that a rendering shows. `legend` has the letter and the text of each run."""

    legend: tuple[Note, ...]
    blocks: tuple[ComparedBlock, ...]
    notes: tuple[Note, ...]
    is_comparable: bool


def build_comparison(comparisons: Sequence[Comparison]) -> ComparisonTable:
    """The table of one reference with one or more subjects.

    In a cross comparison the subject was named first, so it is A.
    """
    is_cross = comparisons[0].reference_method is not None
    more = (f"Z{number:03}" for number in range(1, len(comparisons)))
    letters = "BA" if is_cross else [*ascii_uppercase, *more]
    runs = {letters[0]: comparisons[0].reference}
    for one in comparisons:
        runs.setdefault(letters[1 + one.number], one.subject)
    pairs = [(one, (letters[1 + one.number], letters[0])) for one in comparisons]
    notes = dict.fromkeys(note for one, pair in pairs for note in _notes(one, pair))
    ordered = sorted(runs.items())
    own = dict.fromkeys(note for letter, run in ordered for note in _run_notes(letter, run))
    return ComparisonTable(
        legend=tuple(Note(letter, _legend(run)) for letter, run in ordered),
        blocks=tuple(_block(one, pair, t) for one, pair in pairs for t in one.temperatures),
        notes=(*_definitions(comparisons), *notes, *own),
        is_comparable=not any(one.differences for one in comparisons),
    )


def _block(one: Comparison, letters: tuple[str, str], temperature: float) -> ComparedBlock:
    """`letters` are the subject's and the reference's."""
    tasks = {**one.tasks} if len(one.tasks) == 1 else {MEAN: "Mean of the tasks", **one.tasks}
    first = next(iter(tasks))
    heading = ", ".join(filter(None, (formats.temperature(temperature), one.load.text)))
    if one.reference_method is None:
        heading = f"{letters[0]} against {letters[1]}, {heading}"
        text = change_sentences(one, letters, temperature=temperature, task=first)
    else:
        text = cross_sentence(one, letters, CellKey(one.methods[0], temperature, first))
    table = _table(one, letters, temperature, tasks)
    return ComparedBlock(heading, table, sentence=text)


def _table(
    one: Comparison, letters: tuple[str, str], temperature: float, tasks: Mapping[str, str]
) -> Table:
    """Both runs' values in the order of their letters, and their ratio, for each number.

    Each task is a group of rows. Two different methods compare by time alone, a row a
    task.
    """
    is_cross = one.reference_method is not None
    numbers = (RATE,) if is_cross else NUMBERS
    columns = tuple(
        Column(letter, task=heading)
        for _, heading, _ in numbers
        for letter in (*sorted(letters), " / ".join(letters))
    )

    def row(method: str, task: str, label: str) -> Row:
        cell, cells = one.cell(method, temperature, task), list[Cell]()
        for name, _, write in numbers:
            pair = cell.pair(name)
            values = [pair.subject, pair.reference][:: 1 if letters[0] < letters[1] else -1]
            cells += [Cell(write(value)) for value in values]
            mark = ALONE if pair.is_alone else ""
            text = formats.mat(pair.ratio) + mark + formats.plus_minus(pair.ratio)
            cells.append(Cell(text, tone=_tone(pair)))
        return Row(method, label, tuple(cells))

    if is_cross:
        rows = tuple(row(one.methods[0], task, title) for task, title in tasks.items())
        return Table("", columns, (Group("", rows),), heading="Task")
    labels = {method: one.subject.method(method).label for method in one.methods}
    groups = []
    for task, title in tasks.items():
        rows = tuple(row(method, task, label) for method, label in labels.items())
        groups.append(Group(title if len(tasks) > 1 else "", rows))
    return Table("", columns, tuple(groups))


def _tone(pair: Pair) -> Tone:
    """The claim about a ratio, if there is one."""
    if not isinstance(pair.ratio, Estimate) or not pair.is_claimed:
        return "unsure"
    return "good" if pair.ratio.value > 1 else "bad"


def _legend(info: RunHeader) -> str:
    label, about = f"{facts.model_label(info)}, {info.model.precision}", info.environment
    software = f"{about.software_phrase}, commit {about.commit_phrase}"
    return f"{info.id}: {label}; {info.device_phrase}; {software}"


def _definitions(comparisons: Sequence[Comparison]) -> Iterator[Note]:
    is_cross = comparisons[0].reference_method is not None
    which = "A / B" if is_cross else "each run / A"
    yield Note("Ratio", f"{which}, over completions that both finished; above 1 is better.")
    scopes = dict.fromkeys(one.scope.text for one in comparisons)
    yield Note(
        "Intervals",
        f"95 %, of times over {' or '.join(scopes)}, by paired cluster bootstrap over samples. "
        "Colours and sentences are tests, corrected for their number, intervals are not; ~: alone "
        "a difference, not among all. Speeds are judged only with several runs a side.",
    )
    if not is_cross:
        yield Note("Speedup", "over the vanilla of the same run, which drifts alike.")
    if any(len(one.tasks) > 1 for one in comparisons):
        yield Note(
            "Mean", "arithmetic, of the tasks' values; its ratio is the ratio of the two means."
        )


def _notes(one: Comparison, letters: tuple[str, str]) -> Iterator[Note]:
    subject, reference = letters
    cells = [cell for key, cell in one.cells.items() if key.task in one.tasks]
    counts = sorted({cell.num_samples for cell in cells})
    span = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    yield Note("Samples", f"{span} a cell that {subject} and {reference} share")
    for text in one.unshared:
        yield Note("Left out", text)
    for difference in one.differences:
        text = f"Different work: {difference.describe(reference, subject)}."
        yield Note("Warning", text, is_warning=True)
    for caution in one.cautions:
        text = f"May explain a difference: {caution.describe(reference, subject)}."
        yield Note("Warning", text, is_warning=True)


def _run_notes(letter: str, info: RunHeader) -> Iterator[Note]:
    """Warnings about one of the runs alone."""
    texts = [*info.warnings]
    if info.status != "complete":
        texts.append(f"its status is {info.status}, so this is only a part of it.")
    if info.environment.commit_phrase.endswith("+dirty"):
        texts.append("it was made by a modified checkout, so its commit is not the whole code.")
    for text in texts:
        yield Note("Warning", f"{letter}: {text}", is_warning=True)


def change_sentences(
    comparison: Comparison, letters: tuple[str, str], *, temperature: float, task: str
) -> str:
    """The changes on one task or the mean: vanilla's speed, then speedups and MAT of the methods.

    `letters` are the subject's and the reference's.
    """
    subject, reference = letters
    cells = {m: comparison.cell(m, temperature, task) for m in comparison.methods}
    vanilla = cells.pop(BASELINE, None)
    sentences = []
    if vanilla:
        ratio = vanilla.tokens_per_s.ratio
        if isinstance(ratio, Missing):
            sentences.append(f"Vanilla is not compared: {ratio.reason}.")
        else:
            text = f"Vanilla is {_times(ratio)} as fast in {subject} as in {reference}"
            sentences.append(f"{text}{_doubt(comparison, vanilla.tokens_per_s)}.")
            if not (cells or comparison.repetition.is_judged):
                sentences.append(no_verdict(comparison))
    names = {"speedup": "Speedup over vanilla", "tokens_per_s": "Tokens per second", "mat": "MAT"}
    for number in ("speedup" if vanilla else "tokens_per_s", "mat") if cells else ():
        pairs = {comparison.subject.method(m).label: cells[m].pair(number) for m in cells}
        sentences.append(_changes(comparison, names[number], pairs, subject))
    return " ".join(sentences)


def no_verdict(comparison: Comparison) -> str:
    """The reason that no difference in speed is claimed, with the known spread of passes."""
    if comparison.repetition.is_one_run:
        return "One pass does not show how passes differ. Nothing is claimed: use --repeats 3."
    passes = max(comparison.pass_spreads, default=0.0)
    known = f" Passes of a run differ by +/- {196 * passes:.1f} % here." if passes else ""
    return (
        "Differences in speed are not judged: one run a side does not show how far runs differ on "
        f"a machine.{known} Give several a side: `specbench run --runs 5`."
    )


def cross_sentence(comparison: Comparison, letters: tuple[str, str], key: CellKey) -> str:
    """The speed of one method in one run, relative to another method in another run."""
    pair = comparison.cells[key].tokens_per_s
    ratio = pair.ratio
    infos = comparison.subject, comparison.reference
    methods = comparison.methods[0], comparison.reference_method or BASELINE
    own, other = (
        f"{info.method(method).label} {place}"
        for info, method, place in zip(infos, methods, _places(*infos, letters), strict=True)
    )
    if isinstance(ratio, Missing):
        return f"{own} and {other} are not compared: {ratio.reason}."
    spread = f" ± {ratio.interval.half_width:.2f}" if ratio.interval else ""
    mean = ", by the mean of the tasks" if len(comparison.tasks) > 1 else ""
    text = f"{own} is {ratio.value:.2f}{spread} times as fast as {other}{mean}"
    if not comparison.repetition.is_judged:
        return f"{text}. {no_verdict(comparison)}"
    doubt = _doubt(comparison, pair)
    if not doubt and comparison.repetition.is_one_run and not _is_same(ratio):
        doubt = ", as two methods chosen beforehand: among all pairs of the run, `report` judges"
    return f"{text}{doubt}."


def _doubt(comparison: Comparison, pair: Pair) -> str:
    """The doubt about a difference in speed as the end of a sentence; empty if it is not judged,
    if it is claimed, or if there is none.
    """
    if not comparison.repetition.is_judged or isinstance(pair.ratio, Missing):
        return ""
    if pair.ratio.interval is None:
        return "; too few samples for an interval"
    if pair.is_claimed or _is_same(pair.ratio):
        return ""
    if pair.p_value is None:
        return f": {_TOO_FEW_WHOLE}"
    if pair.is_alone:
        return ": alone a difference, not among all comparisons"
    return ": not a significant difference"


def _places(subject: RunHeader, reference: RunHeader, letters: tuple[str, str]) -> tuple[str, str]:
    """The two machines if they differ, else the letters."""
    devices = [info.device_phrase.partition(",")[0] for info in (subject, reference)]
    if devices[0] != devices[1]:
        return f"on the {devices[0]}", f"on the {devices[1]}"
    return f"in {letters[0]}", f"in {letters[1]}"


def _changes(comparison: Comparison, name: str, pairs: Mapping[str, Pair], subject: str) -> str:
    """The methods (label -> pair) whose change is claimed, the largest changes first; or why no
    change can be claimed.
    """
    ratios = {label: pair.ratio for label, pair in pairs.items()}
    is_judged = name == "MAT" or comparison.repetition.is_judged
    known = {label: ratio for label, ratio in ratios.items() if isinstance(ratio, Estimate)}
    if not known:
        reasons = {ratio.reason for ratio in ratios.values() if isinstance(ratio, Missing)}
        return f"{name} is not compared: {', '.join(sorted(reasons))}."
    few_samples = [k for k in ratios if k not in known or known[k].interval is None]
    untested = [label for label, pair in pairs.items() if pair.p_value is None]
    blank = untested if is_judged else few_samples
    doubt = f"; not judged: {', '.join(blank)}" if blank else ""
    if all(map(_is_same, known.values())):
        return f"{name} is the same in both{doubt}."
    if not is_judged:
        return no_verdict(comparison)
    changed = {k: ratio for k, ratio in known.items() if pairs[k].is_claimed}
    if not changed:
        if len(few_samples) == len(ratios):
            return f"{name}: too few samples to see a change."
        if len(blank) == len(ratios):
            return f"{name} is {_TOO_FEW_WHOLE}."
        return f"{name} does not differ significantly for any method{doubt}."
    parts = []
    for word, sign in (("higher", 1), ("lower", -1)):
        if found := {label: r for label, r in changed.items() if (r.value - 1) * sign > 0}:
            parts.append(f"{word} in {subject} for {_list(found)}")
    has_others = len(changed) + len(blank) < len(ratios)
    rest = "; the others do not differ significantly" if has_others else ""
    return f"{name} is {' and '.join(parts)}{rest}{doubt}."


def _list(ratios: Mapping[str, Estimate]) -> str:
    ranked = sorted(ratios, key=lambda label: abs(ratios[label].value - 1), reverse=True)
    return few([f"{label} ({_times(ratios[label])})" for label in ranked])


def _times(ratio: Estimate) -> str:
    return f"{ratio.value:.2f} times{formats.brackets(ratio)}"


def _is_same(ratio: Estimate) -> bool:
    """True if nothing differs, in any sample."""
    interval = ratio.interval
    return interval is not None and max(abs(interval.low - 1), abs(interval.high - 1)) < _EXACT


def check_format(name: str) -> str:
    """The name, if it is a format. Raises `UserError` if not."""
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    return name


def print_comparison(comparisons: Sequence[Comparison], console: Console | None = None) -> None:
    """Print a comparison on stdout, or on the console given."""
    table, console = build_comparison(comparisons), console or report_console()
    parts: list[RenderableType] = []
    if not table.is_comparable:
        parts += [Text(NOT_COMPARABLE, style="bold red"), Text()]
    parts += [notes_grid(table.legend), Text()]
    for block in table.blocks:
        parts += [Text(block.heading, style="bold"), Text(), *draw(block.table, console.width)]
        parts += [Text(block.sentence, style="" if table.is_comparable else "red"), Text()]
    parts.append(notes_grid(table.notes))
    print_parts(parts, console)


def render_comparison(comparisons: Sequence[Comparison], form: str) -> str:
    """The text of a format other than the terminal's."""
    if form == "markdown":
        return comparison_markdown(build_comparison(comparisons))
    return comparison_csv(comparisons) if form == "csv" else comparison_json(comparisons)


def write_comparison(comparisons: Sequence[Comparison], out_dir: Path) -> list[Path]:
    """Write comparison.md, .csv and .json to `out_dir`, each whole or not at all.

    Raises `RunFolderError` if the folder cannot be written.
    """
    texts = {
        f"comparison.{ending}": render_comparison(comparisons, form).encode()
        for form, ending in _ENDINGS.items()
    }
    return write_files(out_dir, texts)


def comparison_markdown(table: ComparisonTable) -> str:
    """The whole table as one Markdown text."""
    lines = [] if table.is_comparable else [f"**{NOT_COMPARABLE}**", ""]
    lines += note_lines(table.legend)
    for block in table.blocks:
        lines += ["", f"## {escape(block.heading)}", ""]
        lines += [*table_lines(block.table), "", escape(block.sentence)]
    return "\n".join([*lines, "", *note_lines(table.notes)]) + "\n"


def comparison_csv(comparisons: Sequence[Comparison]) -> str:
    """A line per pair of runs, temperature, method and task. "mean" and "pooled" are over tasks."""
    import pandas as pd

    return csv_text(pd.DataFrame([row for one in comparisons for row in _rows(one)]))


def comparison_json(comparisons: Sequence[Comparison]) -> str:
    """The lines of the CSV file, with the differences between the runs."""
    document = [
        {
            "reference": one.reference.id,
            "subject": one.subject.id,
            "is_comparable": not one.differences,
            "differences": [_difference(difference) for difference in one.differences],
            "cautions": [_difference(caution) for caution in one.cautions],
            "left_out": list(one.unshared),
            "cells": list(_rows(one)),
        }
        for one in comparisons
    ]
    return json.dumps({"schema": 1, "comparisons": document}, indent=2, ensure_ascii=False) + "\n"


def _rows(one: Comparison) -> Iterable[dict[str, Any]]:
    for key, cell in one.cells.items():
        row: dict[str, Any] = {
            "reference": one.reference.id,
            "subject": one.subject.id,
            "is_comparable": not one.differences,
            "method": key.method,
            "reference_method": one.reference_method or key.method,
            "temperature": key.temperature,
            "task": "pooled" if key.task == POOLED else key.task,
            **one.load._asdict(),
            "num_completions": cell.num_completions,
            "num_samples": cell.num_samples,
        }
        for name, _, _ in NUMBERS:
            pair = cell.pair(name)
            row[f"{name}_reference"] = value_or_none(pair.reference)
            row[f"{name}_subject"] = value_or_none(pair.subject)
            row |= value_columns(f"{name}_ratio", pair.ratio)
            row[f"{name}_missing"] = row.pop(f"{name}_ratio_missing")
            row[f"{name}_p_value"] = pair.p_value
        yield row


def _difference(difference: Difference) -> dict[str, str]:
    first, second = difference.first, difference.second
    return {"what": difference.what, "reference": first, "subject": second}
