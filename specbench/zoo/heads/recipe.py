"""How a head is trained: the frozen target, batches, the zoo's loop, and the files at the end."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.zoo.batches import Batch, BatchSource
from specbench.zoo.heads.eagle import EagleHead
from specbench.zoo.heads.eagle3 import Eagle3Head
from specbench.zoo.heads.files import write_head
from specbench.zoo.heads.head import Head, agreement
from specbench.zoo.heads.hydra import HydraHeads
from specbench.zoo.heads.medusa import MedusaHeads
from specbench.zoo.heads.teacher import Teacher
from specbench.zoo.optim import Muon, Optimizers
from specbench.zoo.train import Plan, train

METHODS = ("medusa", "hydra", "eagle", "eagle3")
"""The methods with a head of their own. EAGLE-2 runs EAGLE's."""

_COUNTED_BATCHES = 50
"""So many batches tell which tokens are frequent."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The choices of one training run; peak learning rates are those of Muon and of AdamW."""

    num_steps: int
    num_rows: int = 8
    matrix_lr: float = 0.02
    other_lr: float = 0.002
    warmup: int = 50
    num_heads: int = 4
    num_unrolled: int = 6
    draft_vocab: int = 32_000
    is_mixed: bool = True
    """Matrix products in bfloat16; weights, losses and optimizer states stay in float32."""


def new_head(method: str, model: PreTrainedModel, recipe: Recipe, batches: BatchSource) -> Head:
    """An untrained head for the target. The batches tell which tokens EAGLE-3 may draft."""
    if method == "medusa":
        return MedusaHeads(model, recipe.num_heads)
    if method == "hydra":
        return HydraHeads(model, recipe.num_heads)
    if method == "eagle":
        return EagleHead(model)
    vocab = model.get_output_embeddings().weight.shape[0]
    ids = None
    if recipe.draft_vocab < vocab:
        ids = frequent_tokens(batches, recipe.draft_vocab, vocab)
    return Eagle3Head(model, ids, recipe.num_unrolled)


def frequent_tokens(batches: BatchSource, size: int, vocab: int) -> Tensor:
    """The `size` tokens that weigh most in the first batches, increasing. [size] int64

    Among equals the smallest id comes first.
    """
    counts = torch.zeros(vocab, dtype=torch.float64)
    for index in range(_COUNTED_BATCHES):
        batch = batches[index]
        counts += torch.bincount(batch.ids.flatten(), batch.weights.double().flatten(), vocab)
    return counts.sort(descending=True, stable=True).indices[:size].sort().values


def optimizers_for(head: Head, recipe: Recipe) -> Optimizers:
    """Muon for inner matrices, AdamW for projections to a vocabulary, norms and biases."""
    projections = {id(module.weight) for module in head.projections()}
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in head.parameters():
        is_inner = parameter.ndim == 2 and id(parameter) not in projections
        (matrices if is_inner else others).append(parameter)
    return Optimizers(
        (
            Muon(matrices, lr=recipe.matrix_lr, weight_decay=0.01),
            torch.optim.AdamW(others, lr=recipe.other_lr, betas=(0.9, 0.98), weight_decay=0.0),
        ),
        (recipe.matrix_lr, recipe.other_lr),
    )


def run(
    head: Head,
    model: PreTrainedModel,
    recipe: Recipe,
    batches: BatchSource,
    held_out: Mapping[str, Batch],
    plan: Plan,
    out: Path,
) -> None:
    """Train the head in place, and write it to `out` at every evaluation and at the end.

    The log has the rates at which its guesses on held-out text are the target's own choices.
    """
    teacher = Teacher(model, head.layer_ids)
    device = model.device

    def mixed() -> torch.autocast:
        return torch.autocast(device.type, dtype=torch.bfloat16, enabled=recipe.is_mixed)

    def loss_of(batch: Batch) -> Tensor:
        with mixed():
            return head.loss(batch, teacher(batch.ids))

    def evaluate() -> Mapping[str, float]:
        rates: dict[str, float] = {}
        for name, batch in held_out.items():
            here = batch.to(device)
            with mixed(), torch.no_grad():
                found = agreement(head, here, teacher(here.ids))
            rates |= {f"{name}/{depth}": rate for depth, rate in found.items()}
        write_head(head, out)
        return rates

    train(head, loss_of, batches, optimizers_for(head, recipe), plan, evaluate)
    write_head(head, out)
