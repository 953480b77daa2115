"""Figures of the trained models on held-out text, for the README.

They are about the tokens that the models generate and draft, through transformers' own
generation, and not about speed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from tools.zoo.batches import chats_in_rows
from tools.zoo.checks import equations_hold, examples_pass, final_number, has_form
from tools.zoo.held_out import EVALUATION_SEED, held_out_dialogues
from tools.zoo.losses import text_loss
from tools.zoo.models import load_model
from tools.zoo.text import FAMILIES, Dialogue
from tools.zoo.tokenizer import EOS_ID, load_tokenizer

DRAFT_LENGTH = 5
_MAX_NEW_TOKENS = 200


@dataclass(frozen=True, slots=True)
class Answer:
    """A greedy answer: the prompt's and the answer's token ids, and the answer's text."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]
    text: str

    @property
    def is_ended(self) -> bool:
        return self.answer_ids[-1] == EOS_ID


@torch.no_grad()
def evaluate(folder: Path, num: int, draft_folder: Path) -> dict[str, dict[str, float]]:
    """Held-out figures per family of the model in the folder.

    `eos` and `form` are rates over all answers, `right` the rate of right answers where that can
    be computed, `greedy_accept_length` the emitted tokens per target step with a draft model that
    drafts `DRAFT_LENGTH` tokens, both greedy.
    """
    model, draft = load_model(folder).eval(), load_model(draft_folder).eval()
    tokenizer = load_tokenizer(folder)
    return {
        family: _figures(model, draft, tokenizer, held_out_dialogues(family, num, EVALUATION_SEED))
        for family in FAMILIES
    }


def _figures(
    model: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    dialogues: Sequence[Dialogue],
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
    figures["greedy_accept_length"] = tokens / sum(num_steps(draft, a) for _, a in given)
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
        given.append(Answer(tuple(ids[:start]), tuple(ids[start:]), answer))
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


@torch.no_grad()
def num_steps(draft: LlamaForCausalLM, answer: Answer) -> int:
    """Target steps to emit the answer after its first token, with a greedy draft model."""
    ids = answer.prompt_ids + answer.answer_ids
    end, steps = len(answer.prompt_ids) + 1, 0
    while end < len(ids):
        steps += 1
        path = list(ids[:end])
        for _ in range(DRAFT_LENGTH):
            token = int(draft(torch.tensor([path]), use_cache=False).logits[0, -1].argmax())
            if end >= len(ids) or token != ids[end]:
                break
            path.append(token)
            end += 1
        end += 1
    return steps
