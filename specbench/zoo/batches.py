"""Token batches from the text stream. Batch `i` is a function of the seed and `i` alone."""

from collections.abc import Container
from dataclasses import dataclass
from typing import Protocol

import torch
from tokenizers import Tokenizer
from torch import Tensor

from specbench.zoo.text import Dialogue, stream
from specbench.zoo.tokenizer import EOS_ID, encode_dialogue

# A batch draws from its own stretch of the stream; no batch needs this many dialogues.
_DIALOGUES_PER_BATCH = 1_000
# A batch is full when this many dialogues in a row found no place.
_MISSES = 12


@dataclass(frozen=True, slots=True)
class Batch:
    """Packed rows of whole chats.

    A token's weight is its share in the loss of predicting it: 1 in an answer, less in a request,
    0 for a row's first token and for the padding at its end.
    """

    ids: Tensor  # [rows, length] int64
    weights: Tensor  # [rows, length] float32
    num_tokens: int

    def to(self, device: torch.device) -> "Batch":
        return Batch(self.ids.to(device), self.weights.to(device), self.num_tokens)


class BatchSource(Protocol):
    """An endless sequence of training batches."""

    def __getitem__(self, index: int) -> Batch: ...


@dataclass(frozen=True, slots=True)
class Batches:
    """The endless, seeded sequence of training batches."""

    core: Tokenizer
    seed: int
    num_rows: int
    length: int
    request_weight: float
    held_out: Container[str]

    def __getitem__(self, index: int) -> Batch:
        rows: list[tuple[list[int], list[float]]] = [([], []) for _ in range(self.num_rows)]
        misses = 0
        for dialogue in stream(self.seed, index * _DIALOGUES_PER_BATCH, self.held_out):
            ids, is_answer = encode_dialogue(self.core, dialogue)
            row = next((row for row in rows if len(row[0]) + len(ids) <= self.length), None)
            if row is None:
                misses += 1
                if misses == _MISSES:
                    break
                continue
            row[0].extend(ids)
            weights = [1.0 if answer else self.request_weight for answer in is_answer]
            row[1].extend([0.0, *weights[1:]])
        return _stack(rows, self.length)


def pack(core: Tokenizer, dialogues: list[Dialogue], request_weight: float) -> Batch:
    """The dialogues as one batch, one to a row."""
    rows = []
    for dialogue in dialogues:
        ids, is_answer = encode_dialogue(core, dialogue)
        rows.append((ids, [0.0] + [1.0 if a else request_weight for a in is_answer[1:]]))
    return _stack(rows, max(len(ids) for ids, _ in rows))


def _stack(rows: list[tuple[list[int], list[float]]], length: int) -> Batch:
    ids = torch.full((len(rows), length), EOS_ID)
    weights = torch.zeros(len(rows), length)
    for i, (row_ids, row_weights) in enumerate(rows):
        ids[i, : len(row_ids)] = torch.tensor(row_ids)
        weights[i, : len(row_ids)] = torch.tensor(row_weights)
    return Batch(ids, weights, sum(len(row_ids) for row_ids, _ in rows))
