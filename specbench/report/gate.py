"""The gate's verdict on a terminal, and the names of its cells in words."""

from collections.abc import Iterator

from rich import box
from rich.console import Console, JustifyMethod, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from specbench.analysis.cells import CellKey
from specbench.analysis.compare import MEAN
from specbench.analysis.findings import Finding
from specbench.analysis.gate import Gate
from specbench.analysis.metrics import BASELINE
from specbench.analysis.stats import Value
from specbench.report import formats
from specbench.report.notes import Note
from specbench.report.terminal import notes_grid, print_parts, report_console

_HEADINGS = ("Method", "Task", "What", "Baseline", "Now", "Finding")


def method_name(gate: Gate, cell: CellKey) -> str:
    """The cell's method, with the temperature where the baseline has several: "EAGLE-2, T=1"."""
    label = gate.comparison.reference.method(cell.method).label
    temperatures = {finding.cell.temperature for finding in gate.findings}
    return f"{label}, T={cell.temperature:g}" if len(temperatures) > 1 else label


def task_name(gate: Gate, cell: CellKey) -> str:
    """The cell's task, as a column of a table is called."""
    if cell.task == MEAN:
        return "Mean of the tasks"
    return gate.comparison.reference.columns.get(cell.task, cell.task)


def print_gate(gate: Gate, console: Console | None = None) -> None:
    """What failed, a sentence, and what to know; on stdout unless a console is given."""
    parts: list[RenderableType] = []
    if gate.failures:
        parts += [_failures(gate), Text()]
    style = "bold green" if gate.is_passed else "bold red"
    parts += [Text(sentence(gate), style=style), Text(), notes_grid([*gate_notes(gate)])]
    print_parts(parts, console or report_console())


def sentence(gate: Gate) -> str:
    """The verdict in one or two sentences."""
    run, baseline = gate.comparison.subject.id, gate.comparison.reference.id
    if not gate.is_passed:
        methods = dict.fromkeys(method_name(gate, finding.cell) for finding in gate.failures)
        found = [*gate.broken]
        if methods:
            found.append(f"{_count(len(gate.failures), 'finding')}: {', '.join(methods)}.")
        return f"FAILED: {run} falls behind {baseline}. {' '.join(found)}"
    cells = {finding.cell for finding in gate.findings if finding.cell.task != MEAN}
    methods = dict.fromkeys(cell.method for cell in cells)
    asked = f"{_count(len(cells), 'cell')} of {_count(len(methods), 'method')}"
    without = "; its speed was not checked" if gate.no_speed else ""
    return f"Passed: {run} holds up to {baseline} in {asked}{without}."


def gate_notes(gate: Gate) -> Iterator[Note]:
    """What was asked, the worst that was let pass, and what to know of the two runs."""
    for kind, word in (("MAT", "drop"), ("speed", "slowdown")):
        passed = [f for f in gate.findings if f.kind == kind and f.outcome == "passed"]
        changes = [(f.change.value, f) for f in passed if f.change]
        if changes:
            worst = max(changes, key=lambda change: change[0])[1]
            where = f"{method_name(gate, worst.cell)}, {task_name(gate, worst.cell)}"
            numbers = _count(len(passed), "number")
            said = f"{numbers} with no {word} beyond the limit borne out; the worst: {where}, "
            is_worse = worst.text != "unchanged"
            text = said + worst.text if is_worse else f"{numbers}, all unchanged or better"
            yield Note(kind[0].upper() + kind[1:], text)
    if gate.no_speed:
        yield Note("Speed", f"not checked: {gate.no_speed}")
    skipped = sum(finding.outcome == "skipped" for finding in gate.findings)
    if skipped:
        reason = "too few samples, or nothing to measure"
        yield Note("Skipped", f"{_count(skipped, 'number')} not judged ({reason})")
    yield Note(
        "Claims",
        "are by one-sided tests over paired samples, together wrong in less than 1 of 100 checks; "
        "intervals are 95 %.",
    )
    if any(f.kind == "speed" and f.cell.method == BASELINE for f in gate.failures):
        text = "Vanilla itself is slower: by the engine, or by the machine. A second run tells."
        yield Note("Warning", text, is_warning=True)
    for text in gate.comparison.unshared:
        yield Note("Warning", text, is_warning=True)
    for caution in gate.comparison.cautions:
        text = f"May explain a difference: {caution.told('the baseline', 'this run')}."
        yield Note("Warning", text, is_warning=True)


def _failures(gate: Gate) -> RichTable:
    shown = RichTable(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for heading in _HEADINGS:
        is_number = heading in ("Baseline", "Now")
        justify: JustifyMethod = "right" if is_number else "left"
        is_long = heading == "Finding"
        shown.add_column(heading, justify=justify, no_wrap=not is_long, overflow="fold")
    for finding in gate.failures:
        form = formats.mat if finding.kind == "MAT" else formats.rate
        is_measured = finding.change is not None
        unit = " tok/s" if finding.kind == "speed" else ""
        numbers = [
            form(value) + unit if is_measured else "" for value in (finding.was, finding.now)
        ]
        names = method_name(gate, finding.cell), task_name(gate, finding.cell), finding.kind
        shown.add_row(*map(Text, (*names, *numbers)), Text(finding.text, style="red"))
    return shown


def _number(finding: Finding, value: Value) -> str:
    if finding.change is None:
        return ""
    return formats.mat(value) if finding.kind == "MAT" else f"{formats.rate(value)} tok/s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
