"""The losses of the tiny language models."""

import torch.nn.functional as F
from torch import Tensor

from specbench.training.batches import Batch


def text_loss(logits: Tensor, batch: Batch) -> Tensor:  # [rows, length, vocab] -> []
    """Cross entropy of every next token of the text."""
    losses = F.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), batch.ids[:, 1:].flatten(), reduction="none"
    )
    return _weighted_mean(losses, batch)


def distillation_loss(logits: Tensor, teacher: Tensor, batch: Batch) -> Tensor:
    """KL(teacher || model) of the next-token distributions, from logits [rows, length, vocab]."""
    model = logits[:, :-1].flatten(0, 1).float().log_softmax(-1)
    truth = teacher[:, :-1].flatten(0, 1).float().log_softmax(-1)
    losses = F.kl_div(model, truth, reduction="none", log_target=True).sum(-1)
    return _weighted_mean(losses, batch)


def _weighted_mean(losses: Tensor, batch: Batch) -> Tensor:
    weights = batch.weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()
