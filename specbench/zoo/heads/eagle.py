"""EAGLE's draft model in training: one layer that extrapolates the target's features."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.zoo.batches import Batch
from specbench.zoo.heads.head import Head, Seen, ahead, soft_loss, weighted_mean
from specbench.zoo.heads.layer import Layer, head_fields, llama_config

NOISE = 0.1
"""Features get noise from U(-NOISE, NOISE) in training (EAGLE, section 4.2)."""

CLASSIFICATION = 0.1
"""What the cross entropy weighs against the regression of features (EAGLE, section 4.2)."""


class EagleHead(Head):
    """One decoder layer over fc([embedding of token t + 1 ; feature t]) gives feature t + 1.

    The target's embedding and head are used as they are. EAGLE-2 runs the same weights.

    Source: Li et al. 2024, "EAGLE": smooth L1 to the target's features, and cross entropy with
    its distributions.
    """

    file_name = "pytorch_model.bin"

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self._fields = head_fields(model)
        config = llama_config(self._fields)
        embedding = model.get_input_embeddings().weight.detach()
        self._frozen = (embedding, model.get_output_embeddings())
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config, config.hidden_size)])
        self.to(embedding.device)

    def outputs(self, ids: Tensor, features: Tensor) -> Tensor:
        """The extrapolated features: row t is that of position t + 1 [rows, length, hidden]."""
        tokens = F.embedding(ahead(ids, 1), self._frozen[0])
        joint = self.fc(torch.cat([tokens, features.to(tokens.dtype)], -1))
        return self.layers[0](joint, joint, [])

    def guesses(self, ids: Tensor, seen: Seen) -> list[Tensor]:
        return [self._frozen[1](self.outputs(ids, seen.hidden))]

    def loss(self, batch: Batch, seen: Seen) -> Tensor:
        outputs = self.outputs(batch.ids, noisy(seen.hidden, batch.ids))
        weights = ahead(batch.weights, 2)
        truth = ahead(seen.hidden, 1).float()
        distances = F.smooth_l1_loss(outputs.float(), truth, reduction="none").mean(-1)
        cross_entropy = soft_loss(self._frozen[1](outputs), ahead(seen.logits, 1), weights)
        return weighted_mean(distances, weights) + CLASSIFICATION * cross_entropy

    def config(self) -> dict[str, object]:
        return {**self._fields, "bias": True}

    def tensors(self) -> dict[str, Tensor]:
        return {**self.state_dict(), "embed_tokens.weight": self._frozen[0]}


def noisy(features: Tensor, ids: Tensor) -> Tensor:
    """The features with uniform noise, drawn from the batch itself: a resumed run repeats it."""
    generator = torch.Generator(features.device).manual_seed(int(ids.sum()))
    noise = torch.rand(features.shape, generator=generator, device=features.device)
    return features + (2 * noise - 1) * NOISE
