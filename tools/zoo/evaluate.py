"""Measure the shipped target on held-out text, for the README.

The figures describe the tokens that the target generates. The report of `specbench run` has the
accepted tokens, and the training log has the loss on other held-out text.
"""

import ast
import re
from statistics import fmean

from specbench.api import Generation, LoadedModel, load
from tools.zoo.held_out import EVALUATION_SEED, held_out_dialogues
from tools.zoo.text import FAMILIES, Dialogue

NUM_CHATS = 60
"""Number of chats per family that are evaluated."""
_EQUATION = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
_FINAL = re.compile(r"\n#### (\d+)$")
_BUILTINS = {
    word.__name__: word
    for word in (abs, all, any, enumerate, int, len, list, max, min, range, sorted, str, sum, zip)
}


def equations_hold(answer: str) -> bool:
    """Return True if every `a op b = c` in the answer is correct."""
    for left, sign, right, stated in _EQUATION.findall(answer):
        a = int(left)
        b = int(right)
        quotient = a / b if b else None
        results = {"+": a + b, "-": a - b, "*": a * b, "/": quotient}
        if results[sign] != int(stated):
            return False
    return True


def final_number(answer: str) -> int | None:
    """Return the number after `####`, or None if the answer does not end with one."""
    match = _FINAL.search(answer)
    return int(match[1]) if match else None


def examples_pass(request: str, body: str) -> bool:
    """Return True if the request's function with this body returns its docstring's examples.

    The code sees only a few harmless builtins. An answer that does not run does not pass.
    """
    source = request.removeprefix("Complete the code I provided.").lstrip("\n")
    names: dict[str, object] = {"__builtins__": _BUILTINS, "List": list}
    try:
        exec(source.removeprefix("from typing import List") + body + "\n", names)
        examples = re.findall(r">>> (.*)\n    (.*)\n", source)
        return bool(examples) and all(
            eval(call, names) == ast.literal_eval(result) for call, result in examples
        )
    except Exception:
        return False


def has_form(family: str, answer: str) -> bool:
    """Return True if the answer looks like one of its family."""
    if family == "gsm8k":
        return final_number(answer) is not None and bool(_EQUATION.search(answer))
    if family == "humaneval":
        return answer.startswith("    ") and "return" in answer
    if family == "cnn_dm":
        return 2 <= len(re.findall(r"\.(?: |$)", answer)) <= 4
    if family == "natural_questions":
        return answer[:1].isupper() and answer.endswith(".")
    return bool(answer.strip())


def evaluate() -> dict[str, dict[str, float]]:
    """Return the figures of `tiny` for each family.

    `eos` and `form` are rates over all answers. `right` is the rate of right answers, in families
    where a program can check them.
    """
    tiny = load("tiny", device="cpu", dtype="float32")
    return {
        family: _figures(tiny, held_out_dialogues(family, NUM_CHATS, EVALUATION_SEED))
        for family in FAMILIES
    }


def _figures(model: LoadedModel, dialogues: list[Dialogue]) -> dict[str, float]:
    family = dialogues[0].family
    pairs = [(dialogue, answer) for dialogue in dialogues for answer in answers(model, dialogue)]
    figures = {
        "eos": fmean(is_ended(answer) for _, answer in pairs),
        "form": fmean(is_ended(answer) and has_form(family, answer.text) for _, answer in pairs),
        "answer_tokens": fmean(answer.completion.num_tokens - 1 for _, answer in pairs),
    }
    if family in ("gsm8k", "humaneval", "natural_questions"):
        figures["right"] = fmean(_is_right(dialogue, answer.text) for dialogue, answer in pairs)
    return {name: round(figure, 3) for name, figure in figures.items()}


def answers(model: LoadedModel, dialogue: Dialogue) -> list[Generation]:
    """Return greedy answers to the turns of a chat. The model reads its own earlier answers."""
    chat: list[dict[str, str]] = []
    generations = []
    for turn in dialogue.turns:
        chat.append({"role": "user", "content": turn.user})
        generation = model.generate(chat, max_new_tokens=200)
        generations.append(generation)
        chat.append({"role": "assistant", "content": generation.text})
    return generations


def is_ended(answer: Generation) -> bool:
    """Return True if the answer ended with the end token."""
    return answer.completion.stop_reason == "eos"


def _is_right(dialogue: Dialogue, answer: str) -> bool:
    reference = dialogue.turns[0].assistant
    if dialogue.family == "gsm8k":
        return equations_hold(answer) and final_number(answer) == final_number(reference)
    if dialogue.family == "humaneval":
        return examples_pass(dialogue.turns[0].user, answer)
    # The answer needs the names and numbers of the reference's first sentence.
    first = reference.split(". ")[0]
    facts = re.findall(r"[A-Z][\w-]+|\d+", first[1:])
    return all(fact in answer for fact in facts)
