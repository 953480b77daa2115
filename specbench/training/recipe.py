"""The training of one head: its settings, the frozen target, batches, and the files it ends in."""

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.errors import UserError
from specbench.training.batches import Batch, BatchSource, Row, ShuffledBatches
from specbench.training.eagle import Eagle3Head, EagleHead
from specbench.training.features import Features, Teacher
from specbench.training.files import write_head
from specbench.training.head import Head, agreement
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


_BY_DEPTH = {"medusa": MedusaHeads, "hydra": HydraHeads}
HEADS = (*_BY_DEPTH, "eagle", "eagle3")
"""Kinds of heads that can be trained."""


def new_head(method: str, model: PreTrainedModel, settings: Settings, batches: BatchSource) -> Head:
    """An untrained head for the target. EAGLE's may draft the frequent tokens of `batches`."""
    torch.manual_seed(settings.seed)
    if method in _BY_DEPTH:
        return _BY_DEPTH[method](model, settings.num_heads)
    vocab = model.get_output_embeddings().weight.shape[0]
    size = settings.draft_vocab or (_VOCABULARY if method == "eagle3" else vocab)
    is_part = size < vocab
    ids = frequent_tokens(batches.rows, size, vocab) if is_part else torch.arange(vocab)
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


def fit(
    head: Head,
    model: PreTrainedModel,
    settings: Settings,
    batches: BatchSource,
    held_out: ShuffledBatches,
    plan: Plan,
    out: Path,
) -> Mapping[str, float]:
    """Train the head in place, and write it to `out` at every evaluation and at the end.

    The log has the rates at which its best tokens on held-out text are the target's; the last
    rates are returned. The target's outputs are kept beside the log, so that it runs once over
    each row.

    Raises:
        UserError: the memory is full.
    """
    teacher = Teacher(model, head.layer_ids)
    kind, is_mixed = model.device.type, settings.is_mixed
    mixed = partial(torch.autocast, kind, dtype=torch.bfloat16, enabled=is_mixed)

    def kept(name: str, source: BatchSource) -> closing[Features]:
        return closing(Features(plan.log.path.with_name(name), source.rows, teacher))

    optimizers = optimizers_for(head, head.vocab_weights(), settings.matrix_lr, settings.other_lr)
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

        try:
            train(head, loss_of, batches, optimizers, plan, evaluate)
            if not last:  # a resumed training that had all its steps
                evaluate()
        except RuntimeError as error:
            if not (isinstance(error, torch.OutOfMemoryError) or "can't allocate" in str(error)):
                raise
            size = f"--rows {settings.num_rows} and --length {settings.length}"
            raise UserError(f"{size} need more memory than is free.", "Lower them.") from error
    return last
