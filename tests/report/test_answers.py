"""The answers in the HTML page, and the ends of their steps."""

from dataclasses import replace
from typing import Any

from specbench.report.answers import pick_answers, step_ends
from specbench.types import Record
from tests.analysis.run_factory import failed, header, make_run, record


def replayed(one: Record) -> dict[str, Any]:
    """The one answer of a page about this record alone."""
    (answers,) = pick_answers(make_run([one], header(["vanilla"], ["gsm8k"])))
    (answer,) = answers.replay()["answers"]
    assert isinstance(answer, dict)
    return answer


def test_steps_end_where_their_tokens_do_and_the_bonus_is_not_of_the_draft() -> None:
    assert step_ends((2, 3, 7, 8), [2, 1]) == [(0, 2), (3, 7), (7, 8)]


def test_an_answer_without_its_steps_is_whole_and_says_that_they_are_not_counted() -> None:
    listed = replace(record(accept_lengths=[2, 1]), text="abcdefgh")
    for one, steps in ((listed, 3), (replace(listed, accept_lengths=()), 4)):
        answer = replayed(one)
        assert (len(answer["steps"]), answer["steps"][-1][1]) == (steps, 8)
        assert answer["counted"] == (one is listed)


def test_an_older_record_shares_its_text_evenly_among_its_tokens() -> None:
    answer = replayed(replace(record(accept_lengths=[2, 1]), text="abcdefgh"))
    assert answer["steps"] == [(0, 2), (4, 6), (6, 8)]
    assert not answer["exact"]


def test_answers_are_of_the_first_repeat_and_name_turn_and_temperature_where_they_differ() -> None:
    records = [
        record(sample="7", turn=1, temperature=1.0),
        record(sample="7", temperature=0.0),
        record(sample="8", repeat=1),
    ]
    picked = pick_answers(make_run(records, header(["vanilla"], ["gsm8k"], (0.0, 1.0))))
    assert [one.title for one in picked] == ["GSM8K, 7, turn 2, T=1", "GSM8K, 7, T=0"]


def test_a_replay_has_each_text_once_and_leaves_failures_out() -> None:
    records = [record(), record("pld"), failed("sps")]
    (answers,) = pick_answers(make_run(records, header(["vanilla", "pld", "sps"], ["gsm8k"])))
    replay = answers.replay("Run 1: ")
    assert replay["title"] == "Run 1: GSM8K, a"
    assert replay["texts"] == [""]
    assert [answer["method"] for answer in replay["answers"]] == ["Vanilla", "PLD"]
    assert answers.failed == {"SpS": "boom"}


def test_an_answer_with_more_tokens_than_its_text_has_is_shown() -> None:
    """A server counts an end token that its text has not; the ends are those of the text."""
    shown = replayed(replace(record(accept_lengths=[2, 1]), text="abcdef", token_ends=(2, 4, 6)))
    assert not shown["exact"] and [end for _, end in shown["steps"]] == [1, 4, 6]
