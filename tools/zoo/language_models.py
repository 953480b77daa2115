"""The training of the target from text, and of the SpS draft model from text and the target."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.training.batches import Batch
from specbench.training.files import locked_log
from specbench.training.layer import register_attention
from specbench.training.loop import Loss, Plan, Schedule, optimizers_for, train
from tools.zoo.batches import ChatBatches, chats_in_rows, distillation_loss, text_loss
from tools.zoo.held_out import LOG_SEED, bundled_requests, held_out_dialogues
from tools.zoo.models import new_model, sps_config, target_config
from tools.zoo.text import FAMILIES

_NUM_LOGGED = 16
"""Held-out chats of a family for the log."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The choices of one training run. A step trains on `num_rows` rows of `length` tokens."""

    seed: int
    num_steps: int
    num_rows: int = 8
    length: int = 512
    matrix_lr: float = 0.02
    other_lr: float = 0.004
    request_weight: float = 0.3
    device: str = "cpu"

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.num_steps, warmup=min(100, self.num_steps // 10))


TARGET = Settings(seed=1, num_steps=2400)
SPS_TEXT = Settings(seed=2, num_steps=500)
SPS_DISTILLED = Settings(seed=3, num_steps=200, matrix_lr=0.01, other_lr=0.002)


def train_target(
    tokenizer: PreTrainedTokenizerFast, settings: Settings, work: Path
) -> LlamaForCausalLM:
    """Train the target on the text stream."""
    model = new_model(target_config(), settings.seed).to(settings.device)
    fit(model, _text_loss_of(model, settings), tokenizer, settings, work)
    return model


def train_sps(
    target: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    on_text: Settings,
    distilled: Settings,
    work: Path,
) -> LlamaForCausalLM:
    """Train the draft model on the text stream, then to predict what the target predicts."""
    model = new_model(sps_config(), on_text.seed).to(on_text.device)
    fit(model, _text_loss_of(model, on_text), tokenizer, on_text, work / "text")
    target = target.to(distilled.device).eval()

    def loss_of(batch: Batch) -> Tensor:
        with _mixed_precision(distilled.device):
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
    batches = ChatBatches(
        core=core,
        seed=settings.seed,
        num_rows=settings.num_rows,
        length=settings.length,
        request_weight=settings.request_weight,
        held_out=bundled_requests(),
    )
    held_out = {
        family: chats_in_rows(core, held_out_dialogues(family, _NUM_LOGGED, LOG_SEED))
        for family in FAMILIES
    }

    @torch.no_grad()
    def evaluate() -> Mapping[str, float]:
        loss = _text_loss_of(model, settings)
        return {family: loss(held_out[family].to(model.device)).item() for family in FAMILIES}

    if settings.device == "cpu":
        model.set_attn_implementation(register_attention())
    optimizers = optimizers_for(
        model,
        (model.get_input_embeddings().weight, model.get_output_embeddings().weight),
        matrix_lr=settings.matrix_lr,
        other_lr=settings.other_lr,
    )
    with locked_log(work) as log:
        train(model, loss_of, batches, optimizers, Plan(settings.schedule, log), evaluate)


def _mixed_precision(device: str) -> torch.autocast:
    """Matrix products in bfloat16; weights, losses and optimizer states stay in float32."""
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)


def _text_loss_of(model: LlamaForCausalLM, settings: Settings) -> Loss:
    def loss_of(batch: Batch) -> Tensor:
        with _mixed_precision(settings.device):
            logits = model(batch.ids, use_cache=False).logits
        return text_loss(logits, batch)

    return loss_of
