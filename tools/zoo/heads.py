"""The training of the heads of tiny, each with its own settings and stretch of the text stream."""

from pathlib import Path

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.training.batches import ShuffledBatches
from specbench.training.loop import Plan, locked_log
from specbench.training.recipe import Settings, fit, new_head
from tools.zoo.batches import ChatBatches, held_out_rows
from tools.zoo.held_out import LOG_SEED
from tools.zoo.text import FAMILIES
from tools.zoo.tokenizer import EOS_ID

SETTINGS = {
    "medusa": Settings(300, num_rows=4, length=512, seed=11, matrix_lr=0.04, other_lr=0.03),
    "hydra": Settings(360, num_rows=4, length=512, seed=12, matrix_lr=0.04, other_lr=0.03),
    "eagle": Settings(500, num_rows=8, length=512, seed=13, matrix_lr=0.06, other_lr=0.004),
    "eagle3": Settings(
        1500, num_rows=4, length=512, seed=14, matrix_lr=0.1, other_lr=0.015, num_unrolled=5,
        draft_vocab=1536,
    ),
}  # fmt: skip
"""By method. The seeds are of no other model of the zoo."""

_NUM_LOGGED = 4
"""Held-out chats of a family for the log."""


def train_tiny_head(
    method: str,
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    settings: Settings,
    out: Path,
    work: Path,
) -> None:
    """Train the method's head for the tiny target and write it to `out`."""
    core = tokenizer.backend_tokenizer
    batches = ChatBatches(core, settings)
    head = new_head(method, model, settings, batches)
    rows = [row for name in FAMILIES for row in held_out_rows(core, name, _NUM_LOGGED, LOG_SEED)]
    held_out = ShuffledBatches(rows, settings.seed, len(rows), EOS_ID)
    with locked_log(work) as log:
        fit(head, model, settings, batches, held_out, Plan(settings.schedule, log), out)
