"""The gate's failures as annotations of a GitHub Actions workflow: lines that GitHub reads from
the output (docs.github.com, "Workflow commands for GitHub Actions").
"""

from collections.abc import Iterator

from specbench.analysis.gate import Gate
from specbench.report.gate import method_name, sentence, task_name

MOST = 10
"""GitHub shows this many errors of a step."""


def annotations(gate: Gate) -> Iterator[str]:
    """An error for each failed finding, the last one for all that GitHub would not show; or a
    notice that all is well.
    """
    if gate.is_passed:
        yield _line("notice", "specbench check", sentence(gate))
        return
    errors = [("run", text) for text in gate.broken]
    for finding in gate.failures:
        where = f"{method_name(gate, finding.cell)} on {task_name(gate, finding.cell)}"
        errors.append((f"{where}: {finding.kind}", finding.text))
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
