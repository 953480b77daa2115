"""Hydra's heads in training: Medusa's, each reading the tokens guessed before its own."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.zoo.batches import Batch
from specbench.zoo.heads.head import Head, Seen, ahead, soft_loss
from specbench.zoo.heads.medusa import DECAY


class FirstBlock(nn.Module):
    """res(x) + SiLU(W x + b) over [hidden ; embeddings]; res starts by passing hidden on."""

    def __init__(self, size_in: int, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size_in, size)
        self.res_connection = nn.Linear(size_in, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.eye_(self.res_connection.weight)
        nn.init.zeros_(self.res_connection.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.res_connection(x) + F.silu(self.linear(x))


class HydraHeads(Head):
    """Grounded heads of architecture `mlp`, one block each.

    Source: Ankner et al. 2024, "Hydra": heads see the text's tokens in training, and learn the
    target's distributions (the teacher loss of section 5).
    """

    file_name = "hydra_lm_head.pt"

    def __init__(self, model: PreTrainedModel, num_heads: int = 4) -> None:
        super().__init__()
        weight = model.get_output_embeddings().weight
        vocab, hidden = weight.shape
        self._embedding = (model.get_input_embeddings().weight.detach(),)  # frozen, not ours
        projections = [nn.Linear(hidden, vocab) for _ in range(num_heads)]
        for projection in projections:
            projection.weight = nn.Parameter(weight.detach().float().clone())
            nn.init.zeros_(projection.bias)
        self.hydra_mlp = nn.ModuleList(
            nn.Sequential(FirstBlock((i + 2) * hidden, hidden)) for i in range(num_heads)
        )
        self.hydra_lm_head = nn.ModuleList(projections)
        self.to(weight.device)

    def guesses(self, ids: Tensor, seen: Seen) -> list[Tensor]:
        embedded = F.embedding(ids, self._embedding[0])
        path, found = seen.hidden, []
        pairs = zip(self.hydra_mlp, self.hydra_lm_head, strict=True)
        for i, (block, projection) in enumerate(pairs):
            path = torch.cat([path, ahead(embedded, i + 1)], -1)
            found.append(projection(block(path)))
        return found

    def loss(self, batch: Batch, seen: Seen) -> Tensor:
        losses = [
            DECAY**depth
            * soft_loss(logits, ahead(seen.logits, depth), ahead(batch.weights, depth + 1))
            for depth, logits in enumerate(self.guesses(batch.ids, seen), start=1)
        ]
        return torch.stack(losses).sum()

    def projections(self) -> Iterable[nn.Linear]:
        return [module for module in self.hydra_lm_head if isinstance(module, nn.Linear)]

    def config(self) -> dict[str, object]:
        return {
            "hydra_num_heads": len(self.hydra_mlp),
            "hydra_num_layers": 1,
            "hydra_head_arch": "mlp",
            "grounded_heads": True,
            "hidden_state_offset": 0,
        }
