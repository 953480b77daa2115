"""Render the generator's template language, and load the TOML files of templates and tables.

`[a|b]` is a choice. `{slot}` is filled in, and `{Slot}` begins in upper case. Choices may nest.
They are made before slots are filled, so the text of a slot is never parsed. A template that is a
list is a choice among its elements.
"""

import random
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_INNERMOST = re.compile(r"\[([^\[\]]*)\]")


def load(name: str) -> dict[str, Any]:
    """Load the templates and tables of a TOML file beside this module."""
    return tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text(encoding="utf-8"))


def records(text: str) -> list[list[str]]:
    """Return the records of a table, which has one per line, with semicolons between fields."""
    return [line.split("; ") for line in text.strip().splitlines()]


class _Slots(dict[str, object]):
    def __missing__(self, name: str) -> str:
        if name[0].islower():
            raise KeyError(name)
        return sentence(str(self[name[0].lower() + name[1:]]))


def render(rng: random.Random, template: str | Sequence[str], **slots: object) -> str:
    """Make every choice of the template with `rng`, then fill its slots."""
    if not isinstance(template, str):
        template = f"[{'|'.join(template)}]"
    while "[" in template:
        template = _INNERMOST.sub(lambda match: rng.choice(match[1].split("|")), template)
    return template.format_map(_Slots(slots))


class Writer:
    """Renders the templates of one table, and remembers the values of their slots."""

    def __init__(
        self, rng: random.Random, templates: dict[str, str | list[str]], **slots: object
    ) -> None:
        self._rng, self._templates, self._slots = rng, templates, slots

    def __call__(self, name: str, **slots: object) -> str:
        return render(self._rng, self._templates[name], **self._slots, **slots)

    def put(self, **slots: object) -> None:
        self._slots |= slots

    def roll(self, **ranges: tuple[int, int]) -> list[int]:
        """Draw a whole number between two bounds for each slot, and return the numbers."""
        numbers = {slot: self._rng.randint(*bounds) for slot, bounds in ranges.items()}
        self.put(**numbers)
        return list(numbers.values())


def sentence(text: str) -> str:
    """Return the text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def article(noun: str) -> str:
    """Return the noun with its indefinite article."""
    return f"an {noun}" if noun[0].lower() in "aeiou" else f"a {noun}"


def listing(items: Sequence[str], joiner: str = "and") -> str:
    """Return the items as an English list with a serial comma."""
    if len(items) < 3:
        return f" {joiner} ".join(items)
    return f"{', '.join(items[:-1])}, {joiner} {items[-1]}"


def numbered(items: Sequence[str]) -> str:
    """Return the items as a numbered list, one per line."""
    return "\n".join(f"{i}. {sentence(item)}" for i, item in enumerate(items, start=1))
