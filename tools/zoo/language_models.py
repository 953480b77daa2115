"""The training of the target from text, and of the SpS draft model from text and the target."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.training.batches import Batch
from specbench.training.files import locked_log
from specbench.training.layer import register_attention
from specbench.training.loop import Loss, Plan, Schedule, optimizers_for, train
from specbench.training.recipe import Settings
from tools.zoo.batches import ChatBatches, chats_in_rows, distillation_loss, text_loss
from tools.zoo.held_out import LOG_SEED, held_out_dialogues
from tools.zoo.models import new_model, sps_config, target_config
from tools.zoo.text import FAMILIES

_NUM_LOGGED = 16
"""Held-out chats of a family for the log."""


TARGET = Settings(2400, length=512, seed=1, other_lr=0.004)
SPS_TEXT = Settings(500, length=512, seed=2, other_lr=0.004)
SPS_DISTILLED = Settings(200, length=512, seed=3, matrix_lr=0.01, other_lr=0.002)


def train_target(
    tokenizer: PreTrainedTokenizerFast, settings: Settings, device: str, work: Path
) -> LlamaForCausalLM:
    """Train the target on the text stream."""
    model = new_model(target_config(), settings.seed).to(device)
    fit(model, _text_loss_of(model), tokenizer, settings, work)
    return model


def train_sps(
    target: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    on_text: Settings,
    distilled: Settings,
    work: Path,
) -> LlamaForCausalLM:
    """Train the draft model on the text stream, then to predict what the target predicts."""
    model = new_model(sps_config(), on_text.seed).to(target.device)
    fit(model, _text_loss_of(model), tokenizer, on_text, work / "text")
    target = target.eval()

    def loss_of(batch: Batch) -> Tensor:
        with _mixed_precision(model.device):
            with torch.no_grad():
                teacher = target(batch.ids, use_cache=False).logits
            logits = model(batch.ids, use_cache=False).logits
        return distillation_loss(logits, teacher, batch)

    fit(model, loss_of, tokenizer, distilled, work / "distilled")
    return model


def fit(
    model: LlamaForCausalLM,
    loss_of: Loss,
    tokenizer: PreTrainedTokenizerFast,
    settings: Settings,
    work: Path,
) -> None:
    """Train the model in place; its log has the held-out text loss of every family."""
    core = tokenizer.backend_tokenizer
    batches = ChatBatches.of(core, settings)
    held_out = {
        family: chats_in_rows(core, held_out_dialogues(family, _NUM_LOGGED, LOG_SEED))
        for family in FAMILIES
    }

    @torch.no_grad()
    def evaluate() -> Mapping[str, float]:
        loss = _text_loss_of(model)
        return {family: loss(held_out[family].to(model.device)).item() for family in FAMILIES}

    if model.device.type == "cpu":
        model.set_attn_implementation(register_attention())
    optimizers = optimizers_for(
        model,
        (model.get_input_embeddings().weight, model.get_output_embeddings().weight),
        matrix_lr=settings.matrix_lr,
        other_lr=settings.other_lr,
    )
    schedule = Schedule(settings.num_steps, warmup=min(100, settings.num_steps // 10))
    with locked_log(work) as log:
        train(model, loss_of, batches, optimizers, Plan(schedule, log), evaluate)


def _mixed_precision(device: torch.device) -> torch.autocast:
    """Matrix products in bfloat16; weights, losses and optimizer states stay in float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16)


def _text_loss_of(model: LlamaForCausalLM) -> Loss:
    def loss_of(batch: Batch) -> Tensor:
        with _mixed_precision(model.device):
            logits = model(batch.ids, use_cache=False).logits
        return text_loss(logits, batch)

    return loss_of
