"""Train the target on text, and the SpS draft model on text and then on the target's outputs."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.training.batches import Batch, stack
from specbench.training.chain_attention import BLOCKS
from specbench.training.head import Labels, ahead, depth_loss
from specbench.training.loop import Loss, TrainingPlan, train
from specbench.training.optimizers import Schedule, optimizers_for
from specbench.training.options import TrainingOptions
from specbench.training.work_folder import locked_log
from tools.zoo.batches import ChatBatches, held_out_rows
from tools.zoo.held_out import LOG_SEED
from tools.zoo.models import new_model
from tools.zoo.text import FAMILIES
from tools.zoo.tokenizer import EOS_ID

_NUM_LOGGED = 16
"""Number of held-out chats per family that the log's figures use."""

TARGET = TrainingOptions(2400, length=512, seed=1, other_lr=0.004)
SPS_TEXT = TrainingOptions(500, length=512, seed=2, other_lr=0.004)
SPS_DISTILLED = TrainingOptions(200, length=512, seed=3, matrix_lr=0.01, other_lr=0.002)


def train_target(
    tokenizer: PreTrainedTokenizerFast, options: TrainingOptions, device: str, work: Path
) -> LlamaForCausalLM:
    """Train the target on the text stream."""
    model = new_model("target", options.seed).to(device)
    fit(model, partial(_text_loss, model), tokenizer, options, work)
    return model


def train_sps(
    target: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    on_text: TrainingOptions,
    distilled: TrainingOptions,
    work: Path,
) -> LlamaForCausalLM:
    """Train the draft model on the text stream, then to predict what the target predicts."""
    model = new_model("sps", on_text.seed).to(target.device)
    fit(model, partial(_text_loss, model), tokenizer, on_text, work / "text")
    target = target.eval()

    def loss_of(batch: Batch) -> Tensor:
        with torch.no_grad():
            teacher = _logits(target, batch)
        return depth_loss(_logits(model, batch), Labels(teacher, batch.weights), 0)

    fit(model, loss_of, tokenizer, distilled, work / "distilled")
    return model


def fit(
    model: LlamaForCausalLM,
    loss_of: Loss,
    tokenizer: PreTrainedTokenizerFast,
    options: TrainingOptions,
    work: Path,
) -> None:
    """Train the model in place. The log has the loss on held-out text of every family."""
    core = tokenizer.backend_tokenizer
    rows = {name: held_out_rows(core, name, _NUM_LOGGED, LOG_SEED) for name in FAMILIES}
    held_out = {name: stack(of_name, EOS_ID).to(model.device) for name, of_name in rows.items()}

    @torch.no_grad()
    def evaluate() -> Mapping[str, float]:
        return {name: _text_loss(model, batch).item() for name, batch in held_out.items()}

    if model.device.type == "cpu":
        model.set_attn_implementation(BLOCKS)
    vocab_weights = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    optimizers = optimizers_for(model, vocab_weights, options.matrix_lr, options.other_lr)
    schedule = Schedule(options.num_steps, warmup=min(100, options.num_steps // 10))
    with locked_log(work) as log:
        plan = TrainingPlan(schedule, log)
        train(model, loss_of, ChatBatches(core, options), optimizers, plan, evaluate)


def _logits(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Return logits of a batch. Matrix products are in bfloat16, everything else in float32."""
    with torch.autocast(model.device.type, dtype=torch.bfloat16):
        logits: Tensor = model(batch.ids, use_cache=False).logits
    return logits


def _text_loss(model: LlamaForCausalLM, batch: Batch) -> Tensor:
    """Return the cross entropy of every next token of the text."""
    labels = Labels(ahead(batch.ids, 1), batch.weights)
    return depth_loss(_logits(model, batch), labels, 0)
