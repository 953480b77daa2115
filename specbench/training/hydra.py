"""Hydra's heads in training: one per depth, each of which reads the draft tokens before its own."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.training.batches import Batch
from specbench.training.head import Head, Labels, Projection, TargetOutputs, ahead


class FirstBlock(nn.Module):
    """res(x) + SiLU(W x + b) over [hidden ; embeddings]. res starts as the identity on hidden."""

    def __init__(self, input_size: int, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(input_size, size)
        self.res_connection = nn.Linear(input_size, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.eye_(self.res_connection.weight)
        nn.init.zeros_(self.res_connection.bias)

    def forward(self, path: Tensor) -> Tensor:
        return self.res_connection(path) + F.silu(self.linear(path))


class HydraHeads(Head):
    """Medusa's heads that also read the earlier draft tokens. Each has one block (`mlp`).

    Source: Ankner et al. 2024, "Hydra". In training, heads get the text's tokens, and learn the
    target's distributions (the teacher loss of section 5).
    """

    file_name = "hydra_lm_head.pt"

    def __init__(self, model: PreTrainedModel, num_heads: int = 4) -> None:
        """Make heads for this target. Their projections start as copies of its own."""
        super().__init__()
        weight = model.get_output_embeddings().weight  # [vocab, hidden]
        hidden_size = weight.shape[1]
        self._embedding = model.get_input_embeddings().weight.detach()  # not in the state dict
        projections = [Projection(weight, bias=True) for _ in range(num_heads)]
        input_sizes = [  # the hidden state, and the embeddings of `depth` tokens
            (1 + depth) * hidden_size for depth in range(1, num_heads + 1)
        ]
        blocks = [nn.Sequential(FirstBlock(size, hidden_size)) for size in input_sizes]
        self.hydra_mlp = nn.ModuleList(blocks)
        self.hydra_lm_head = nn.ModuleList(projections)
        self.to(weight.device)

    def draft_logits(self, ids: Tensor, target: TargetOutputs) -> list[Tensor]:
        """Return the logits [rows, length, vocab] of each depth, given the text's tokens so far."""
        embedded = F.embedding(ids, self._embedding)
        path = target.hidden  # [rows, length, (1 + depth) * hidden]
        logits = []
        heads = zip(self.hydra_mlp, self.hydra_lm_head, strict=True)
        for depth, (block, projection) in enumerate(heads, start=1):
            path = torch.cat([path, ahead(embedded, depth)], -1)
            logits.append(projection(block(path)))
        return logits

    def labels(self, batch: Batch, target: TargetOutputs) -> Labels:
        """Return the target's distributions."""
        return Labels(target.logits, batch.weights)

    def config(self) -> dict[str, object]:
        return {
            "hydra_num_heads": len(self.hydra_mlp),
            "hydra_num_layers": 1,
            "hydra_head_arch": "mlp",
            "grounded_heads": True,
            "hidden_state_offset": 0,
        }
