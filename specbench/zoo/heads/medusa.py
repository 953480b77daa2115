"""Medusa's heads in training: each guesses its own token ahead from the last hidden state alone."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.zoo.batches import Batch
from specbench.zoo.heads.head import Head, Seen, text_loss

DECAY = 0.8
"""What each head's loss weighs against that of the head before it (Medusa, section 2.2)."""


class ResBlock(nn.Module):
    """x + SiLU(W x + b), W starting from zero, so that a new head is the target's own."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class MedusaHeads(Head):
    """Independent heads: one residual block each, and a projection that starts as the target's.

    Source: Cai et al. 2024, "Medusa": the Medusa-1 recipe, cross entropy with the text.
    """

    file_name = "medusa_lm_head.pt"

    def __init__(self, model: PreTrainedModel, num_heads: int = 4) -> None:
        super().__init__()
        weight = model.get_output_embeddings().weight
        vocab, hidden = weight.shape
        for i in range(num_heads):
            projection = nn.Linear(hidden, vocab, bias=False)
            projection.weight = nn.Parameter(weight.detach().float().clone())
            self.add_module(str(i), nn.Sequential(ResBlock(hidden), projection))
        self._num_heads = num_heads
        self.to(weight.device)

    def guesses(self, ids: Tensor, seen: Seen) -> list[Tensor]:
        return [head(seen.hidden) for head in self.children()]

    def loss(self, batch: Batch, seen: Seen) -> Tensor:
        losses = [
            DECAY**depth * text_loss(logits, batch, depth)
            for depth, logits in enumerate(self.guesses(batch.ids, seen), start=1)
        ]
        return torch.stack(losses).sum()

    def projections(self) -> Iterable[nn.Linear]:
        linears = (module for module in self.modules() if isinstance(module, nn.Linear))
        return [linear for linear in linears if linear.bias is None]

    def config(self) -> dict[str, object]:
        return {"medusa_num_heads": self._num_heads, "medusa_num_layers": 1}
