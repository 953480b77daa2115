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


class Projection(nn.Linear):
    """A projection to a vocabulary that starts as the target's, with `weight` [vocab, hidden]."""

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
    """The target layers whose inputs it reads."""

    first_decay = 1
    """The power of DECAY that weighs the loss of depth 1."""

    @abstractmethod
    def draft_logits(self, ids: Tensor, target: TargetOutputs) -> list[Tensor]:
        """Logits of depth 1, 2, ..., each [rows, length, vocabulary of the head].

        The text is the path: a depth that depends on drafted tokens is given the text's.
        """

    @abstractmethod
    def taught(self, batch: Batch, target: TargetOutputs) -> tuple[Tensor, Tensor]:
        """The targets of depth 0 at each position, and the weights of the text's tokens.

        Either token ids [rows, length], or the target's logits [rows, length, vocabulary].
        """

    @abstractmethod
    def config(self) -> dict[str, object]:
        """The official config.json."""

    def loss(self, batch: Batch, target: TargetOutputs) -> Tensor:
        """The training loss []; a prediction has the weight of the token it is about."""
        taught = self.taught(batch, target)
        by_depth = enumerate(self.draft_logits(batch.ids, target), start=1)
        losses = (depth_loss(logits, *taught, depth) for depth, logits in by_depth)
        return decayed_sum(losses, self.first_decay)

    def vocab_weights(self) -> list[Tensor]:
        """Its projections to a vocabulary."""
        return [part.weight for part in self.modules() if isinstance(part, Projection)]

    def token_ids(self, head_ids: Tensor) -> Tensor:
        """The target's token ids for ids in the head's vocabulary."""
        return head_ids


def ahead(values: Tensor, by: int) -> Tensor:  # [rows, length, ...] -> the same shape
    """For each position the value `by` positions later, and zero past the end of the row."""
    return torch.cat([values[:, by:], torch.zeros_like(values[:, :by])], dim=1)


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:  # [rows, length] each -> []
    """The mean over all positions with a weight; zero if none has one."""
    return (values * weights).sum() / weights.sum().clamp(min=1e-6)


def depth_loss(logits: Tensor, taught: Tensor, weights: Tensor, depth: int) -> Tensor:
    """Cross entropy of one depth, whose logits are [rows, length, vocab].

    `taught` is what depth 0 should predict: the target's logits, or ids of tokens [rows, length].
    `weights` [rows, length] belong to the text's tokens.
    """
    labels = ahead(taught, depth).flatten(0, 1)
    if labels.is_floating_point():
        labels = labels.float().softmax(-1)
    losses = F.cross_entropy(logits.float().flatten(0, 1), labels, reduction="none")
    return weighted_mean(losses.view_as(weights), ahead(weights, depth + 1))


def decayed_sum(losses: Iterable[Tensor], start: int) -> Tensor:
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
