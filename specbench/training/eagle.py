"""EAGLE's head in training: one decoder layer that extrapolates the target's features."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.training.batches import Batch
from specbench.training.draft_vocabulary import VocabularyHead
from specbench.training.head import TargetOutputs, ahead, depth_loss, weighted_mean
from specbench.training.llama_layer import Layer, layer_config

NOISE = 0.1
"""In training, noise from U(-NOISE, NOISE) is added to features (EAGLE, section 4.2)."""

CLASSIFICATION = 0.1
"""Weight of the cross entropy relative to that of the feature regression (EAGLE, section 4.2)."""


class EagleHead(VocabularyHead):
    """One decoder layer over fc([embedding of token t + 1 ; feature t]), which gives feature t + 1.

    The target's embedding and head are used as they are. EAGLE-2 runs the same weights.

    Source: Li et al. 2024, "EAGLE": smooth L1 to the target's features, and cross entropy with
    its distributions.
    """

    def __init__(self, model: PreTrainedModel, draft_ids: Tensor) -> None:
        super().__init__(model, draft_ids)
        config = layer_config(self._fields)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config, config.hidden_size)])
        self.to(self._embedding.device)

    def features(self, ids: Tensor, features: Tensor) -> Tensor:
        """Extrapolate the features [rows, length, hidden]. Entry t of a row: position t + 1."""
        next_ids = ahead(ids, 1)
        embedded = F.embedding(next_ids, self._embedding)  # [rows, length, hidden]
        features = features.to(embedded.dtype)
        pairs = torch.cat([embedded, features], -1)  # [rows, length, 2 * hidden]
        joint = self.fc(pairs)
        return self.layers[0](joint, joint, [])

    def draft_logits(self, ids: Tensor, target: TargetOutputs) -> list[Tensor]:
        return [self._logits(self.features(ids, target.hidden))]

    def _logits(self, features: Tensor) -> Tensor:
        return F.linear(features, *self.projection())  # [rows, length, draft vocab]

    def loss(self, batch: Batch, target: TargetOutputs) -> Tensor:
        """Return the regression to the target's next features plus a share of cross entropy []."""
        seed = int(batch.ids.sum())
        noisy_features = add_noise(target.hidden, seed)
        features = self.features(batch.ids, noisy_features)
        expected = ahead(target.hidden, 1).float()
        distances = F.smooth_l1_loss(features.float(), expected, reduction="none")
        feature_weights = ahead(batch.weights, 2)  # of token t + 2, which feature t + 1 predicts
        regression = weighted_mean(distances.mean(-1), feature_weights)
        logits = self._logits(features)
        labels = self.labels(batch, target)
        cross_entropy = depth_loss(logits, labels, depth=1)
        return regression + CLASSIFICATION * cross_entropy

    def config(self) -> dict[str, object]:
        fields = {**self._fields, "bias": True}
        if len(self.d2t) < len(self.t2d):
            fields["draft_vocab_size"] = len(self.d2t)
        return fields


def add_noise(features: Tensor, seed: int) -> Tensor:
    """Add uniform noise to features. The noise has a seed, so that a resumed run repeats it."""
    generator = torch.Generator(features.device).manual_seed(seed)
    uniform = torch.rand(features.shape, generator=generator, device=features.device)
    noise = (2 * uniform - 1) * NOISE  # from U(-NOISE, NOISE)
    return features + noise
