"""The six families by name, and the endless training stream."""

import random
from collections.abc import Container, Iterator
from itertools import count

from tools.zoo.text.arithmetic import sample_arithmetic
from tools.zoo.text.chat import sample_chat
from tools.zoo.text.code import sample_code
from tools.zoo.text.dialogue import Dialogue
from tools.zoo.text.facts import sample_fact
from tools.zoo.text.instruct import sample_instruction
from tools.zoo.text.news import sample_news

# Each sampler with its share of dialogues. Shares of tokens differ: news is three times as long.
_SAMPLERS = {
    "mt_bench": (sample_chat, 0.20),
    "humaneval": (sample_code, 0.17),
    "gsm8k": (sample_arithmetic, 0.25),
    "alpaca": (sample_instruction, 0.16),
    "cnn_dm": (sample_news, 0.11),
    "natural_questions": (sample_fact, 0.11),
}
FAMILIES = tuple(_SAMPLERS)


def sample(family: str, rng: random.Random) -> Dialogue:
    """Draw one dialogue of the family. It depends only on the generator's state."""
    return _SAMPLERS[family][0](rng)


def stream(seed: int, start: int = 0, held_out: Container[str] = ()) -> Iterator[Dialogue]:
    """Yield the dialogues `start`, `start + 1`, ... of the mixed stream of this seed.

    Every index has a random generator of its own, so that a stream can be resumed anywhere.
    Dialogues whose first request is in `held_out` are left out.
    """
    shares = [share for _, share in _SAMPLERS.values()]
    for index in count(start):
        rng = random.Random(f"specbench-text/{seed}/{index}")
        dialogue = sample(rng.choices(FAMILIES, shares)[0], rng)
        if dialogue.turns[0].user not in held_out:
            yield dialogue
