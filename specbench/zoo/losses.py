"""The losses of the zoo's models, weighted by what each token of a batch counts."""

import torch.nn.functional as F
from torch import Tensor

from specbench.zoo.batches import Batch


def text_loss(logits: Tensor, batch: Batch) -> Tensor:  # [rows, length, vocab] -> []
    """Cross entropy of every next token of the text."""
    losses = F.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), batch.ids[:, 1:].flatten(), reduction="none"
    )
    weights = batch.weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()


def distillation_loss(logits: Tensor, teacher: Tensor, batch: Batch) -> Tensor:
    """Divergence of the model's next-token distributions from the teacher's.

    `logits` and `teacher` are [rows, length, vocab]. It is KL(teacher || model), zero when equal.
    """
    model = logits[:, :-1].flatten(0, 1).float().log_softmax(-1)
    truth = teacher[:, :-1].flatten(0, 1).float().log_softmax(-1)
    losses = F.kl_div(model, truth, reduction="none", log_target=True).sum(-1)
    weights = batch.weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()
