"""The contract of a method on a terminal: failed tests or all, and a sentence."""

from __future__ import annotations

from rich.console import Console, RenderableType
from rich.text import Text

from specbench.audit.terminal import tests_table
from specbench.audit.token_tests import POWER
from specbench.log.audit import MethodAudit
from specbench.report.export.terminal import print_parts


def print_contract(result: MethodAudit, console: Console, *, is_full: bool) -> None:
    """Print the failed tests of a method, or all in full."""
    parts: list[RenderableType] = []
    parts += tests_table([(result.method, result)], console.width, is_full=is_full)
    num, failed = len(result.tests), len(result.failures)
    if result.verdict == "no difference":
        parts.append(Text(f"Passed: {num} tests of {result.method}.", style="bold green"))
    else:
        what = "not lossless, as it says" if result.verdict == "lossy" else "FAILED"
        style = "bold yellow" if result.verdict == "lossy" else "bold red"
        parts.append(Text(f"{what}: {failed} of {num} tests of {result.method}.", style=style))
    if result.smallest_tv is not None:
        parts.append(
            Text(
                f"Power: sampled tokens of {result.num_tokens} draws would have shown a mean total "
                f"variation of {result.smallest_tv:.3f}, to or from the likeliest token, in "
                f"{POWER:.0%} of runs. --full shows every test."
            )
        )
    print_parts(parts, console)
