"""The text generator: seeded, varied, and right where right can be computed."""

import hashlib
import random
import re
from itertools import islice

import pytest

from tools.zoo.checks import equations_hold, examples_pass, final_number
from tools.zoo.text import FAMILIES, Dialogue, sample, stream
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


def test_a_list_is_a_choice_that_takes_the_same_random_numbers() -> None:
    one, two = random.Random(1), random.Random(1)
    for _ in range(20):
        assert render(one, ["a [b|c]", "d", "e"]) == render(two, "[a [b|c]|d|e]")


def test_a_slot_without_a_value_is_an_error() -> None:
    for template in ("{slot}", "{Slot}"):
        with pytest.raises(KeyError, match="slot"):
            render(random.Random(0), template, other="x")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_seed_gives_the_same_dialogues(family: str) -> None:
    assert dialogues(family, 50, seed=5) == dialogues(family, 50, seed=5)
    assert dialogues(family, 50, seed=5) != dialogues(family, 50, seed=6)


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


@pytest.mark.parametrize("family", FAMILIES)
def test_only_chats_have_two_turns(family: str) -> None:
    num = {len(dialogue.turns) for dialogue in dialogues(family, 50)}
    assert num == ({2} if family == "mt_bench" else {1})


@pytest.mark.parametrize(
    ("family", "least"),
    [
        ("mt_bench", 1990),
        ("humaneval", 1990),
        ("gsm8k", 1990),
        ("alpaca", 1700),
        ("cnn_dm", 2000),
        ("natural_questions", 1400),
    ],
)
def test_samples_rarely_repeat(family: str, least: int) -> None:
    assert len(set(dialogues(family, 2000))) >= least


def test_every_word_problem_is_solved_right() -> None:
    for dialogue in dialogues("gsm8k", 3000):
        answer = dialogue.turns[0].assistant
        *steps, last = answer.split("\n")
        assert 2 <= len(steps) <= 4
        assert all(re.search(r"\d+ [-+*/] \d+ = \d+", step) for step in steps)
        assert equations_hold(answer), answer
        assert final_number(answer) == int(re.findall(r"= (\d+)", steps[-1])[0])
        assert last.startswith("#### ")


def test_a_word_problem_uses_every_number_of_its_story() -> None:
    for dialogue in dialogues("gsm8k", 1000):
        story, answer = dialogue.turns[0].user, dialogue.turns[0].assistant
        told = re.findall(r"\d+", story)
        assert told and set(told) <= set(re.findall(r"\d+", answer)), (story, answer)


def test_every_function_gives_its_docstring_examples() -> None:
    for dialogue in dialogues("humaneval", 2000):
        turn = dialogue.turns[0]
        assert examples_pass(turn.user, turn.assistant), turn


def test_a_wrong_function_does_not_pass_its_examples() -> None:
    head = 'def twice(x):\n    """Double x.\n    >>> twice(2)\n    4\n    """\n'
    request = f"Complete the code I provided.\n\n{head}"
    assert examples_pass(request, "    return 2 * x")
    assert not examples_pass(request, "    return 3 * x")
    assert not examples_pass(request, "    return open('file')")
    assert not examples_pass(request, "    return (")


def test_a_summary_has_no_number_its_article_lacks() -> None:
    for dialogue in dialogues("cnn_dm", 1000):
        article, summary = dialogue.turns[0].user, dialogue.turns[0].assistant
        assert set(re.findall(r"\d+", summary)) <= set(re.findall(r"\d+", article))
        assert 2 <= len(re.findall(r"\.(?: |$)", summary)) <= 4


def test_articles_have_the_length_of_articles() -> None:
    lengths = [len(dialogue.turns[0].user.split()) for dialogue in dialogues("cnn_dm", 500)]
    assert min(lengths) >= 90 and max(lengths) <= 220
    assert sum(lengths) / len(lengths) >= 120


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "humaneval"])
def test_no_template_marks_are_left(family: str) -> None:
    for dialogue in dialogues(family, 1000):
        for turn in dialogue.turns:
            assert not re.search(r"[\[\]{}|]|  |\bNone\b", turn.user + "\n" + turn.assistant), turn


@pytest.mark.parametrize("family", FAMILIES)
def test_no_request_or_answer_is_empty_or_padded(family: str) -> None:
    for dialogue in dialogues(family, 500):
        for turn in dialogue.turns:
            assert turn.user.strip() and turn.assistant.strip()
            assert turn.assistant == turn.assistant.rstrip()
