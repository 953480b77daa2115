"""Define what a trainable head has to do, and the losses that heads share.

At position t, depth d of a head predicts token t + 1 + d. The target itself predicts token t + 1.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.training.batches import Batch

NON_FINITE_HINT = (
    "Check the weights and the config.json of the model, and the text it is trained on."
)
"""The hint for NaN and infinity."""

DECAY = 0.8
"""The weight of a depth's loss relative to that of the depth before it (Medusa, section 2.2)."""


@dataclass(frozen=True, slots=True)
class TargetOutputs:
    """Outputs of the target for a batch. Logits are computed from the hidden states."""

    hidden: Tensor  # [rows, length, hidden], after the last norm
    layer_inputs: dict[int, Tensor]  # layer -> [rows, length, hidden]
    best: Tensor  # [rows, length] int64, the tokens that the target chooses
    projection: nn.Linear

    @property
    def logits(self) -> Tensor:  # [rows, length, vocab]
        with torch.no_grad():
            logits: Tensor = self.projection(self.hidden)
            return logits


class Labels(NamedTuple):
    """The predictions that depth 0 should make. Depth d should make those of d positions later."""

    targets: Tensor
    """Token ids [rows, length], or the target's logits [rows, length, vocabulary of the head]."""

    weights: Tensor
    """The weights of the text's tokens [rows, length]."""


class Projection(nn.Linear):
    """A projection to a vocabulary that starts as the target's `weight` [vocab, hidden]."""

    def __init__(self, weight: Tensor, *, bias: bool = False) -> None:
        super().__init__(weight.shape[1], weight.shape[0], bias=bias)
        self.weight = nn.Parameter(weight.detach().float().clone())
        if bias:
            nn.init.zeros_(self.bias)


class Head(nn.Module):
    """A head in training. Its state dict has the keys of the official checkpoint format."""

    file_name: str
    """The official name of its weights file."""

    layer_ids: tuple[int, ...] = ()
    """The target layers whose inputs the head reads."""

    first_decay = 1
    """The power of DECAY that weights the loss of depth 1."""

    @abstractmethod
    def draft_logits(self, ids: Tensor, target: TargetOutputs) -> list[Tensor]:
        """Return the logits of depth 1, 2, ..., each [rows, length, vocabulary of the head].

        A depth that reads drafted tokens gets the tokens of the text in their place.
        """

    @abstractmethod
    def labels(self, batch: Batch, target: TargetOutputs) -> Labels:
        """Return the predictions that depth 0 should make at each position."""

    @abstractmethod
    def config(self) -> dict[str, object]:
        """Return the official config.json."""

    def loss(self, batch: Batch, target: TargetOutputs) -> Tensor:
        """Return the training loss []. A prediction has the weight of the token it predicts."""
        labels = self.labels(batch, target)
        depths = enumerate(self.draft_logits(batch.ids, target), start=1)
        losses = (depth_loss(logits, labels, depth) for depth, logits in depths)
        return decayed_sum(losses, self.first_decay)

    def vocab_weights(self) -> list[Tensor]:
        """Return its projections to a vocabulary."""
        return [module.weight for module in self.modules() if isinstance(module, Projection)]

    def token_ids(self, head_ids: Tensor) -> Tensor:
        """Return the target's token ids for ids in the head's vocabulary."""
        return head_ids


def ahead(sequence: Tensor, by: int) -> Tensor:  # [rows, length, ...] -> the same shape
    """Shift the rows to the front by `by` positions. Positions past the end are zero."""
    return torch.cat([sequence[:, by:], torch.zeros_like(sequence[:, :by])], dim=1)


def weighted_mean(numbers: Tensor, weights: Tensor) -> Tensor:  # [rows, length] each -> []
    """Return the mean over all positions with a weight, or zero if none has a weight."""
    return (numbers * weights).sum() / weights.sum().clamp(min=1e-6)


def depth_loss(logits: Tensor, labels: Labels, depth: int) -> Tensor:
    """Return the cross entropy of one depth, whose logits are [rows, length, vocab]."""
    targets = ahead(labels.targets, depth).flatten(0, 1)
    if targets.is_floating_point():
        targets = targets.float().softmax(-1)
    losses = F.cross_entropy(logits.float().flatten(0, 1), targets, reduction="none")
    # Depth d at position t predicts token t + 1 + d, whose weight counts.
    return weighted_mean(losses.view_as(labels.weights), ahead(labels.weights, depth + 1))


def decayed_sum(losses: Iterable[Tensor], start: int) -> Tensor:
    """Return the sum of the losses of all depths. The first one is weighted by DECAY ** start."""
    return torch.stack([DECAY**power * loss for power, loss in enumerate(losses, start)]).sum()


@dataclass(slots=True)
class _DepthCounts:
    """Sums of weights over the positions at one depth."""

    same: float = 0.0
    """Positions where the head's best token is the target's choice."""

    on_path: float = 0.0
    """Positions where the two agree at this depth and at all smaller depths."""

    all: float = 0.0


@torch.no_grad()
def agreement(head: Head, text: Iterable[tuple[Batch, TargetOutputs]]) -> dict[str, float]:
    """Return, for each depth, how often head and target choose the same token of an answer.

    `mat` is the number of tokens that a step would emit with one path of such drafts.
    """
    counts: dict[int, _DepthCounts] = defaultdict(_DepthCounts)
    for batch, target in text:
        is_path = torch.ones_like(target.best, dtype=torch.bool)  # [rows, length]
        for depth, logits in enumerate(head.draft_logits(batch.ids, target), start=1):
            is_same = head.token_ids(logits.argmax(-1)) == ahead(target.best, depth)
            is_path &= is_same
            weights = ahead((batch.weights >= 1).float(), depth + 1)
            counts[depth].same += (is_same * weights).sum().item()
            counts[depth].on_path += (is_path * weights).sum().item()
            counts[depth].all += weights.sum().item()
    rates: dict[str, float] = {}
    path_rates = []
    for depth, count in counts.items():
        num_positions = max(count.all, 1.0)
        rates[f"guess_{depth}"] = count.same / num_positions
        path_rates.append(count.on_path / num_positions)
    rates["mat"] = 1 + sum(path_rates)
    return rates
