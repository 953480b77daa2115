"""The training of one head: its settings, the frozen target, batches, and the files it ends in."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.layers.torch_attention import attention_kinds
from specbench.engine.model_parts import decoder_layers
from specbench.errors import NonFiniteError
from specbench.training.batches import Batch, Row, RowSource, ShuffledBatches
from specbench.training.eagle import Eagle3Head, EagleHead
from specbench.training.features import Features
from specbench.training.files import NO_NUMBERS, write_head
from specbench.training.head import Head, TargetOutputs, agreement
from specbench.training.layer import register_attention
from specbench.training.loop import Plan, Schedule, optimizers_for, train
from specbench.training.medusa import HydraHeads, MedusaHeads

_VOCABULARY = 32_000
_DECAY = 0.5
"""Share of the steps in which the learning rate falls; before, a run may get more steps."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one training run, with the peak learning rates of Muon and of AdamW.

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
    draft_vocab: int | None = None
    """Most frequent tokens that EAGLE's heads draft; None: 32,000 for EAGLE-3, else all."""

    num_tokens: int = 1_000_000
    """Tokens of answers that the target writes, where it writes the text."""

    openings: list[str] | None = None
    """Beginnings of the requests that the target writes; None: it writes them whole."""

    is_mixed: bool = True
    """Matrix products in bfloat16; weights, losses and optimizer states stay in float32."""

    @property
    def schedule(self) -> Schedule:
        warmup = min(50, self.num_steps // 10)
        return Schedule(self.num_steps, warmup=warmup, decay=_DECAY)


_HEADS: Mapping[str, Callable[[PreTrainedModel, Settings], Head]] = {
    "medusa": lambda model, settings: MedusaHeads(model, settings.num_heads),
    "hydra": lambda model, settings: HydraHeads(model, settings.num_heads),
}
HEADS = (*_HEADS, "eagle", "eagle3")
"""Kinds of heads that can be trained."""


def new_head(method: str, model: PreTrainedModel, settings: Settings, batches: RowSource) -> Head:
    """An untrained head for the target. EAGLE's may draft the frequent tokens of `batches`."""
    torch.manual_seed(settings.seed)
    if method in _HEADS:
        return _HEADS[method](model, settings)
    vocab = model.get_output_embeddings().weight.shape[0]
    size = settings.draft_vocab or (_VOCABULARY if method == "eagle3" else vocab)
    ids = frequent_tokens(batches.rows, size, vocab) if size < vocab else None
    if method == "eagle":
        return EagleHead(model, ids)
    return Eagle3Head(model, ids, settings.num_unrolled)


def frequent_tokens(rows: Iterable[Row], size: int, vocab: int) -> Tensor:
    """The `size` tokens with most weight, increasing. [size] int64

    Among equals the smallest id comes first.
    """
    counts = torch.zeros(vocab, dtype=torch.float64)
    for row in rows:
        weights = torch.tensor(row.weights, dtype=torch.float64)
        counts += torch.bincount(torch.tensor(row.ids), weights, vocab)
    return counts.sort(descending=True, stable=True).indices[:size].sort().values


class Teacher:
    """The frozen target that heads learn from."""

    def __init__(self, model: PreTrainedModel, layer_ids: tuple[int, ...] = ()) -> None:
        self._model = model.eval().requires_grad_(False)
        self._inputs: dict[int, Tensor] = {}
        config = model.config.get_text_config()
        heads, has_windows = config.num_attention_heads, any(attention_kinds(config).values())
        is_plain = heads == getattr(config, "num_key_value_heads", heads) and not has_windows
        if model.device.type == "cpu" and is_plain:
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
        head = self._model.get_output_embeddings()
        top = head(hidden).max(-1)
        if not (hidden.abs().amax() + top.values.amax()).isfinite():  # a logit may be -inf
            raise NonFiniteError("The target's outputs are NaN or infinite.", NO_NUMBERS)
        return TargetOutputs(hidden, dict(self._inputs), top.indices, head)

    def _capture(
        self, index: int, layer: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._inputs[index] = args[0] if args else kwargs["hidden_states"]


def fit(
    head: Head,
    model: PreTrainedModel,
    settings: Settings,
    batches: RowSource,
    held_out: ShuffledBatches,
    plan: Plan,
    out: Path,
    target: str = "",
) -> Mapping[str, float]:
    """Train the head in place, and write it to `out` at every evaluation and at the end.

    `target` is the target's folder or Hub id. The log has the rates at which
    its best tokens on held-out text are the target's; the last rates are returned. The
    target's outputs are kept beside the log, so that it runs once over each row.
    """
    teacher = Teacher(model, head.layer_ids)
    work = plan.log.path.parent

    def mixed() -> torch.autocast:
        return torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=settings.is_mixed)

    def kept(name: str, source: RowSource) -> closing[Features]:
        return closing(Features(work / name, source.rows, teacher, model, head.layer_ids))

    optimizers = optimizers_for(
        head, head.vocab_weights(), matrix_lr=settings.matrix_lr, other_lr=settings.other_lr
    )
    last: dict[str, float] = {}
    with kept("features.bin", batches) as features, kept("held_out.bin", held_out) as tested:

        def loss_of(batch: Batch) -> Tensor:
            with mixed():
                return head.loss(batch, features(batch))

        def evaluate() -> Mapping[str, float]:
            write_head(head, out)
            text = (batch.to(model.device) for batch in held_out.in_order())
            with mixed():
                last.update(agreement(head, ((batch, tested(batch)) for batch in text)))
            return last

        train(head, loss_of, batches, optimizers, plan, evaluate)
        if not last:  # a resumed training that had all its steps
            evaluate()
    write_head(head, out)
    return last
