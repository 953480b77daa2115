"""The training of one head: its settings, the frozen target, batches, and the files it ends in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.model_parts import decoder_layers
from specbench.errors import NonFiniteError
from specbench.training.batches import Batch, BatchSource
from specbench.training.eagle import Eagle3Head, EagleHead
from specbench.training.files import NO_NUMBERS, write_head
from specbench.training.head import Head, TargetOutputs, agreement
from specbench.training.layer import register_attention
from specbench.training.layouts import SAFEAILAB
from specbench.training.loop import Plan, train
from specbench.training.medusa import HydraHeads, MedusaHeads
from specbench.training.optimizers import Schedule, optimizers_for

_COUNTED_BATCHES = 50
"""The number of batches in which tokens are counted for EAGLE-3's draft vocabulary."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The choices of one training run; peak learning rates are those of Muon and of AdamW.

    A step trains on `num_rows` rows of at most `length` tokens. A request's tokens have
    `request_weight` in the loss, an answer's 1.
    """

    num_steps: int = 2000
    num_rows: int = 8
    length: int = 1024
    request_weight: float = 0.3
    seed: int = 1
    matrix_lr: float = 0.02
    other_lr: float = 0.002
    num_heads: int = 4
    num_unrolled: int = 6
    draft_vocab: int = 32_000
    layout: str = SAFEAILAB
    """The published layout that it is written in, one of `FORMATS`."""

    is_mixed: bool = True
    """Matrix products in bfloat16; weights, losses and optimizer states stay in float32."""

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.num_steps, warmup=min(50, self.num_steps // 10))


_HEADS: Mapping[str, Callable[[PreTrainedModel, Settings], Head]] = {
    "medusa": lambda model, settings: MedusaHeads(model, settings.num_heads),
    "hydra": lambda model, settings: HydraHeads(model, settings.num_heads),
    "eagle": lambda model, settings: EagleHead(model),
}
HEADS = (*_HEADS, "eagle3")
"""Kinds of heads that can be trained."""


def new_head(method: str, model: PreTrainedModel, settings: Settings, batches: BatchSource) -> Head:
    """An untrained head for the target. EAGLE-3 may draft the most frequent tokens of `batches`."""
    torch.manual_seed(settings.seed)
    if method in _HEADS:
        return _HEADS[method](model, settings)
    vocab = model.get_output_embeddings().weight.shape[0]
    ids = None
    if settings.draft_vocab < vocab:
        ids = frequent_tokens(batches, settings.draft_vocab, vocab)
    return Eagle3Head(model, ids, settings.num_unrolled)


def frequent_tokens(batches: BatchSource, size: int, vocab: int) -> Tensor:
    """The `size` tokens with most weight in the first batches, increasing. [size] int64

    Among equals the smallest id comes first.
    """
    counts = torch.zeros(vocab, dtype=torch.float64)
    for index in range(_COUNTED_BATCHES):
        batch = batches[index]
        counts += torch.bincount(batch.ids.flatten(), batch.weights.double().flatten(), vocab)
    return counts.sort(descending=True, stable=True).indices[:size].sort().values


class Teacher:
    """The frozen target that heads learn from."""

    def __init__(self, model: PreTrainedModel, layer_ids: tuple[int, ...] = ()) -> None:
        self._model = model.eval().requires_grad_(False)
        self._inputs: dict[int, Tensor] = {}
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        if model.device.type == "cpu" and heads == getattr(config, "num_key_value_heads", heads):
            model.set_attn_implementation(register_attention())
        for index in layer_ids:
            hook = partial(self._capture, index)
            decoder_layers(model)[index].register_forward_pre_hook(hook, with_kwargs=True)

    @torch.no_grad()
    def __call__(self, ids: Tensor) -> TargetOutputs:
        """Its outputs for rows of text [rows, length].

        Raises:
            NonFiniteError: they are NaN or infinite.
        """
        hidden = self._model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        logits = self._model.get_output_embeddings()(hidden)
        if not (hidden.abs().amax() + logits.amax()).isfinite():  # a logit may be -inf
            raise NonFiniteError("The target's outputs are NaN or infinite.", NO_NUMBERS)
        return TargetOutputs(logits, hidden, dict(self._inputs))

    def _capture(
        self, index: int, layer: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._inputs[index] = args[0] if args else kwargs["hidden_states"]


def fit(
    head: Head,
    model: PreTrainedModel,
    settings: Settings,
    batches: BatchSource,
    held_out: Batch,
    plan: Plan,
    out: Path,
    target: str = "",
) -> None:
    """Train the head in place, and write it to `out` at every evaluation and at the end.

    `target` is the target's folder or Hub id. The log has the rates at
    which its best tokens on held-out text are the target's.
    """
    teacher = Teacher(model, head.layer_ids)
    held_out = held_out.to(model.device)

    def mixed() -> torch.autocast:
        return torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=settings.is_mixed)

    def loss_of(batch: Batch) -> Tensor:
        with mixed():
            return head.loss(batch, teacher(batch.ids))

    def evaluate() -> Mapping[str, float]:
        write_head(head, out, settings.layout, target)
        with mixed():
            return agreement(head, held_out, teacher(held_out.ids))

    optimizers = optimizers_for(
        head, head.vocab_weights(), matrix_lr=settings.matrix_lr, other_lr=settings.other_lr
    )
    train(head, loss_of, batches, optimizers, plan, evaluate)
    write_head(head, out, settings.layout, target)
