"""The text generator: seeded, varied, and right where right can be computed."""

import hashlib
import random
from itertools import islice

import pytest

from tools.zoo.evaluate import examples_pass
from tools.zoo.text import Dialogue, sample, stream
from tools.zoo.text.templates import render

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


def test_choices_nest_and_slots_are_filled_after_them() -> None:
    rng = random.Random(0)
    texts = {render(rng, "[a [b|c]|{Slot} {slot}]", slot="x[y|z]") for _ in range(50)}
    assert texts == {"a b", "a c", "X[y|z] x[y|z]"}


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


def test_a_stream_can_be_entered_anywhere() -> None:
    assert list(islice(stream(3), 40))[25:] == list(islice(stream(3, start=25), 15))


def test_a_stream_leaves_held_out_requests_out() -> None:
    first = next(stream(3))
    assert next(stream(3, held_out={first.turns[0].user})) != first


def test_a_wrong_function_does_not_pass_its_examples() -> None:
    head = 'def twice(x):\n    """Double x.\n    >>> twice(2)\n    4\n    """\n'
    request = f"Complete the code I provided.\n\n{head}"
    assert examples_pass(request, "    return 2 * x")
    assert not examples_pass(request, "    return 3 * x")
    assert not examples_pass(request, "    return open('file')")
    assert not examples_pass(request, "    return (")
