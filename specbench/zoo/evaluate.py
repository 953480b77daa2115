"""Figures of the trained models on held-out text, for the zoo's README.

It measures what the models say and guess, through transformers' own generation, not how fast
they are.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.zoo.batches import pack
from specbench.zoo.checks import equations_hold, examples_pass, final_number, has_form
from specbench.zoo.heldout import held_out_dialogues
from specbench.zoo.losses import text_loss
from specbench.zoo.models import load_model
from specbench.zoo.text import FAMILIES, Dialogue
from specbench.zoo.tokenizer import EOS_ID, load_tokenizer

# Held-out text that is neither a bundled prompt nor used in the training log.
_SEED = 22
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


def evaluate(
    folder: Path, num: int, draft: Path | None = None, draft_length: int = 5
) -> dict[str, dict[str, float]]:
    """Held-out figures per family of the model in the folder.

    `eos` and `form` are rates over all answers, `right` the rate of right answers where that can
    be computed, `greedy_accept_length` the emitted tokens per target step with a draft model that
    guesses `draft_length` tokens, both greedy.
    """
    model, tokenizer = load_model(folder).eval(), load_tokenizer(folder)
    drafter = load_model(draft).eval() if draft else None
    return {
        family: _family(
            model, tokenizer, held_out_dialogues(family, num, _SEED), drafter, draft_length
        )
        for family in FAMILIES
    }


@torch.no_grad()
def _family(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    dialogues: list[Dialogue],
    drafter: LlamaForCausalLM | None,
    draft_length: int,
) -> dict[str, float]:
    batch = pack(tokenizer.backend_tokenizer, dialogues, request_weight=0.0)
    loss = text_loss(model(batch.ids, use_cache=False).logits, batch).item()
    ended, formed, right, tokens, steps, num = 0, 0, 0, 0, 0, 0
    for dialogue in dialogues:
        for answer in answers(model, tokenizer, [turn.user for turn in dialogue.turns]):
            num += 1
            ended += answer.is_ended
            formed += answer.is_ended and has_form(dialogue.family, answer.text)
            right += _is_right(dialogue, answer.text)
            tokens += len(answer.answer_ids) - 1
            if drafter:
                steps += num_steps(drafter, answer, draft_length)
    figures = {
        "loss": loss,
        "eos": ended / num,
        "form": formed / num,
        "answer_tokens": tokens / num,
    }
    if dialogues[0].family in ("gsm8k", "humaneval", "natural_questions"):
        figures["right"] = right / num
    if drafter:
        figures["greedy_accept_length"] = tokens / steps
    return {name: round(value, 3) for name, value in figures.items()}


@torch.no_grad()
def answers(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, requests: list[str]
) -> list[Answer]:
    """The model's greedy answers to the turns of one chat, each seeing the answers before it."""
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
def num_steps(drafter: LlamaForCausalLM, answer: Answer, draft_length: int) -> int:
    """Target steps to emit the answer after its first token, when a greedy draft model guesses."""
    ids = answer.prompt_ids + answer.answer_ids
    at, steps = len(answer.prompt_ids) + 1, 0
    while at < len(ids):
        steps += 1
        seen = list(ids[:at])
        for _ in range(draft_length):
            logits = drafter(torch.tensor([seen]), use_cache=False).logits
            guess = int(logits[0, -1].argmax())
            if at >= len(ids) or guess != ids[at]:
                break
            seen.append(guess)
            at += 1
        at += 1
    return steps
