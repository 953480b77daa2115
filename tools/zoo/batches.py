"""Batches of generated chats.

Batch `i` is a function of the seed and `i` alone.
"""

from dataclasses import dataclass

from tokenizers import Tokenizer

from specbench.training.batches import Batch, Row, stack
from specbench.training.options import TrainingOptions
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
    options: TrainingOptions

    @property
    def rows(self) -> list[Row]:
        """The rows of the first batches of an endless sequence."""
        first = (self[index] for index in range(_COUNTED))
        pairs = (pair for batch in first for pair in zip(batch.ids, batch.weights, strict=True))
        return [Row(ids.tolist(), weights.tolist()) for ids, weights in pairs]

    def __getitem__(self, index: int) -> Batch:
        given = self.options
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


def _encode(core: Tokenizer, dialogue: Dialogue, request_weight: float) -> Row:
    ids, is_answer = encode_dialogue(core, dialogue)
    return Row(ids, [0.0, *(1.0 if answer else request_weight for answer in is_answer[1:])])
