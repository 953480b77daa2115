"""Fewer steps for an equal answer in a later pass prove that a method remembers."""

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


def answers(*later: tuple[int, ...]) -> list[Record]:
    """Two passes over a prompt for each of these accept lengths, those of the second pass."""
    records = []
    for number, lengths in enumerate(later):
        for repeat, steps in enumerate((FIRST, lengths)):
            records.append(record("pld", str(number), repeat=repeat, accept_lengths=steps))
    return records


def named(records: list[Record], *, is_repeatable: bool | None = True, **changes: Any) -> bool:
    values = {"uid": "a" * 32, **changes}
    run = make_run(records, make_header(header(["vanilla", "pld"], ("gsm8k",), **values)))
    pld = replace_part(run.header.methods["pld"], is_repeatable=is_repeatable)
    methods = {**run.header.methods, "pld": pld}
    return bool(fewer_steps(records, replace_part(run.header, methods=methods)))


FEWER = (3,) * 4


def test_two_requests_with_fewer_steps_are_proof() -> None:
    assert named(answers(*[FEWER] * LEAST_ANSWERS, FIRST, FIRST))
    assert not named(answers(*[FEWER] * (LEAST_ANSWERS - 1), FIRST, FIRST))
    assert not named(answers(FIRST, FIRST, FIRST))


def test_a_request_with_more_steps_is_no_memory() -> None:
    records = answers(FEWER, FEWER, FIRST)
    slower = [
        replace(answer, accept_lengths=(2,) * 6) if answer.key.repeat == 0 else answer
        for answer in answers(FIRST)
    ]
    slower = [replace(answer, key=replace(answer.key, sample_id="gsm8k/9")) for answer in slower]
    assert named(records)
    assert not named([*records, *slower])


@pytest.mark.parametrize("is_repeatable", [False, None])
def test_only_methods_that_repeat_their_drafts_are_judged(is_repeatable: bool | None) -> None:
    """Older headers do not say if drafts repeat."""
    assert not named(answers(FEWER, FEWER), is_repeatable=is_repeatable)


def test_a_pool_and_a_merged_run_are_not_judged() -> None:
    """Parts of such runs may come from other machines, or from other sizes of drafts."""
    assert not named(answers(FEWER, FEWER), uid="")


def test_other_tokens_and_temperatures_prove_nothing() -> None:
    records = answers(FEWER, FEWER, FEWER)
    other = [
        replace(answer, token_ids=(*answer.token_ids[:-1], 99)) if answer.key.repeat else answer
        for answer in records
    ]
    assert not named(other)
    warm = [replace(answer, key=replace(answer.key, temperature=1.0)) for answer in records]
    assert not named(warm)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("pld", True), ("lookahead", False), ("suffix", True), ("suffix:scope=run", False)],
)
def test_options_say_if_drafts_repeat(text: str, *, expected: bool) -> None:
    assert parse_methods([text])[0].describe().is_repeatable is expected
