"""The six families by name, and the endless training stream."""

import random
from collections.abc import Container, Iterator

from tools.zoo.text.arithmetic import sample_arithmetic
from tools.zoo.text.chat import sample_chat
from tools.zoo.text.code import sample_code
from tools.zoo.text.dialogue import FAMILIES, Dialogue
from tools.zoo.text.facts import sample_fact
from tools.zoo.text.instruct import sample_instruction
from tools.zoo.text.news import sample_news

_SAMPLERS = {
    "mt_bench": sample_chat,
    "humaneval": sample_code,
    "gsm8k": sample_arithmetic,
    "alpaca": sample_instruction,
    "cnn_dm": sample_news,
    "natural_questions": sample_fact,
}
# Of dialogues, not of tokens: an article is three times as long as an average dialogue.
_SHARES = {
    "mt_bench": 0.20,
    "humaneval": 0.17,
    "gsm8k": 0.25,
    "alpaca": 0.16,
    "cnn_dm": 0.11,
    "natural_questions": 0.11,
}


def sample(family: str, rng: random.Random) -> Dialogue:
    """One dialogue of the family, a function of the generator's state alone."""
    return _SAMPLERS[family](rng)


def stream(seed: int, start: int = 0, held_out: Container[str] = ()) -> Iterator[Dialogue]:
    """Dialogues `start`, `start + 1`, ... of the mixed stream of this seed.

    Every index has its own generator, so that a stream can be resumed anywhere. Dialogues whose
    first request is in `held_out` are left out.
    """
    index = start
    while True:
        rng = random.Random(f"specbench-text/{seed}/{index}")
        family = rng.choices(FAMILIES, [_SHARES[name] for name in FAMILIES])[0]
        dialogue = sample(family, rng)
        index += 1
        if dialogue.turns[0].user not in held_out:
            yield dialogue
