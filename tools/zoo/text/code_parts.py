"""The parts of the generated Python functions, and the dialogues made from them.

A part is a test or a change of numbers or words. It has an English phrase, an expression and an
equal Python function.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tools.zoo.text.dialogue import Dialogue, Turn
from tools.zoo.text.templates import load

_TEXT = load("code")

Examples = Sequence[tuple[str, Any]]
"""Arguments as they are written, and the value."""


@dataclass(frozen=True, slots=True)
class Part:
    """A phrase, an expression over `{x}` (and a constant `{k}`), the function and its name."""

    phrase: str
    code: str
    run: Callable[[Any, int], Any]
    word: str

    def text(self, k: int) -> str:
        """The phrase with its constant filled in."""
        return self.phrase.format(k=k)

    def over(self, x: str, k: int) -> str:
        """The expression over the variable `x`, with its constant filled in."""
        return self.code.format(x=x, k=k)


NUMBER_TESTS = (
    Part("even", "{x} % 2 == 0", lambda x, k: x % 2 == 0, "even"),
    Part("odd", "{x} % 2 == 1", lambda x, k: x % 2 == 1, "odd"),
    Part("positive", "{x} > 0", lambda x, k: x > 0, "positive"),
    Part("negative", "{x} < 0", lambda x, k: x < 0, "negative"),
    Part("greater than {k}", "{x} > {k}", lambda x, k: x > k, "large"),
    Part("less than {k}", "{x} < {k}", lambda x, k: x < k, "small"),
    Part("at least {k}", "{x} >= {k}", lambda x, k: x >= k, "big"),
    Part("divisible by {k}", "{x} % {k} == 0", lambda x, k: x % k == 0, "divisible"),
    Part("not equal to {k}", "{x} != {k}", lambda x, k: x != k, "other"),
)
NUMBER_MAPS = (
    Part("", "{x}", lambda x, k: x, ""),
    Part("the squares of", "{x} * {x}", lambda x, k: x * x, "squared"),
    Part("the doubles of", "2 * {x}", lambda x, k: 2 * x, "doubled"),
    Part("the absolute values of", "abs({x})", lambda x, k: abs(x), "absolute"),
    Part("the opposites of", "-{x}", lambda x, k: -x, "negated"),
    Part("{k} more than each of", "{x} + {k}", lambda x, k: x + k, "shifted"),
    Part("{k} times each of", "{x} * {k}", lambda x, k: x * k, "scaled"),
    Part("the cubes of", "{x} ** 3", lambda x, k: x**3, "cubed"),
)
WORD_TESTS = (
    Part("longer than {k} letters", "len({x}) > {k}", lambda x, k: len(x) > k, "long"),
    Part("shorter than {k} letters", "len({x}) < {k}", lambda x, k: len(x) < k, "short"),
    Part("starting with a vowel", "{x}[0] in 'aeiou'", lambda x, k: x[0] in "aeiou", "vowel"),
    Part("ending with 'e'", "{x}.endswith('e')", lambda x, k: x.endswith("e"), "final_e"),
    Part("containing 'a'", "'a' in {x}", lambda x, k: "a" in x, "with_a"),
    Part("without an 'o'", "'o' not in {x}", lambda x, k: "o" not in x, "without_o"),
    Part("with exactly {k} letters", "len({x}) == {k}", lambda x, k: len(x) == k, "exact"),
)
WORD_MAPS = (
    Part("", "{x}", lambda x, k: x, ""),
    Part("in upper case", "{x}.upper()", lambda x, k: x.upper(), "upper"),
    Part("reversed", "{x}[::-1]", lambda x, k: x[::-1], "reversed"),
    Part(
        "with the first letter capitalized",
        "{x}.capitalize()",
        lambda x, k: x.capitalize(),
        "title",
    ),
    Part("without their first letter", "{x}[1:]", lambda x, k: x[1:], "tail"),
    Part("written twice", "{x} * 2", lambda x, k: x * 2, "double"),
)
PAIR_OPERATIONS = (
    ("sum", "{a} + {b}", lambda a, b: a + b),
    ("difference", "{a} - {b}", lambda a, b: a - b),
    ("product", "{a} * {b}", lambda a, b: a * b),
    ("maximum", "max({a}, {b})", max),
    ("minimum", "min({a}, {b})", min),
)


def code_dialogue(
    rng: random.Random, signature: str, text: str, examples: Examples, body: str, imports: str = ""
) -> Dialogue:
    """The function as a request to complete it, and its body as the answer."""
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
    """The body with some of its lines explained by a comment above them."""
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
    """The words of a table."""
    return str(_TEXT[table]).split()


def body(name: str, **slots: str) -> str:
    """The lines of a function's body, with its slots filled in."""
    return str(_TEXT["bodies"][name]).strip().format(**slots)


def either(rng: random.Random, name: str, share: float, **slots: str) -> str:
    """The short form of the body in this share of cases, else the long one."""
    return body(f"{name}_short" if rng.random() < share else name, **slots)


def joined(*words: str) -> str:
    """The words that are not empty, as one name."""
    return "_".join(word for word in words if word)


def some_numbers(
    rng: random.Random, num: int | None = None, low: int = -9, high: int = 20
) -> list[int]:
    """Small whole numbers, three to six if `num` is not given."""
    return [rng.randint(low, high) for _ in range(num or rng.randint(3, 6))]


def some_words(rng: random.Random) -> list[str]:
    """Three to five words."""
    return rng.sample(names("words"), rng.randint(3, 5))


def changed(change: Part, k: int) -> str:
    """A phrase for the numbers after the change."""
    return f"{change.text(k)} the numbers" if change.phrase else "the numbers"


def type_hints(rng: random.Random, element: str, returned: str) -> tuple[str, str, str]:
    """Import line, argument annotation and return annotation, in one of three styles."""
    style = rng.randrange(3)
    if style == 0:
        return "", "", ""
    if style == 1:
        return "", f": list[{element}]", f" -> {returned}"
    head = "from typing import List\n\n\n"
    return head, f": List[{element}]", f" -> {returned.replace('list', 'List')}"
