"""Time limits of downloads, their progress bar, and answers that are no files.

Knows neither files nor hosts.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specbench.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress

LIMIT_VARIABLE, STALL_VARIABLE = "SPECBENCH_DOWNLOAD_LIMIT_S", "SPECBENCH_STALL_LIMIT_S"
"""Raise or lower the limits. They cannot change a result."""


@dataclass(frozen=True, slots=True)
class DownloadLimits:
    """Seconds that a download may take, and seconds that it may receive nothing."""

    total_s: float
    stall_s: float


def download_limits(*, total_s: float, stall_s: float) -> DownloadLimits:
    """The limits from the environment, or these. UserError for a value that is no time."""
    return DownloadLimits(_seconds(LIMIT_VARIABLE, total_s), _seconds(STALL_VARIABLE, stall_s))


def raise_hint(variable: str, limit_s: float) -> str:
    """The hint that raises a limit that was reached."""
    return f"{variable}={10 * limit_s:g} raises the limit to ten times as much."


def is_html(start: bytes) -> bool:
    """True if an answer that starts like this is a web page."""
    return start[:99].lstrip().lower().startswith((b"<!doctype html", b"<html"))


def progress_bar() -> Progress:
    """A bar of bytes on stderr, removed at the end. Shows nothing if stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _seconds(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise UserError(f"{variable}={text} is not a time.", "Give a number of seconds above 0.")
    return value
