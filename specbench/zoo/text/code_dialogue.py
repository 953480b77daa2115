"""How a function becomes a request to complete it and its answer."""

import random
from typing import Any

from specbench.zoo.text.code_parts import (
    COMMENTS,
    WORDS,
    Part,
)
from specbench.zoo.text.dialogue import Dialogue, Turn


def code_dialogue(
    rng: random.Random,
    signature: str,
    text: str,
    examples: list[tuple[str, Any]],
    body: list[str],
    imports: str = "",
) -> Dialogue:
    """The function as a request to complete it, and its body as the answer."""
    name = signature.split("(")[0]
    shown = "".join(
        f"    >>> {name}({arguments})\n    {value!r}\n" for arguments, value in examples
    )
    head = f'{imports}def {signature}:\n    """{text}\n{shown}    """\n'
    request = rng.choice(("Complete the code I provided.\n\n", "Complete the code I provided."))
    if rng.random() < 0.6:
        body = _commented(rng, body)
    answer = "\n".join("    " + line for line in body)
    return Dialogue("humaneval", "code", (Turn(request + head, answer),))


def _commented(rng: random.Random, body: list[str]) -> list[str]:
    """The body with some of its lines explained by a comment above them."""
    lines = []
    for line in body:
        code = line.lstrip()
        fitting = [
            texts for mark, texts in COMMENTS if code.startswith(mark) or code.endswith(mark)
        ]
        if fitting and rng.random() < 0.6:
            lines.append(line[: len(line) - len(code)] + "# " + rng.choice(fitting[0]))
        lines.append(line)
    return lines


def some_numbers(
    rng: random.Random, num: int | None = None, low: int = -9, high: int = 20
) -> list[int]:
    """Small whole numbers, three to six if `num` is not given."""
    return [rng.randint(low, high) for _ in range(num or rng.randint(3, 6))]


def some_words(rng: random.Random) -> list[str]:
    """Three to five words."""
    return rng.sample(WORDS, rng.randint(3, 5))


def phrase_of(part: Part, k: int) -> str:
    """The part's phrase with its constant filled in."""
    return part.phrase.format(k=k)


def code_of(part: Part, x: str, k: int) -> str:
    """The part's expression over the variable `x`, with its constant filled in."""
    return part.code.format(x=x, k=k)


def type_hints(rng: random.Random, element: str, returned: str) -> tuple[str, str, str]:
    """Import line, argument annotation and return annotation, in one of three styles."""
    style = rng.randrange(3)
    if style == 0:
        return "", "", ""
    if style == 1:
        return "", f": list[{element}]", f" -> {returned}"
    head = "from typing import List\n\n\n"
    return head, f": List[{element}]", f" -> {returned.replace('list', 'List')}"
