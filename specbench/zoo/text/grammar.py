"""The template language of the generator: `[a|b]` is a choice, `{slot}` is filled in.

Choices may nest and are expanded before slots are filled, so a slot's text is never parsed.
"""

import random
import re

_INNERMOST = re.compile(r"\[([^\[\]]*)\]")


def render(rng: random.Random, template: str, **slots: object) -> str:
    """Expand every choice of the template with `rng`, then fill its slots."""
    while "[" in template:
        template = _INNERMOST.sub(lambda found: rng.choice(found[1].split("|")), template)
    return template.format(**slots)


def words(text: str) -> tuple[str, ...]:
    """The words of a text, as a table of words is written in short."""
    return tuple(text.split())


def sentence(text: str) -> str:
    """The text with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def article(noun: str) -> str:
    """The noun with its indefinite article."""
    return f"an {noun}" if noun[0].lower() in "aeiou" else f"a {noun}"


def listing(items: list[str], joiner: str = "and") -> str:
    """The items as an English list with a serial comma."""
    if len(items) == 1:
        return items[0]
    if len(items) == 2:
        return f"{items[0]} {joiner} {items[1]}"
    return f"{', '.join(items[:-1])}, {joiner} {items[-1]}"
