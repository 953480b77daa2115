"""Make the parts of generated Python functions, and the dialogues that consist of them.

A part tests or changes numbers or words, or combines two numbers.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tools.zoo.text.dialogue import Dialogue, Turn
from tools.zoo.text.templates import load, records

_TEXT = load("code")

Examples = Sequence[tuple[str, Any]]
"""The arguments as written, and the returned value, of each example."""


@dataclass(frozen=True)
class Part:
    """A name, an English phrase, and an expression over `{x}` and perhaps a constant `{k}`."""

    word: str
    phrase: str
    code: str

    @cached_property
    def run(self) -> Callable[[Any, Any], Any]:
        """Return the expression as a function of `x` and `k`."""
        return eval(f"lambda x, k: {self.over('x', 'k')}")

    def text(self, k: int) -> str:
        """Return the phrase with its constant filled in."""
        return self.phrase.format(k=k)

    def over(self, x: str, k: int | str) -> str:
        """Return the expression over the variable `x`, with its constant filled in."""
        return self.code.format(x=x, k=k)


NUMBER_TESTS, NUMBER_MAPS, WORD_TESTS, WORD_MAPS, PAIR_OPERATIONS = (
    [Part(*fields) for fields in records(_TEXT[table])]
    for table in ("number_tests", "number_maps", "word_tests", "word_maps", "pair_operations")
)


def code_dialogue(
    rng: random.Random, signature: str, text: str, examples: Examples, body: str, imports: str = ""
) -> Dialogue:
    """Return a dialogue with a request to complete the function, and its body as the answer."""
    name = signature.partition("(")[0]
    shown = "".join(f"    >>> {name}({given})\n    {value!r}\n" for given, value in examples)
    head = f'{imports}def {signature}:\n    """{text}\n{shown}    """\n'
    request = rng.choice(_TEXT["requests"])
    lines = body.splitlines()
    if rng.random() < 0.6:
        lines = _commented(rng, lines)
    answer = "\n".join(f"    {line}" for line in lines)
    return Dialogue("humaneval", "code", (Turn(request + head, answer),))


def _commented(rng: random.Random, body: list[str]) -> list[str]:
    """Put a comment above some lines of the body, to explain them."""
    lines = []
    for line in body:
        code = line.lstrip()
        marks = (mark for mark in _TEXT["comments"] if code.startswith(mark) or code.endswith(mark))
        if (mark := next(marks, None)) and rng.random() < 0.6:
            indent = line[: len(line) - len(code)]
            lines.append(f"{indent}# {rng.choice(_TEXT['comments'][mark])}")
        lines.append(line)
    return lines


def names(table: str) -> list[str]:
    """Return the words of a table."""
    return str(_TEXT[table]).split()


def body(name: str, **slots: str) -> str:
    """Return the lines of a function's body with its slots filled in."""
    return str(_TEXT["bodies"][name]).strip().format(**slots)


def either(rng: random.Random, name: str, share: float, **slots: str) -> str:
    """Return the short form of the body with the probability `share`, else the long form."""
    return body(f"{name}_short" if rng.random() < share else name, **slots)


def joined(*words: str) -> str:
    """Join the words that are not empty into one name."""
    return "_".join(word for word in words if word)


def some_numbers(
    rng: random.Random, num: int | None = None, low: int = -9, high: int = 20
) -> list[int]:
    """Draw small whole numbers: `num` of them, or three to six."""
    return [rng.randint(low, high) for _ in range(num or rng.randint(3, 6))]


def some_words(rng: random.Random) -> list[str]:
    """Draw three to five words."""
    return rng.sample(names("words"), rng.randint(3, 5))


def changed(change: Part, k: int) -> str:
    """Return a phrase for the changed numbers, such as "the squares of the numbers"."""
    return f"{change.text(k)} the numbers" if change.phrase else "the numbers"


def type_hints(rng: random.Random, element: str, returned: str) -> tuple[str, str, str]:
    """Return an import line, the argument's and the result's annotation, in one of three styles."""
    style = rng.randrange(3)
    if style == 0:
        return "", "", ""
    if style == 1:
        return "", f": list[{element}]", f" -> {returned}"
    head = "from typing import List\n\n\n"
    return head, f": List[{element}]", f" -> {returned.replace('list', 'List')}"
