"""A method that repeats an answer in fewer steps in a later pass must remember it."""

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as replace_part

from specbench.analysis.repeated_steps import LEAST_ANSWERS, fewer_steps
from specbench.types import Record
from tests.analysis.run_factory import header, make_run, record
from tests.support.headers import make_header
from tests.support.methods import parse_methods

FIRST = (1,) * 12
"""Accept lengths of each answer's first pass: 12 steps of one token."""
FEWER = (3,) * 4
"""The same 12 tokens in 4 steps."""


def answers(*later_lengths: tuple[int, ...], first: tuple[int, ...] = FIRST) -> list[Record]:
    """PLD's answers in two passes, to one prompt for each item of `later_lengths`.

    The first pass has the accept lengths `first`, the second one those of `later_lengths`.
    """
    return [
        record("pld", str(number), repeat=repeat, accept_lengths=lengths)
        for number, second in enumerate(later_lengths)
        for repeat, lengths in enumerate((first, second))
    ]


def is_named(records: list[Record], *, is_repeatable: bool | None = True, **changes: Any) -> bool:
    """Return whether the answers prove that PLD remembers.

    `changes` go to the header of the run.
    """
    values = {"uid": "a" * 32, **changes}
    run = make_run(records, make_header(header(["vanilla", "pld"], ("gsm8k",), **values)))
    pld = replace_part(run.header.methods["pld"], is_repeatable=is_repeatable)
    methods = {**run.header.methods, "pld": pld}
    return bool(fewer_steps(records, replace_part(run.header, methods=methods)))


def test_two_requests_with_fewer_steps_are_proof() -> None:
    enough = [FEWER] * LEAST_ANSWERS
    assert is_named(answers(*enough, FIRST, FIRST))
    assert not is_named(answers(*enough[1:], FIRST, FIRST))
    assert not is_named(answers(FIRST, FIRST, FIRST))


def test_a_request_with_more_steps_refutes_memory() -> None:
    proof = answers(FEWER, FEWER, FIRST)
    slower = [  # 6 steps of two tokens in the first pass, 12 in the second
        replace(answer, key=replace(answer.key, sample_id="gsm8k/9"))
        for answer in answers(FIRST, first=(2,) * 6)
    ]
    assert is_named(proof)
    assert not is_named([*proof, *slower])


@pytest.mark.parametrize("is_repeatable", [False, None])
def test_only_methods_that_repeat_their_drafts_are_judged(is_repeatable: bool | None) -> None:
    """Older headers do not say if drafts repeat."""
    assert not is_named(answers(FEWER, FEWER), is_repeatable=is_repeatable)


def test_a_pool_and_a_merged_run_are_not_judged() -> None:
    """The parts of such runs may come from different machines, or from different draft sizes."""
    assert not is_named(answers(FEWER, FEWER), uid="")


def test_answers_with_other_tokens_prove_nothing() -> None:
    with_other_end = [
        replace(answer, token_ids=(*answer.token_ids[:-1], 99)) if answer.key.repeat else answer
        for answer in answers(FEWER, FEWER, FEWER)
    ]
    assert not is_named(with_other_end)


def test_answers_above_temperature_0_prove_nothing() -> None:
    sampled = [
        replace(answer, key=replace(answer.key, temperature=1.0))
        for answer in answers(FEWER, FEWER, FEWER)
    ]
    assert not is_named(sampled)


@pytest.mark.parametrize(
    ("text", "is_repeatable"),
    [("pld", True), ("lookahead", False), ("suffix", True), ("suffix:scope=run", False)],
)
def test_options_say_if_drafts_repeat(text: str, *, is_repeatable: bool) -> None:
    (method,) = parse_methods([text])
    assert method.describe().is_repeatable is is_repeatable
