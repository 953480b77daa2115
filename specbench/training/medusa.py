"""The heads of Medusa and Hydra in training, one for each depth."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.training.batches import Batch
from specbench.training.head import Head, Projection, TargetOutputs, ahead


class ResBlock(nn.Module):
    """x + SiLU(W x + b). W starts from zero, so that a new head equals the target's."""

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
        for i in range(num_heads):
            projection = Projection(weight)
            self.add_module(str(i), nn.Sequential(ResBlock(weight.shape[1]), projection))
        self.to(weight.device)

    def draft_logits(self, ids: Tensor, target: TargetOutputs) -> list[Tensor]:
        return [head(target.hidden) for head in self.children()]

    def taught(self, batch: Batch, target: TargetOutputs) -> tuple[Tensor, Tensor]:
        return ahead(batch.ids, 1), batch.weights

    def config(self) -> dict[str, object]:
        return {"medusa_num_heads": len(self._modules), "medusa_num_layers": 1}


class FirstBlock(nn.Module):
    """res(x) + SiLU(W x + b) over [hidden ; embeddings]; res starts as the identity on hidden."""

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
    """Medusa's heads, each also reading the tokens drafted before its own: `mlp`, one block each.

    Source: Ankner et al. 2024, "Hydra": heads are given the text's tokens in training, and learn
    the target's distributions (the teacher loss of section 5).
    """

    file_name = "hydra_lm_head.pt"

    def __init__(self, model: PreTrainedModel, num_heads: int = 4) -> None:
        super().__init__()
        weight = model.get_output_embeddings().weight
        hidden = weight.shape[1]
        self._embedding = (model.get_input_embeddings().weight.detach(),)  # not in the state dict
        projections = [Projection(weight, bias=True) for _ in range(num_heads)]
        blocks = (FirstBlock((i + 2) * hidden, hidden) for i in range(num_heads))
        self.hydra_mlp = nn.ModuleList(nn.Sequential(block) for block in blocks)
        self.hydra_lm_head = nn.ModuleList(projections)
        self.to(weight.device)

    def draft_logits(self, ids: Tensor, target: TargetOutputs) -> list[Tensor]:
        embedded = F.embedding(ids, self._embedding[0])
        path, logits = target.hidden, []
        heads = zip(self.hydra_mlp, self.hydra_lm_head, strict=True)
        for depth, (block, projection) in enumerate(heads, start=1):
            path = torch.cat([path, ahead(embedded, depth)], -1)
            logits.append(projection(block(path)))
        return logits

    def taught(self, batch: Batch, target: TargetOutputs) -> tuple[Tensor, Tensor]:
        return target.logits, batch.weights

    def config(self) -> dict[str, object]:
        return {
            "hydra_num_heads": len(self.hydra_mlp),
            "hydra_num_layers": 1,
            "hydra_head_arch": "mlp",
            "grounded_heads": True,
            "hidden_state_offset": 0,
        }
