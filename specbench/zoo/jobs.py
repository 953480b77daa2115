"""What is trained: the target from text, and the SpS draft model from text and the target."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from specbench.zoo import attention
from specbench.zoo.batches import Batch, Batches, pack
from specbench.zoo.heldout import bundled_requests, held_out_dialogues
from specbench.zoo.losses import distillation_loss, text_loss
from specbench.zoo.models import new_model, sps_config, target_config
from specbench.zoo.optim import Schedule, optimizers_for
from specbench.zoo.text import FAMILIES
from specbench.zoo.train import Loss, Plan, train

# Held-out text for the log; other dialogues than the bundled prompts.
_LOG_SEED = 21
_NUM_LOGGED = 16


@dataclass(frozen=True, slots=True)
class Settings:
    """The choices of one training run. A step trains on `num_rows` rows of `length` tokens."""

    seed: int
    num_steps: int
    num_rows: int = 8
    length: int = 512
    matrix_lr: float = 0.02
    other_lr: float = 0.004
    warmup: int = 100
    request_weight: float = 0.3
    device: str = "cpu"


TARGET = Settings(seed=1, num_steps=2400)
SPS_TEXT = Settings(seed=2, num_steps=500)
SPS_DISTILLED = Settings(seed=3, num_steps=200, matrix_lr=0.01, other_lr=0.002)


def train_target(
    tokenizer: PreTrainedTokenizerFast, settings: Settings, work: Path
) -> LlamaForCausalLM:
    """Train the target on the text stream."""
    model = new_model(target_config(), settings.seed).to(settings.device)
    run(model, _text_loss_of(model, settings), tokenizer, settings, work)
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
    run(model, _text_loss_of(model, on_text), tokenizer, on_text, work / "text")
    target = target.to(distilled.device).eval()

    def loss_of(batch: Batch) -> Tensor:
        with mixed_precision(distilled.device):
            with torch.no_grad():
                teacher = target(batch.ids, use_cache=False).logits
            logits = model(batch.ids, use_cache=False).logits
        return distillation_loss(logits, teacher, batch)

    run(model, loss_of, tokenizer, distilled, work / "distilled")
    return model


def run(
    model: LlamaForCausalLM,
    loss_of: Loss,
    tokenizer: PreTrainedTokenizerFast,
    settings: Settings,
    work: Path,
) -> None:
    """Train the model in place; its log has the held-out text loss of every family."""
    core = tokenizer.backend_tokenizer
    batches = Batches(
        core,
        settings.seed,
        settings.num_rows,
        settings.length,
        settings.request_weight,
        bundled_requests(),
    )
    held_out = {
        family: pack(core, held_out_dialogues(family, _NUM_LOGGED, _LOG_SEED), request_weight=0.0)
        for family in FAMILIES
    }

    @torch.no_grad()
    def evaluate() -> Mapping[str, float]:
        losses = {}
        for family, batch in held_out.items():
            here = batch.to(model.device)
            with mixed_precision(settings.device):
                logits = model(here.ids, use_cache=False).logits
            losses[family] = text_loss(logits, here).item()
        return losses

    if settings.device == "cpu":
        model.set_attn_implementation(attention.register())
    plan = Plan(Schedule(settings.num_steps, min(settings.warmup, settings.num_steps // 10)), work)
    optimizers = optimizers_for(model, settings.matrix_lr, settings.other_lr)
    train(model, loss_of, batches, optimizers, plan, evaluate)


def mixed_precision(device: str) -> AbstractContextManager[None]:
    """Matrix products in bfloat16; weights, losses and optimizer states stay in float32."""
    return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)


def with_changes(settings: Settings, num_steps: int | None, device: str) -> Settings:
    """The settings for another number of steps, or another device."""
    return replace(settings, num_steps=num_steps or settings.num_steps, device=device)


def _text_loss_of(model: LlamaForCausalLM, settings: Settings) -> Loss:
    def loss_of(batch: Batch) -> Tensor:
        with mixed_precision(settings.device):
            logits = model(batch.ids, use_cache=False).logits
        return text_loss(logits, batch)

    return loss_of
