"""The shipped models: their shape, their size, and their answers to the bundled prompts.

The shipped heads: their size, and the order of their acceptance.
"""

from pathlib import Path
from statistics import mean

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from specbench.log.store import read_run
from specbench.zoo import TINY
from tools.zoo.evaluate import answers, has_form
from tools.zoo.held_out import held_out_dialogues
from tools.zoo.text import FAMILIES

NUM_CHATS = 2


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(TINY / "target", dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(TINY / "target")


def test_all_weights_together_stay_under_32_megabytes() -> None:
    files = [path for path in TINY.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 32_000_000


def test_every_answer_ends_and_has_its_familys_form(
    target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    """The target's greedy answers to the first bundled prompts of every family."""
    for family in FAMILIES:
        for dialogue in held_out_dialogues(family, NUM_CHATS):
            users = [turn.user for turn in dialogue.turns]
            for answer in answers(target, tokenizer, users):
                assert answer.is_ended and has_form(family, answer.text), family


ROOT = Path(__file__).parents[3]


def test_the_heads_accept_in_the_papers_order() -> None:
    """In the gate's baseline, from which `make gate` lets no mean fall."""
    run = read_run(ROOT / ".ci" / "baseline")
    accepted = {
        name: mean([n for one in run.records if one.key.method == name for n in one.accept_lengths])
        for name in run.header.spec.values.methods
    }
    order = ["eagle3", "eagle2", "eagle", "hydra", "medusa"]
    assert sorted(order, key=lambda name: -accepted[name]) == order
