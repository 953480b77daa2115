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
# A draft vocabulary has the most frequent tokens of this many batches.
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
        batches = (self[index] for index in range(_COUNTED))
        return [
            Row(ids.tolist(), weights.tolist())
            for batch in batches
            for ids, weights in zip(batch.ids, batch.weights, strict=True)
        ]

    def __getitem__(self, index: int) -> Batch:
        options = self.options
        rows = [Row([], []) for _ in range(options.num_rows)]
        num_misses = 0
        for dialogue in stream(options.seed, index * _DIALOGUES_PER_BATCH, bundled_requests()):
            chat = _encode(self.core, dialogue, options.request_weight)
            for number, row in enumerate(rows):
                if len(row.ids) + len(chat.ids) <= options.length:
                    rows[number] = Row([*row.ids, *chat.ids], [*row.weights, *chat.weights])
                    break
            else:
                num_misses += 1
            if num_misses == _MISSES:
                break
        return stack(rows, EOS_ID, options.length)


def held_out_rows(core: Tokenizer, family: str, num: int, seed: int) -> list[Row]:
    """Rows of the first `num` held-out dialogues of the family. Only answers have a weight."""
    return [_encode(core, dialogue, 0.0) for dialogue in held_out_dialogues(family, num, seed)]


def _encode(core: Tokenizer, dialogue: Dialogue, request_weight: float) -> Row:
    ids, is_answer = encode_dialogue(core, dialogue)
    weights = [1.0 if is_answered else request_weight for is_answered in is_answer[1:]]
    return Row(ids, [0.0, *weights])
