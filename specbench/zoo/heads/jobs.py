"""The heads of the tiny target: what each is trained with, on the zoo's text stream."""

from dataclasses import replace
from pathlib import Path

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.zoo.batches import Batches, pack
from specbench.zoo.heads.head import Head
from specbench.zoo.heads.recipe import Recipe, new_head, run
from specbench.zoo.heldout import bundled_requests, held_out_dialogues
from specbench.zoo.optim import Schedule
from specbench.zoo.text import FAMILIES
from specbench.zoo.train import Plan

RECIPES = {
    "medusa": Recipe(num_steps=300, num_rows=4, matrix_lr=0.04, other_lr=0.03),
    "hydra": Recipe(num_steps=360, num_rows=4, matrix_lr=0.04, other_lr=0.03),
    "eagle": Recipe(num_steps=500, num_rows=8, matrix_lr=0.06, other_lr=0.004),
    "eagle3": Recipe(
        num_steps=1500, num_rows=4, matrix_lr=0.1, other_lr=0.015, num_unrolled=5, draft_vocab=1536
    ),
}
SEEDS = {"medusa": 11, "hydra": 12, "eagle": 13, "eagle3": 14}
"""Stretches of the text stream that no other model of the zoo is trained on."""

_LENGTH, _REQUEST_WEIGHT = 512, 0.3
_LOG_SEED, _NUM_LOGGED = 21, 4


def train_tiny_head(
    method: str,
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    out: Path,
    work: Path,
    num_steps: int | None = None,
) -> Head:
    """Train the method's head for the tiny target and write it to `out`."""
    recipe = RECIPES[method]
    recipe = replace(recipe, num_steps=num_steps or recipe.num_steps)
    core = tokenizer.backend_tokenizer
    held_out = {
        "all": pack(
            core,
            [
                dialogue
                for family in FAMILIES
                for dialogue in held_out_dialogues(family, _NUM_LOGGED, _LOG_SEED)
            ],
            request_weight=0.0,
        )
    }
    batches = Batches(
        core, SEEDS[method], recipe.num_rows, _LENGTH, _REQUEST_WEIGHT, bundled_requests()
    )
    torch.manual_seed(SEEDS[method])
    head = new_head(method, model, recipe, batches)
    schedule = Schedule(recipe.num_steps, min(recipe.warmup, recipe.num_steps // 10))
    plan = Plan(schedule, work, evaluate_every=100, save_every=100)
    run(head, model, recipe, batches, held_out, plan, out)
    return head
