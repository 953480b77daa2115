"""Parse methods and options as users write them: `pld:ngram=2`, or sweeps `eagle2:depth=3|5`."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specbench.errors import UserError

_BRACKETS_OR_COMMA = re.compile(r"[\[\],]")
_PATHS = "[["
"""The beginning of a static tree's paths in JSON. They are a single value, not a sweep."""


@dataclass(frozen=True, slots=True)
class MethodChoice:
    """A method with the options given by the user: `pld:ngram=2`."""

    name: str
    given: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        options = ",".join(f"{key}={value}" for key, value in self.given.items())
        return f"{self.name}:{options}" if options else self.name


def parse_choices(texts: Sequence[str]) -> list[MethodChoice]:
    """Parse `["pld,sps:num_tokens=4,schedule=constant"]` into choices, without duplicates.

    A piece with `=` before any `:` is an option of the method before it. A swept option,
    `eagle2:depth=3|5`, makes one choice per value.

    Raises:
        UserError: an option has no method or no value, or is given twice.
    """
    choices: list[MethodChoice] = []
    pieces = [piece.strip() for text in texts for piece in split_list(text)]
    for piece in filter(None, pieces):
        name, _, option = piece.partition(":")
        if "=" in name:
            if not choices:
                raise UserError(
                    f"Option {piece!r} comes before any method.",
                    "Write METHOD:option=value,option=value.",
                )
            option = piece
        else:
            choices.append(MethodChoice(name))
        if option:
            choices[-1] = _with_option(choices[-1], option)
    swept = [
        MethodChoice(choice.name, given) for choice in choices for given in _sweep(choice.given)
    ]
    return list({str(choice): choice for choice in swept}.values())


def split_list(text: str) -> list[str]:
    """Split a list at the commas that are outside all brackets."""
    pieces = []
    start = 0
    num_open = 0  # how many brackets are open
    for match in _BRACKETS_OR_COMMA.finditer(text):
        if match[0] == ",":
            if num_open == 0:
                pieces.append(text[start : match.start()])
                start = match.end()
        else:
            num_open = max(0, num_open + (1 if match[0] == "[" else -1))
    return [*pieces, text[start:]]


def _with_option(choice: MethodChoice, text: str) -> MethodChoice:
    """Return the choice with the option `key=value` added."""
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(
            f"Option {text!r} of method {choice.name!r} has no value.",
            f"Write {choice.name}:{key}=VALUE.",
        )
    key = key.strip()
    value = value.strip()
    if key in choice.given:
        earlier = choice.given[key]
        raise UserError(
            f"Option {key} of method {choice.name!r} is given twice: {earlier} and {value}.",
            f"To run both: --method '{choice.name}:{key}={earlier}|{value}'.",
        )
    return MethodChoice(choice.name, {**choice.given, key: value})


def _sweep(given: Mapping[str, str]) -> list[dict[str, str]]:
    """Return every combination of the options' values. The last option changes fastest.

    Raises:
        UserError: a sweep has an empty value.
    """
    settings = [[(key, value) for value in _swept(key, text)] for key, text in given.items()]
    return [dict(pairs) for pairs in itertools.product(*settings)]


def _swept(key: str, text: str) -> list[str]:
    """Return all values of a sweep `3|5|7` or `[3,5,7]`, or the single value of an option."""
    if text.startswith(_PATHS):
        return [text]
    if text.startswith("[") and text.endswith("]"):
        pieces = text[1:-1].split(",")
    elif "|" in text:
        pieces = text.split("|")
    else:
        return [text]
    stripped = [piece.strip() for piece in pieces]
    if not all(stripped):
        raise UserError(
            f"Option {key}={text} has an empty value.", f"Write {key}=3|5|7 or {key}=[3,5,7]."
        )
    return stripped
