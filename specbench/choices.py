"""Methods with options, as users spell them.

`pld,sps:num_tokens=4,schedule=constant` names two methods. An option with several values sweeps
them: `eagle2:depth=3|5|7` and `eagle2:depth=[3,5,7]` are EAGLE-2 at three depths. Knows no method.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specbench.errors import UserError

_COMMA = re.compile(r",(?![^\[\]]*\])")


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

    A piece with `=` before any `:` is an option of the preceding method. A swept option,
    `eagle2:depth=3|5`, gives a choice for each value.
    """
    choices: list[tuple[str, dict[str, str]]] = []
    for piece in (piece for text in texts for piece in _split(text)):
        if not piece:
            continue
        name, _, rest = piece.partition(":")
        if "=" in name:
            if not choices:
                raise UserError(
                    f"Option {piece!r} has no method before it.",
                    "Write METHOD:option=value,option=value.",
                )
            rest = piece
        else:
            choices.append((name, {}))
        if rest:
            _add_option(choices[-1], rest)
    swept = (MethodChoice(name, given) for name, options in choices for given in _sweep(options))
    return list({str(choice): choice for choice in swept}.values())


def _add_option(choice: tuple[str, dict[str, str]], text: str) -> None:
    key, equals, value = text.partition("=")
    if not equals:
        raise UserError(
            f"Option {text!r} of method {choice[0]!r} has no value.",
            f"Write {choice[0]}:{key}=VALUE.",
        )
    key, value = key.strip(), value.strip()
    if key in choice[1]:
        name, earlier = choice[0], choice[1][key]
        raise UserError(
            f"Option {key} of method {name!r} is given twice: {earlier} and {value}.",
            f"To run both: --method '{name}:{key}={earlier}|{value}'.",
        )
    choice[1][key] = value


def _split(text: str) -> list[str]:
    """The parts of a list of methods and options, separated by the commas outside brackets."""
    return [part.strip() for part in _COMMA.split(text)]


def _sweep(given: Mapping[str, str]) -> list[dict[str, str]]:
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
