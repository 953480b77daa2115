"""Failed checks as annotations of a GitHub Actions workflow.

These are lines that GitHub reads from the output (docs.github.com, "Workflow commands for GitHub
Actions").
"""

from collections.abc import Iterator

from specbench.judge.gate import Gate
from specbench.judge.printer import method_name, summary, task_name

MOST = 10
"""Number of errors of a step that GitHub shows."""


def annotations(gate: Gate) -> Iterator[str]:
    """An error for each failed check, or a notice if all passed.

    If GitHub would not show all errors, the last one counts the rest.
    """
    if gate.is_passed:
        yield _line("notice", "specbench check", summary(gate))
        return
    errors = [("run", text) for text in gate.problems]
    for check in gate.failures:
        where = f"{method_name(gate, check.cell)} on {task_name(gate, check.cell)}"
        errors.append((f"{where}: {check.kind}", check.text))
    shown = errors if len(errors) <= MOST else errors[: MOST - 1]
    for title, text in shown:
        yield _line("error", title, text)
    if rest := len(errors) - len(shown):
        yield _line("error", "specbench check", f"{rest} more: see the table in the log.")


def _line(level: str, title: str, text: str) -> str:
    title = _escape(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{level} title={title}::{_escape(text)}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
