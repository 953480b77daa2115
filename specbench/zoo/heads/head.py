"""What every trainable head is: guesses from what a frozen target shows, a loss, and its files.

Depth d of a head at position t guesses token t + 1 + d; the target itself knows token t + 1.
"""

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.zoo.batches import Batch


@dataclass(frozen=True, slots=True)
class Seen:
    """What the target shows of a batch: a row of each tensor for each token."""

    logits: Tensor  # [rows, length, vocab]
    hidden: Tensor  # [rows, length, hidden], behind the last norm
    layer_inputs: dict[int, Tensor] = field(default_factory=dict)  # layer -> [rows, length, hidden]


class Head(nn.Module):
    """A head in training. Its state dict has the keys of the official checkpoint format."""

    file_name: str
    """The official name of its weights."""

    layer_ids: tuple[int, ...] = ()
    """The target layers whose inputs it reads."""

    @abstractmethod
    def guesses(self, ids: Tensor, seen: Seen) -> list[Tensor]:
        """Logits of depth 1, 2, ..., each [rows, length, vocabulary of the head].

        Where a guess depends on the tokens before it, those of the text are given.
        """

    @abstractmethod
    def loss(self, batch: Batch, seen: Seen) -> Tensor:
        """What training lowers; the weights of the batch are those of the guessed tokens."""

    @abstractmethod
    def config(self) -> dict[str, object]:
        """The official config.json."""

    def projections(self) -> Iterable[nn.Linear]:
        """Its layers onto a vocabulary."""
        return ()

    def tensors(self) -> dict[str, Tensor]:
        """The official weights by name."""
        return self.state_dict()

    def token_ids(self, head_ids: Tensor) -> Tensor:
        """The target's token ids of ids in the head's vocabulary."""
        return head_ids


def ahead(values: Tensor, by: int) -> Tensor:  # [rows, length, ...] -> the same shape
    """For each position the value `by` positions later, and zero where the row has ended."""
    return torch.cat([values[:, by:], torch.zeros_like(values[:, :by])], dim=1)


def weighted_mean(values: Tensor, weights: Tensor) -> Tensor:  # [rows, length] each -> []
    """The mean over all positions with a weight; zero if none has one."""
    return (values * weights).sum() / weights.sum().clamp(min=1e-6)


def text_loss(logits: Tensor, batch: Batch, depth: int) -> Tensor:
    """Cross entropy of the guesses of one depth against the text's tokens."""
    labels = ahead(batch.ids, depth + 1)
    losses = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="none")
    return weighted_mean(losses.view_as(labels), ahead(batch.weights, depth + 1))


def soft_loss(logits: Tensor, teacher: Tensor, weights: Tensor) -> Tensor:
    """Cross entropy against the teacher's distributions; [rows, length, vocab] both."""
    losses = F.cross_entropy(
        logits.float().flatten(0, 1), teacher.float().softmax(-1).flatten(0, 1), reduction="none"
    )
    return weighted_mean(losses.view_as(weights), weights)


@torch.no_grad()
def agreement(head: Head, batch: Batch, seen: Seen) -> dict[str, float]:
    """How often the head's best guess of each depth is the target's own choice."""
    best = seen.logits.argmax(-1)
    rates = {}
    for depth, logits in enumerate(head.guesses(batch.ids, seen), start=1):
        is_same = head.token_ids(logits.argmax(-1)) == ahead(best, depth)
        weights = ahead(batch.weights, depth + 1)
        rates[f"guess_{depth}"] = weighted_mean(is_same.float(), weights).item()
    return rates
