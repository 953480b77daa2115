"""Batches of token rows, in which every token has a weight in the loss."""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

_SORTED_BATCHES = 16
"""The number of batches whose rows are sorted by length."""


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids, and the weight of each in the loss of predicting it."""

    ids: Sequence[int]
    weights: Sequence[float]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows padded at their ends. The weight of padding and of a row's first token is zero.

    `rows` are the places of the rows in the text, where they are known.
    """

    ids: Tensor  # [rows, length] int64
    weights: Tensor  # [rows, length] float32
    num_tokens: int
    rows: tuple[int, ...] = ()

    def to(self, device: torch.device) -> "Batch":
        return replace(self, ids=self.ids.to(device), weights=self.weights.to(device))


class BatchSource(Protocol):
    """An endless sequence of batches, made of these rows."""

    @property
    def rows(self) -> Sequence[Row]: ...

    def __getitem__(self, index: int) -> Batch: ...


@dataclass(frozen=True, slots=True)
class ShuffledBatches:
    """An endless sequence of batches with every row once an epoch, in a seeded order.

    Rows of like length are in a batch, so that little of it is padding.
    """

    rows: Sequence[Row]
    seed: int
    num_rows: int
    pad_id: int

    def __getitem__(self, index: int) -> Batch:
        epoch, place = divmod(index, -(-len(self.rows) // self.num_rows))
        lengths = tuple(len(row.ids) for row in self.rows)
        chosen = _shuffled(self.seed, epoch, lengths, self.num_rows)[place]
        return self.batch(chosen)

    def batch(self, chosen: Sequence[int]) -> Batch:
        """The batch of these rows."""
        made = stack([self.rows[i] for i in chosen], self.pad_id)
        return replace(made, rows=tuple(chosen))

    def in_order(self) -> Iterator[Batch]:
        """Every row once, in batches."""
        for start in range(0, len(self.rows), self.num_rows):
            yield self.batch(range(start, min(start + self.num_rows, len(self.rows))))


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
def _shuffled(
    seed: int, epoch: int, lengths: tuple[int, ...], num_rows: int
) -> Sequence[Sequence[int]]:
    """The rows of each batch of an epoch."""
    rng = random.Random(f"{seed}/{epoch}")
    order = list(range(len(lengths)))
    rng.shuffle(order)
    window = _SORTED_BATCHES * num_rows
    batches = []
    for start in range(0, len(order), window):
        alike = sorted(order[start : start + window], key=lambda i: lengths[i])
        batches += [alike[i : i + num_rows] for i in range(0, len(alike), num_rows)]
    rng.shuffle(batches)
    return batches
