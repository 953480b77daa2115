"""Batches of generated chats, and losses over them.

Batch `i` is a function of the seed and `i` alone.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from specbench.training.batches import Batch, Row, stack
from specbench.training.head import weighted_mean
from specbench.training.recipe import Settings
from tools.zoo.held_out import bundled_requests, held_out_dialogues
from tools.zoo.text import Dialogue, stream
from tools.zoo.tokenizer import EOS_ID, encode_dialogue

# A batch draws from its own stretch of the stream; no batch needs this many dialogues.
_DIALOGUES_PER_BATCH = 1_000
# A batch is full when this many dialogues did not fit.
_MISSES = 12
# A draft vocabulary has the tokens that are frequent in this many batches.
_COUNTED = 50


@dataclass(frozen=True, slots=True)
class ChatBatches:
    """The endless, seeded sequence of batches: rows of `length` tokens that hold whole chats.

    The bundled prompts are left out.
    """

    core: Tokenizer
    settings: Settings

    @property
    def rows(self) -> list[Row]:
        """The rows of the first batches of an endless sequence."""
        first = (self[index] for index in range(_COUNTED))
        pairs = (pair for batch in first for pair in zip(batch.ids, batch.weights, strict=True))
        return [Row(ids.tolist(), weights.tolist()) for ids, weights in pairs]

    def __getitem__(self, index: int) -> Batch:
        given = self.settings
        rows: list[tuple[list[int], list[float]]] = [([], []) for _ in range(given.num_rows)]
        misses = 0
        for dialogue in stream(given.seed, index * _DIALOGUES_PER_BATCH, bundled_requests()):
            chat = _encode(self.core, dialogue, given.request_weight)
            row = next((row for row in rows if len(row[0]) + len(chat.ids) <= given.length), None)
            if row is not None:
                row[0].extend(chat.ids)
                row[1].extend(chat.weights)
            elif (misses := misses + 1) == _MISSES:
                break
        return stack([Row(*row) for row in rows], EOS_ID, given.length)


def held_out_rows(core: Tokenizer, family: str, num: int, seed: int) -> list[Row]:
    """The row of each of the family's first held-out dialogues. Only answers have a weight."""
    return [_encode(core, dialogue, 0.0) for dialogue in held_out_dialogues(family, num, seed)]


def held_out_batch(core: Tokenizer, family: str, num: int, seed: int) -> Batch:
    """These rows as one batch."""
    return stack(held_out_rows(core, family, num, seed), EOS_ID)


def _encode(core: Tokenizer, dialogue: Dialogue, request_weight: float) -> Row:
    ids, is_answer = encode_dialogue(core, dialogue)
    return Row(ids, [0.0, *(1.0 if answer else request_weight for answer in is_answer[1:])])


def text_loss(logits: Tensor, batch: Batch) -> Tensor:  # [rows, length, vocab] -> []
    """Cross entropy of every next token of the text."""
    losses = F.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), batch.ids[:, 1:].flatten(), reduction="none"
    )
    return weighted_mean(losses, batch.weights[:, 1:].flatten())


def distillation_loss(logits: Tensor, teacher: Tensor, batch: Batch) -> Tensor:
    """KL(teacher || model) of the next-token distributions, from logits [rows, length, vocab]."""
    model = logits[:, :-1].flatten(0, 1).float().log_softmax(-1)
    truth = teacher[:, :-1].flatten(0, 1).float().log_softmax(-1)
    losses = F.kl_div(model, truth, reduction="none", log_target=True).sum(-1)
    return weighted_mean(losses, batch.weights[:, 1:].flatten())
