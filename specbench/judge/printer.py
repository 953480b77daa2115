"""The gate on a terminal, and its cells in words."""

from collections import defaultdict
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from specbench.analysis.cells import BASELINE, CellKey
from specbench.analysis.stats.bootstrap import Missing
from specbench.judge.checks import Check
from specbench.judge.comparison import MEAN
from specbench.judge.gate import Gate
from specbench.report import formats
from specbench.report.export.terminal import notes_grid, print_parts, report_console
from specbench.report.layout import draw
from specbench.report.notes import Note
from specbench.report.table import Cell, Column, Group, Row, Table

_COLUMNS = (
    Column("Task", is_text=True), Column("Check", is_text=True),
    Column("Baseline"), Column("Now"), Column("Result", is_text=True),
)  # fmt: skip


def method_name(gate: Gate, cell: CellKey) -> str:
    """The cell's method, with temperature and load if there are several: "EAGLE-2, T=1"."""
    temperatures = {check.cell.temperature for check in gate.checks}
    return ", ".join(filter(None, (
        gate.comparison.reference.method(cell.method).label,
        f"T={cell.temperature:g}" if len(temperatures) > 1 else "",
        cell.load.text,
    )))  # fmt: skip


def task_name(gate: Gate, cell: CellKey) -> str:
    """The title of the cell's task."""
    if cell.task == MEAN:
        return "Mean of the tasks"
    return gate.comparison.reference.task_title(cell.task)


def print_gate(gate: Gate, console: Console | None = None) -> None:
    """Print failures, summary and notes; on stdout unless a console is given."""
    console = console or report_console()
    parts: list[RenderableType] = [*draw(_failures(gate), console.width)] if gate.failures else []
    style = "bold green" if gate.is_passed else "bold red"
    parts += [Text(summary(gate), style=style), Text(), notes_grid([*gate_notes(gate)])]
    print_parts(parts, console)


def summary(gate: Gate) -> str:
    """The result in one or two sentences."""
    run, baseline = gate.comparison.subject.id, gate.comparison.reference.id
    if not gate.is_passed:
        methods = dict.fromkeys(method_name(gate, check.cell) for check in gate.failures)
        reasons = [*gate.problems]
        if methods:
            count = _count(len(gate.failures), "failed check")
            reasons.append(f"{count}: {', '.join(methods)}.")
        return f"FAILED: {run} falls behind {baseline}. {' '.join(reasons)}"
    cells = {check.cell for check in gate.checks if check.cell.task != MEAN}
    num_methods = len({cell.method for cell in cells})
    scope = f"{_count(len(cells), 'cell')} of {_count(num_methods, 'method')}"
    without = "; speed was not checked" if gate.no_speed else ""
    return f"Passed: {run} is no worse than {baseline} in {scope}{without}."


def gate_notes(gate: Gate) -> Iterator[Note]:
    """Notes on the numbers that passed, on what was not checked, and on the two runs."""
    yield from _passed_notes(gate)
    if gate.no_speed:
        yield Note("Speed", f"not checked: {gate.no_speed}")
    skipped = [check for check in gate.checks if check.status == "skipped"]
    unclear = [check for check in skipped if check.text.startswith("cannot tell")]
    for check in unclear:
        yield Note(method_name(gate, check.cell), check.text, is_warning=True)
    if num_skipped := len(skipped) - len(unclear):
        reason = "too few samples, no audit, or nothing to measure"
        yield Note("Skipped", f"{_count(num_skipped, 'number')} not judged ({reason})")
    yield Note(
        "Tests",
        "one-sided, over paired samples, corrected for their number: fewer than 1 of 100 equal "
        f"runs fail by chance{_noise_text(gate)}. Intervals are 95 %.",
    )
    warnings = [*gate.comparison.unshared]
    if any(check.kind == "speed" and check.cell.method == BASELINE for check in gate.failures):
        warnings.insert(
            0,
            "Vanilla itself is slower. The cause is the engine or the machine; a second run tells "
            "which.",
        )
    for caution in gate.comparison.cautions:
        difference = caution.describe("the baseline", "this run")
        warnings.append(f"May explain a difference: {difference}.")
    for text in warnings:
        yield Note("Warning", text, is_warning=True)


def _noise_text(gate: Gate) -> str:
    """The source of the machine's noise in the tests of speed."""
    if gate.no_speed:
        return ""
    if gate.num_baselines > 1:
        return f". Speed is judged by the spread of the {gate.num_baselines} baselines"
    return ", if the machine is equally fast: one baseline does not show how far runs differ"


def _passed_notes(gate: Gate) -> Iterator[Note]:
    """The largest change for the worse that passed, of MAT and of speed."""
    for kind, word in (("MAT", "drop"), ("speed", "slowdown")):
        passed = [c for c in gate.checks if c.kind == kind and c.status == "passed" and c.change]
        if not passed:
            continue
        worst = max(passed, key=lambda check: check.change.value if check.change else 0.0)
        numbers = _count(len(passed), "number")
        text = f"{numbers}, all unchanged or better"
        if worst.text != "unchanged":
            where = f"{method_name(gate, worst.cell)}, {task_name(gate, worst.cell)}"
            text = (
                f"{numbers} without a significant {word} beyond the limit; the worst is {where}, "
                f"{worst.text}"
            )
        yield Note(kind[0].upper() + kind[1:], text)


def _failures(gate: Gate) -> Table:
    """A row a failed check; checks of a method that read alike share one."""
    alike: dict[tuple[str, ...], list[Check]] = defaultdict(list)
    for check in gate.failures:
        method = method_name(gate, check.cell)
        alike[method, check.kind, *_numbers(check), check.text].append(check)
    rows = []
    for (method, kind, before, now, text), checks in alike.items():
        is_one = len(checks) == 1
        task = task_name(gate, checks[0].cell) if is_one else f"{len(checks)} tasks"
        cells = (*map(Cell, (task, kind, before, now)), Cell(text, "bad"))
        rows.append(Row(checks[0].cell.method, method, cells))
    return Table("", _COLUMNS, (Group("", tuple(rows)),))


def _numbers(check: Check) -> tuple[str, str]:
    """The values of the baseline and of this run."""
    if check.change is None or isinstance(check.before, Missing):
        return "", ""
    if check.kind == "MAT":
        return formats.mat(check.before), formats.mat(check.now)
    return f"{formats.rate(check.before)} tok/s", f"{formats.rate(check.now)} tok/s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
