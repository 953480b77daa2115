"""Swept options: one spelling that stands for several methods.

`eagle2:depth=3|5|7` and `eagle2:depth=[3,5,7]` are EAGLE-2 at three depths.
"""

import itertools
import re
from collections.abc import Mapping

from specbench.errors import UserError

_COMMA = re.compile(r",(?![^\[\]]*\])")


def split_methods(text: str) -> list[str]:
    """The parts of a list of methods and options, separated by the commas outside brackets."""
    return [part.strip() for part in _COMMA.split(text)]


def sweep(given: Mapping[str, str]) -> list[dict[str, str]]:
    """Every combination of the values of a method's options; the last option changes fastest.

    Raises:
        UserError: a sweep with an empty value.
    """
    values = [[(key, value) for value in _values(key, text)] for key, text in given.items()]
    return [dict(pairs) for pairs in itertools.product(*values)]


def _values(key: str, text: str) -> list[str]:
    if text.startswith("[") and text.endswith("]"):
        values = text[1:-1].split(",")
    elif "|" in text:
        values = text.split("|")
    else:
        return [text]
    stripped = [value.strip() for value in values]
    if not all(stripped):
        raise UserError(
            f"Option {key}={text} has an empty value.", f"Write {key}=3|5|7 or {key}=[3,5,7]."
        )
    return stripped
