"""Batches of token rows, in which every token has a weight in the loss."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids, and the weight of each in the loss of predicting it."""

    ids: Sequence[int]
    weights: Sequence[float]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows padded at their ends. The weight of padding and of a row's first token is zero."""

    ids: Tensor  # [rows, length] int64
    weights: Tensor  # [rows, length] float32
    num_tokens: int

    def to(self, device: torch.device) -> "Batch":
        return Batch(self.ids.to(device), self.weights.to(device), self.num_tokens)


class BatchSource(Protocol):
    """An endless sequence of batches."""

    def __getitem__(self, index: int) -> Batch: ...


@dataclass(frozen=True, slots=True)
class ShuffledBatches:
    """An endless sequence of batches with every row once an epoch, in a seeded order."""

    rows: Sequence[Row]
    seed: int
    num_rows: int
    pad_id: int

    def __getitem__(self, index: int) -> Batch:
        chosen = []
        for position in range(index * self.num_rows, (index + 1) * self.num_rows):
            epoch, i = divmod(position, len(self.rows))
            chosen.append(self.rows[_shuffled(self.seed, epoch, len(self.rows))[i]])
        return stack(chosen, self.pad_id)


def stack(rows: Sequence[Row], pad_id: int, length: int | None = None) -> Batch:
    """A batch of the rows, padded to `length` or to the longest one."""
    length = length or max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), length), pad_id)
    weights = torch.zeros(len(rows), length)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        weights[i, : len(row.ids)] = torch.tensor(row.weights)
    return Batch(ids, weights, sum(len(row.ids) for row in rows))


@lru_cache(maxsize=4)
def _shuffled(seed: int, epoch: int, count: int) -> Sequence[int]:
    order = list(range(count))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order
