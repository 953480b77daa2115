"""Figures of the trained models on held-out text, for the README.

They are about the tokens that the models generate, through transformers' own generation. What
the drafters accept is in the report of `specbench run`.
"""

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tools.zoo.batches import chats_in_rows, text_loss
from tools.zoo.held_out import EVALUATION_SEED, held_out_dialogues
from tools.zoo.models import load_model
from tools.zoo.text import FAMILIES, Dialogue
from tools.zoo.tokenizer import EOS_ID, load_tokenizer

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


_MAX_NEW_TOKENS = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer: its token ids and its text."""

    answer_ids: tuple[int, ...]
    text: str

    @property
    def is_ended(self) -> bool:
        return self.answer_ids[-1] == EOS_ID


@torch.no_grad()
def evaluate(folder: Path, num: int) -> dict[str, dict[str, float]]:
    """Held-out figures per family of the model in the folder.

    `eos` and `form` are rates over all answers, `right` the rate of right answers where that can
    be computed.
    """
    model, tokenizer = load_model(folder).eval(), load_tokenizer(folder)
    return {
        family: _figures(model, tokenizer, held_out_dialogues(family, num, EVALUATION_SEED))
        for family in FAMILIES
    }


def _figures(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, dialogues: Sequence[Dialogue]
) -> dict[str, float]:
    batch = chats_in_rows(tokenizer.backend_tokenizer, dialogues)
    given = [
        (dialogue, answer)
        for dialogue in dialogues
        for answer in answers(model, tokenizer, [turn.user for turn in dialogue.turns])
    ]
    tokens = sum(len(answer.answer_ids) - 1 for _, answer in given)
    figures = {
        "loss": text_loss(model(batch.ids, use_cache=False).logits, batch).item(),
        "eos": sum(answer.is_ended for _, answer in given) / len(given),
        "form": sum(a.is_ended and has_form(d.family, a.text) for d, a in given) / len(given),
        "answer_tokens": tokens / len(given),
    }
    if dialogues[0].family in ("gsm8k", "humaneval", "natural_questions"):
        figures["right"] = sum(_is_right(d, a.text) for d, a in given) / len(given)
    return {name: round(value, 3) for name, value in figures.items()}


@torch.no_grad()
def answers(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, requests: list[str]
) -> list[Answer]:
    """The model's greedy answers to the turns of one chat, each after the answers before it."""
    chat: list[dict[str, str]] = []
    given = []
    for request in requests:
        chat.append({"role": "user", "content": request})
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        prompt = tokenizer(text, add_special_tokens=False, return_tensors="pt")
        ids = model.generate(**prompt, do_sample=False, max_new_tokens=_MAX_NEW_TOKENS)[0].tolist()
        start = prompt.input_ids.shape[1]
        answer = tokenizer.decode(ids[start:], skip_special_tokens=True)
        given.append(Answer(tuple(ids[start:]), answer))
        chat.append({"role": "assistant", "content": answer})
    return given


def _is_right(dialogue: Dialogue, answer: str) -> bool:
    reference = dialogue.turns[0].assistant
    if dialogue.family == "gsm8k":
        return equations_hold(answer) and final_number(answer) == final_number(reference)
    if dialogue.family == "humaneval":
        return examples_pass(dialogue.turns[0].user, answer)
    # The names and numbers of the reference's first sentence, whatever the wording.
    first = reference.split(". ")[0]
    facts = re.findall(r"[A-Z][\w-]+|\d+", first[1:])
    return all(fact in answer for fact in facts)
