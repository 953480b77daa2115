"""Medusa's heads in training: independent heads, one per depth."""

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.training.batches import Batch
from specbench.training.head import Head, Labels, Projection, TargetOutputs, ahead


class ResBlock(nn.Module):
    """x + SiLU(W x + b). W starts from zero, so that a new head equals the target's."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + F.silu(self.linear(hidden))


class MedusaHeads(Head):
    """Independent heads: one residual block each, and a projection that starts as the target's.

    Source: Cai et al. 2024, "Medusa": the Medusa-1 recipe, cross entropy with the text.
    """

    file_name = "medusa_lm_head.pt"

    def __init__(self, model: PreTrainedModel, num_heads: int = 4) -> None:
        super().__init__()
        weight = model.get_output_embeddings().weight  # [vocab, hidden]
        for index in range(num_heads):
            projection = Projection(weight)
            block = ResBlock(weight.shape[1])
            self.add_module(str(index), nn.Sequential(block, projection))
        self.to(weight.device)

    def draft_logits(self, ids: Tensor, target: TargetOutputs) -> list[Tensor]:
        return [head(target.hidden) for head in self.children()]

    def labels(self, batch: Batch, target: TargetOutputs) -> Labels:
        """Return the next tokens of the text."""
        return Labels(ahead(batch.ids, 1), batch.weights)

    def config(self) -> dict[str, object]:
        return {"medusa_num_heads": len(self._modules), "medusa_num_layers": 1}
