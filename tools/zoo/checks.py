"""Checks of an answer: the form of its family, and its result where that can be computed."""

import ast
import re

_EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
_FINAL = re.compile(r"\n#### (\d+)$")
_BUILTINS = {
    word.__name__: word
    for word in (abs, all, any, enumerate, int, len, list, max, min, range, sorted, str, sum, zip)
}


def equations_hold(answer: str) -> bool:
    """True if every `a op b = c` of the answer is."""
    for left, sign, right, result in _EQUATION.findall(answer):
        a, b = int(left), int(right)
        truth = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}[sign]
        if truth != int(result):
            return False
    return True


def final_number(answer: str) -> int | None:
    """The number after `####`, or None if the answer does not end in one."""
    found = _FINAL.search(answer)
    return int(found[1]) if found else None


def examples_pass(request: str, body: str) -> bool:
    """True if the function of the request, with this body, gives its docstring's examples.

    The code sees a few harmless builtins only. An answer that does not run does not pass.
    """
    source = request.removeprefix("Complete the code I provided.").lstrip("\n")
    names: dict[str, object] = {"__builtins__": _BUILTINS, "List": list}
    try:
        exec(source.removeprefix("from typing import List") + body + "\n", names)
        examples = re.findall(r">>> (.*)\n    (.*)\n", source)
        return bool(examples) and all(
            eval(call, names) == ast.literal_eval(value) for call, value in examples
        )
    except Exception:
        return False


def has_form(family: str, answer: str) -> bool:
    """True if the answer looks like one of its family."""
    if family == "gsm8k":
        return final_number(answer) is not None and bool(_EQUATION.search(answer))
    if family == "humaneval":
        return answer.startswith("    ") and "return" in answer
    if family == "cnn_dm":
        return 2 <= len(re.findall(r"\.(?: |$)", answer)) <= 4
    if family == "natural_questions":
        return answer[:1].isupper() and answer.endswith(".")
    return bool(answer.strip())
