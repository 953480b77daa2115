"""Make batches of token rows in which every token has a weight in the loss."""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

_SORTED_BATCHES = 16
"""Number of batches whose rows are sorted by length together."""


@dataclass(frozen=True, slots=True)
class Row:
    """Token ids, each with its weight in the loss of predicting it."""

    ids: Sequence[int]
    weights: Sequence[float]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that are padded at their ends. Padding and a row's first token have the weight zero."""

    ids: Tensor  # [rows, length] int64
    weights: Tensor  # [rows, length] float32
    num_tokens: int
    rows: tuple[int, ...] = ()  # numbers of the rows in the source, if known

    def to(self, device: torch.device) -> "Batch":
        return replace(self, ids=self.ids.to(device), weights=self.weights.to(device))


class BatchSource(Protocol):
    """An endless sequence of batches that are made of `rows`."""

    @property
    def rows(self) -> Sequence[Row]: ...

    def __getitem__(self, index: int) -> Batch: ...


@dataclass(frozen=True, slots=True)
class ShuffledBatches:
    """An endless sequence of batches with every row once per epoch, in a seeded order.

    The rows of a batch have similar lengths, so they need little padding.
    """

    rows: Sequence[Row]
    seed: int
    num_rows: int
    pad_id: int

    def __getitem__(self, index: int) -> Batch:
        num_batches = math.ceil(len(self.rows) / self.num_rows)
        epoch, index_in_epoch = divmod(index, num_batches)
        lengths = tuple(len(row.ids) for row in self.rows)
        batches = _shuffled(self.seed, epoch, lengths, self.num_rows)
        return self.batch(batches[index_in_epoch])

    def batch(self, row_numbers: Sequence[int]) -> Batch:
        """Return a batch of the rows with these numbers."""
        batch = stack([self.rows[number] for number in row_numbers], self.pad_id)
        return replace(batch, rows=tuple(row_numbers))

    def in_order(self) -> Iterator[Batch]:
        """Yield every row once, in batches."""
        row_numbers = range(len(self.rows))
        for start in range(0, len(self.rows), self.num_rows):
            yield self.batch(row_numbers[start : start + self.num_rows])


def stack(rows: Sequence[Row], pad_id: int, length: int | None = None) -> Batch:
    """Return a batch of the rows, padded to `length` or to the longest row."""
    length = length or max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), length), pad_id)
    weights = torch.zeros(len(rows), length)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = torch.tensor(row.ids)
        weights[index, : len(row.ids)] = torch.tensor(row.weights)
    return Batch(ids, weights, num_tokens=sum(len(row.ids) for row in rows))


@lru_cache(maxsize=4)
def _shuffled(
    seed: int, epoch: int, lengths: tuple[int, ...], num_rows: int
) -> Sequence[Sequence[int]]:
    """Return the row numbers of each batch of an epoch."""
    rng = random.Random(f"{seed}/{epoch}")
    order = list(range(len(lengths)))
    rng.shuffle(order)
    window_size = _SORTED_BATCHES * num_rows
    batches = []
    for start in range(0, len(order), window_size):
        window = sorted(order[start : start + window_size], key=lambda row: lengths[row])
        batches += [window[first : first + num_rows] for first in range(0, len(window), num_rows)]
    rng.shuffle(batches)
    return batches
