"""Make batches of generated chats.

Batch `i` depends only on the seed and `i`.
"""

from dataclasses import dataclass

from tokenizers import Tokenizer

from specbench.training.batches import Batch, Row, stack
from specbench.training.options import TrainingOptions
from tools.zoo.held_out import bundled_requests, held_out_dialogues
from tools.zoo.text import Dialogue, stream
from tools.zoo.tokenizer import EOS_ID, encode_dialogue

# Each batch draws from another part of the stream. None needs this many dialogues.
_DIALOGUES_PER_BATCH = 1_000
# A batch is full once this many dialogues have not fit into it.
_MISSES = 12
# The most frequent tokens of this many batches are a draft vocabulary.
_COUNTED = 50


@dataclass(frozen=True, slots=True)
class ChatBatches:
    """An endless, seeded sequence of batches. Their rows of `length` tokens hold whole chats.

    The bundled prompts are left out.
    """

    core: Tokenizer
    options: TrainingOptions

    @property
    def rows(self) -> list[Row]:
        """Return the rows of the first batches, since the sequence has no end."""
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
    """Return rows of the family's first `num` held-out dialogues. Only answers have a weight."""
    return [_encode(core, dialogue, 0.0) for dialogue in held_out_dialogues(family, num, seed)]


def _encode(core: Tokenizer, dialogue: Dialogue, request_weight: float) -> Row:
    ids, is_answer = encode_dialogue(core, dialogue)
    weights = [1.0 if is_answered else request_weight for is_answered in is_answer[1:]]
    return Row(ids, [0.0, *weights])
