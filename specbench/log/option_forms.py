"""Read the texts of options that have a form of their own, such as a share."""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specbench.errors import UserError


def share(flag: str, share_text: str) -> float:
    """The share in a text such as "5%" or "0.05", as the number 0.05. `flag` is for the message.

    Raises:
        UserError: the text is not a number, or the share is below 0 or at least 1.
    """
    digits = share_text.strip().removesuffix("%")
    try:
        number = float(digits)
    except ValueError:
        number = math.nan  # refused below
    if digits != share_text.strip():  # a percentage, whose "%" was removed
        number /= 100
    if 0 <= number < 1:
        return number
    if math.isnan(number):
        fault = "is not a number"
    else:
        fault = "is below 0" if number < 0 else "is 100 % or more"
    raise UserError(
        f"{flag} {share_text} {fault}.", f"Give a share such as {flag} 5% or {flag} 0.05."
    )


def _words(flag: str, words_text: str) -> Sequence[str]:
    """The words of a text, as a shell splits it. Raises UserError if a quote is not closed."""
    try:
        return tuple(shlex.split(words_text))
    except ValueError as error:
        raise UserError(f"{flag} {words_text}: {error}.", "Close the quotes.") from error


READERS: Mapping[str, Callable[[str, str], Any]] = {"share": share, "words": _words}
"""Form of an option -> the function that reads its texts. It takes the option's flag, for messages,
and the text.
"""
