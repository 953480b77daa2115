"""The text generator writes what the shipped models learned."""

import hashlib
import random
from itertools import islice

import pytest

from tools.zoo.text import Dialogue, sample, stream

SHA256 = {
    "mt_bench": "c1b0ec6ead0069fe32a93845b8f44c5a8005f2d8ca77dfdf1a842d7d0b617853",
    "humaneval": "dd3b693ff70e072c00746c44ef17fcbfc0d8dc400c48be5412a5833d0fec7863",
    "gsm8k": "abdb787819173a478f4dfc08f0f6fa5ace683531ad3154e1affeffd925b12d58",
    "alpaca": "a0b42a1581a3ec6df6b3796eed799e8f8b525788f2363b9fff42524534a52204",
    "cnn_dm": "8a348862faa41a93d9028a0031a62e80779a4e886ae9852a2335e3251a87f238",
    "natural_questions": "eb06fb4efcb38eb509336e185cc0bb2df7f9ea715a0c9b4dd0e77e1f3e2a78f4",
}
"""Of the first 2000 dialogues of every family with seed 0."""


def dialogues(family: str, num: int, seed: int = 0) -> list[Dialogue]:
    rng = random.Random(seed)
    return [sample(family, rng) for _ in range(num)]


@pytest.mark.parametrize(("family", "expected"), SHA256.items())
def test_every_family_is_byte_for_byte_what_the_shipped_models_learned(
    family: str, expected: str
) -> None:
    digest = hashlib.sha256()
    for dialogue in dialogues(family, 2000):
        texts = [text for turn in dialogue.turns for text in (turn.user, turn.assistant)]
        digest.update("\0".join([dialogue.family, dialogue.category, *texts, ""]).encode())
    assert digest.hexdigest() == expected


def test_the_mixed_stream_is_what_the_shipped_models_learned() -> None:
    digest = hashlib.sha256()
    for dialogue in islice(stream(seed=1), 300):
        digest.update(repr(dialogue).encode())
    assert digest.hexdigest()[:16] == "034104f30e0d6b07"
