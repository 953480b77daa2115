"""Text as a console shows it."""

from collections.abc import Callable
from io import StringIO

from rich.console import Console


def printed(show: Callable[[Console], object], width: int = 80) -> str:
    """The output on a terminal of this width, without colours."""
    file = StringIO()
    show(Console(file=file, width=width, force_terminal=True, color_system=None, highlight=False))
    return file.getvalue()
