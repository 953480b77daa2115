"""Make text safe to print, without control characters, commands for a CI system, or passwords."""

import os
import re
from collections.abc import Sequence
from typing import Any

_LEADING_COLONS = re.compile(r"^(\s*):(?=:)", re.MULTILINE)
_COMMAND = "##["
"""A GitHub Actions command may begin with this anywhere in a line, or with "::" at the start of a
line.
"""
_PASSWORD = re.compile(r"(?<=://)[^/\s@]+@")

_LATER_CONTROLS = range(0x80, 0xA0)
"""Control characters beyond ASCII, which some terminals obey."""
_LINE_SEPARATORS = (0x2028, 0x2029)
_DIRECTION_MARKS = (0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Marks that change the direction of text."""
_INVALID = (*range(0xD800, 0xE000), 0xFEFF, 0xFFFE, 0xFFFF)
"""Lone surrogates, byte order marks and code points that are not characters."""

_PICTURE_OF = {code: 0x2400 + code for code in range(0x20)} | {0x7F: 0x2421}
"""The pictures of the control characters of ASCII: "␛" for an escape."""
_VISIBLE_SIGNS = _PICTURE_OF | dict.fromkeys(
    (*_LATER_CONTROLS, *_LINE_SEPARATORS, *_DIRECTION_MARKS, *_INVALID), 0xFFFD
)
"""Invisible or harmful character -> the sign that replaces it."""
_VISIBLE_SIGNS_IN_PROSE = {
    code: sign for code, sign in _VISIBLE_SIGNS.items() if chr(code) not in "\n\t"
}


def printable(text: str) -> str:
    """The text on one line, with visible signs in place of control characters, such as "␛" for an
    escape.
    """
    shown = text if text.isprintable() else text.translate(_VISIBLE_SIGNS)
    return shown.replace(_COMMAND, "## [")


def without_password(text: str) -> str:
    """The text without the user names and passwords in its addresses."""
    return _PASSWORD.sub("***@", text) if "@" in text else text


def printable_values(value: Any) -> Any:
    """The value with each of its texts on one line, without control characters and passwords."""
    if isinstance(value, str):
        return without_password(printable(value))
    if isinstance(value, dict):
        return {printable_values(key): printable_values(below) for key, below in value.items()}
    return [*map(printable_values, value)] if isinstance(value, list) else value


def first_line(text: str, most: int = 160) -> str:
    """The first non-empty line of a text, without control characters, and cut to `most`
    characters.
    """
    line = next((line for line in text.splitlines() if line.strip()), "")
    shown = "".join(character if character.isprintable() else " " for character in line)
    return cut(shown.strip(), most)


def cut(text: str, most: int) -> str:
    """The text, or its start with "…" if it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def few(items: Sequence[str], most: int = 3) -> str:
    """The first items and the number of the others, such as "a, b, c and 4 more"."""
    rest = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + rest


def visible(text: str) -> str:
    """The text with visible signs in place of control characters. It keeps its length and its
    lines.
    """
    shown = text.translate(_VISIBLE_SIGNS_IN_PROSE).replace(_COMMAND, "##\uff3b")
    return _LEADING_COLONS.sub("\\1\ua789", shown)


def terminal_text(text: str) -> str:
    """The lines of a text for a terminal or for the log of a CI system, without commands."""
    shown = "\n".join(map(printable, text.split("\n")))
    is_ci = os.environ.get("GITHUB_ACTIONS") == "true"
    return shown.replace("::", "\ua789\ua789") if is_ci else shown
