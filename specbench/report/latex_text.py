"""Write text for LaTeX, and estimate how wide it is."""

import re
import unicodedata

TEXT_WIDTH = 448.0
"""The width in points of a line across both columns of an A4 article, minus a few points."""
TYPE_SIZE = 7
"""The size in points of the type in a table."""
_CHARACTER = 3.9
"""The mean width in points of a character in that size."""

_APART = "\0"
"""Separates two signs until it is written as an empty group."""
_LIGATURE = re.compile(r"(?<=-)(?=-)|(?<=')(?=')|(?<=:)(?=:)|(?<=,)(?=,)")
"""Matches between two hyphens, apostrophes or commas, which LaTeX would join into one sign, and
between two colons, which a CI log may read as a command.
"""
_NAMES = {"\\": "backslash", "^": "asciicircum", "~": "asciitilde", '"': "quotedbl"}
_NAMES |= {"<": "less", ">": "greater", "|": "bar", "`": "asciigrave"}
_SIGNS = {
    **{sign: rf"\{sign}" for sign in "{}$&#%_"},
    **{sign: rf"\text{name}{{}}" for sign, name in _NAMES.items()},
    "–": "--",
    "—": "---",
    "…": r"\ldots{}",
    "±": r"\ensuremath{\pm}",
    "×": r"\ensuremath{\times}",
    "→": r"\ensuremath{\to}",
    "τ": r"\ensuremath{\tau}",
    "\u00a0": "~",
    _APART: "{}",
}


def escape(text: str) -> str:
    """Return the text in LaTeX on one line. pdfLaTeX shows "?" for characters that it lacks."""
    return "".join(map(_sign, _LIGATURE.sub(_APART, one_line(text))))


def _sign(sign: str) -> str:
    """Return a character in LaTeX, or "" for an ASCII control character."""
    if sign in _SIGNS:
        return _SIGNS[sign]
    if sign.isascii():
        return sign if sign.isprintable() else ""
    if sign.isalpha() and ord(sign) < 0x180 and sign not in "ĦħĿŀŉŦŧ":  # the T1 encoding has these
        return unicodedata.normalize("NFC", sign)
    return rf"\specbenchother{{{sign}}}"


def one_line(text: str) -> str:
    """Return the text with a single blank in place of all adjacent blanks and line breaks."""
    return " ".join(text.split())


def width_of(text: str) -> float:
    """Estimate the width of a text in points."""
    return len(text) * _CHARACTER
