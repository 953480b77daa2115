"""Train one head: make its initial weights, fit it to the target, and write its files."""

from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.errors import UserError
from specbench.training.batches import Batch, BatchSource, Row, ShuffledBatches
from specbench.training.eagle import EagleHead
from specbench.training.eagle3 import Eagle3Head
from specbench.training.head import Head, agreement
from specbench.training.head_files import write_head
from specbench.training.hydra import HydraHeads
from specbench.training.loop import TrainingPlan, train
from specbench.training.medusa import MedusaHeads
from specbench.training.optimizers import optimizers_for
from specbench.training.options import TrainingOptions
from specbench.training.teacher import Features, Teacher

_EAGLE3_VOCABULARY = 32_000
_BY_DEPTH = {"medusa": MedusaHeads, "hydra": HydraHeads}
"""Methods that have one head per depth."""
HEADS = (*_BY_DEPTH, "eagle", "eagle3")
"""The kinds of heads that can be trained."""


def new_head(
    method: str, model: PreTrainedModel, options: TrainingOptions, batches: BatchSource
) -> Head:
    """Make an untrained head. EAGLE's may draft only the most frequent tokens of `batches`."""
    torch.manual_seed(options.seed)
    if method in _BY_DEPTH:
        return _BY_DEPTH[method](model, options.num_heads)
    vocab_size = model.get_output_embeddings().weight.shape[0]
    default_size = _EAGLE3_VOCABULARY if method == "eagle3" else vocab_size
    draft_size = options.draft_vocab or default_size
    draft_ids = torch.arange(vocab_size)
    if draft_size < vocab_size:
        draft_ids = frequent_tokens(batches.rows, draft_size, vocab_size)
    if method == "eagle":
        return EagleHead(model, draft_ids)
    return Eagle3Head(model, draft_ids, options.num_unrolled)


def frequent_tokens(rows: Iterable[Row], size: int, vocab_size: int) -> Tensor:
    """Return the int64 ids [size] of the tokens with the largest weights, in ascending order.

    Among tokens of equal weight, smaller ids come first.
    """
    counts = torch.zeros(vocab_size, dtype=torch.float64)
    for row in rows:
        weights = torch.tensor(row.weights, dtype=torch.float64)
        counts += torch.bincount(torch.tensor(row.ids), weights, vocab_size)
    by_weight = counts.sort(descending=True, stable=True).indices
    return by_weight[:size].sort().values


def fit(
    head: Head,
    model: PreTrainedModel,
    options: TrainingOptions,
    batches: BatchSource,
    held_out: ShuffledBatches,
    plan: TrainingPlan,
    out: Path,
) -> Mapping[str, float]:
    """Train the head in place, and write it to `out` at every evaluation and at the end.

    The log says how often its best tokens on held-out text are the target's. The last of these
    rates are returned. The target's outputs are stored beside the log, so the target runs only
    once over each row.

    Raises:
        UserError: the memory is full.
    """
    teacher = Teacher(model, head.layer_ids)
    mixed = partial(
        torch.autocast, model.device.type, dtype=torch.bfloat16, enabled=options.is_mixed
    )

    def stored(name: str, source: BatchSource) -> closing[Features]:
        return closing(Features(plan.log.path.with_name(name), source.rows, teacher))

    optimizers = optimizers_for(head, head.vocab_weights(), options.matrix_lr, options.other_lr)
    last_rates: dict[str, float] = {}
    with (
        stored("features.bin", batches) as features,
        stored("held_out.bin", held_out) as held_out_features,
    ):

        def loss_of(batch: Batch) -> Tensor:
            with mixed():
                return head.loss(batch, features(batch))

        def evaluate() -> Mapping[str, float]:
            write_head(head, out)
            held_out_batches = (batch.to(model.device) for batch in held_out.in_order())
            with mixed():
                with_outputs = ((batch, held_out_features(batch)) for batch in held_out_batches)
                last_rates.update(agreement(head, with_outputs))
            return last_rates

        try:
            train(head, loss_of, batches, optimizers, plan, evaluate)
            if not last_rates:  # a resumed training had no steps left
                evaluate()
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            sizes = f"--rows {options.num_rows} and --length {options.length}"
            raise UserError(f"{sizes} need more memory than is free.", "Lower them.") from error
    return last_rates


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate" in str(error)
