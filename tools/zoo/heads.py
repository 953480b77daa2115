"""Train the heads of tiny, each with different options and on another part of the text stream."""

from pathlib import Path

from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.training.batches import ShuffledBatches
from specbench.training.loop import TrainingPlan
from specbench.training.options import TrainingOptions
from specbench.training.recipe import fit, new_head
from specbench.training.work_folder import locked_log
from tools.zoo.batches import ChatBatches, held_out_rows
from tools.zoo.held_out import LOG_SEED
from tools.zoo.text import FAMILIES
from tools.zoo.tokenizer import EOS_ID

OPTIONS = {
    "medusa": TrainingOptions(300, num_rows=4, length=512, seed=11, matrix_lr=0.04, other_lr=0.03),
    "hydra": TrainingOptions(360, num_rows=4, length=512, seed=12, matrix_lr=0.04, other_lr=0.03),
    "eagle": TrainingOptions(500, num_rows=8, length=512, seed=13, matrix_lr=0.06, other_lr=0.004),
    "eagle3": TrainingOptions(
        1500, num_rows=4, length=512, seed=14, matrix_lr=0.1, other_lr=0.015, num_unrolled=5,
        draft_vocab=1536,
    ),
}  # fmt: skip
"""Options of each method. No other model of the zoo has these seeds."""

_NUM_LOGGED = 4
"""Number of held-out chats per family that the log's figures use."""


def train_tiny_head(
    method: str,
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    options: TrainingOptions,
    out: Path,
    work: Path,
) -> None:
    """Train the method's head for the tiny target and write it to `out`."""
    core = tokenizer.backend_tokenizer
    batches = ChatBatches(core, options)
    head = new_head(method, model, options, batches)
    rows = [row for name in FAMILIES for row in held_out_rows(core, name, _NUM_LOGGED, LOG_SEED)]
    held_out = ShuffledBatches(rows, options.seed, len(rows), EOS_ID)
    with locked_log(work) as log:
        fit(head, model, options, batches, held_out, TrainingPlan(options.schedule, log), out)
