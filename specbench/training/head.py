"""The contract of a trainable head, and the losses that heads share.

Depth d of a head at position t predicts token t + 1 + d; the target itself predicts token t + 1.
"""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.training.batches import Batch

DECAY = 0.8
"""The weight of each depth's loss, relative to the depth before it (Medusa, section 2.2)."""


@dataclass(frozen=True, slots=True)
class TargetOutputs:
    """Outputs of the target for a batch. Its logits follow from its hidden states."""

    hidden: Tensor  # [rows, length, hidden], after the last norm
    layer_inputs: dict[int, Tensor]  # layer -> [rows, length, hidden]
    best: Tensor  # [rows, length] int64, the tokens that the target chooses
    projection: nn.Linear

    @property
    def logits(self) -> Tensor:  # [rows, length, vocab]
        with torch.no_grad():
            logits: Tensor = self.projection(self.hidden)
            return logits


class Head(nn.Module):
    """A head in training. Its state dict has the keys of the official checkpoint format."""

    file_name: str
    """The official name of its weights file."""

    layer_ids: tuple[int, ...] = ()
    """The target layers whose inputs it reads."""

    @abstractmethod
    def draft_logits(self, ids: Tensor, target: TargetOutputs) -> list[Tensor]:
        """Logits of depth 1, 2, ..., each [rows, length, vocabulary of the head].

        The text is the path: a depth that depends on drafted tokens is given the text's.
        """

    @abstractmethod
    def loss(self, batch: Batch, target: TargetOutputs) -> Tensor:
        """The training loss []; a prediction has the weight of the token it is about."""

    @abstractmethod
    def config(self) -> dict[str, object]:
        """The official config.json."""

    def vocab_weights(self) -> Iterable[Tensor]:
        """Its projections to a vocabulary."""
        return ()

    def tensors(self) -> dict[str, Tensor]:
        """The official weights by name."""
        return self.state_dict()

    def token_ids(self, head_ids: Tensor) -> Tensor:
        """The target's token ids for ids in the head's vocabulary."""
        return head_ids


def ahead(values: Tensor, by: int) -> Tensor:  # [rows, length, ...] -> the same shape
    """For each position the value `by` positions later, and zero past the end of the row."""
    return torch.cat([values[:, by:], torch.zeros_like(values[:, :by])], dim=1)


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:  # [rows, length] each -> []
    """The mean over all positions with a weight; zero if none has one."""
    return (values * weights).sum() / weights.sum().clamp(min=1e-6)


def text_loss(logits: Tensor, batch: Batch, depth: int) -> Tensor:
    """Cross entropy of one depth against the text's tokens."""
    labels = ahead(batch.ids, depth + 1)
    losses = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="none")
    return weighted_mean(losses.view_as(labels), ahead(batch.weights, depth + 1))


def target_loss(logits: Tensor, target_logits: Tensor, weights: Tensor, depth: int) -> Tensor:
    """Cross entropy of one depth against the target's distributions.

    Logits are [rows, length, vocab]; `weights` [rows, length] belong to the text's tokens.
    """
    labels = ahead(target_logits, depth).float().softmax(-1).flatten(0, 1)
    losses = F.cross_entropy(logits.float().flatten(0, 1), labels, reduction="none")
    return weighted_mean(losses.view_as(weights), ahead(weights, depth + 1))


def decayed_sum(losses: Iterable[Tensor], start: int = 1) -> Tensor:
    """The sum of the losses of all depths, the first one weighted DECAY ** start."""
    return torch.stack([DECAY**i * loss for i, loss in enumerate(losses, start)]).sum()


@torch.no_grad()
def agreement(head: Head, text: Iterable[tuple[Batch, TargetOutputs]]) -> dict[str, float]:
    """Rates on answers at which the head's best token is the target's, by depth.

    `mat` is the number of tokens that a step with one path of such drafts would emit.
    """
    same: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for batch, target in text:
        is_path = torch.ones_like(target.best, dtype=torch.bool)
        for depth, logits in enumerate(head.draft_logits(batch.ids, target), start=1):
            is_same = head.token_ids(logits.argmax(-1)) == ahead(target.best, depth)
            weights = ahead((batch.weights >= 1).float(), depth + 1)
            is_path &= is_same
            for name, values in ((f"guess_{depth}", is_same), (f"path_{depth}", is_path)):
                same[name] += (values * weights).sum().item()  # type: ignore[assignment]
                total[name] += weights.sum().item()  # type: ignore[assignment]
    rates = {name: same[name] / max(total[name], 1.0) for name in same}
    path = sum(rates.pop(name) for name in list(rates) if name.startswith("path"))
    return {**rates, "mat": 1 + path}
