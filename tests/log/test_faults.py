"""Each fault of a run's records that only shows in several lines, told in one sentence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from specbench.log.faults import find_faults
from tests.judge.making import EOS, good_header, good_records

RECORDS = good_records()
HEADER = good_header()
TREES = {"total_tokens": 2, "depth": 0}


def test_a_sound_run_has_none() -> None:
    assert not list(find_faults(HEADER, RECORDS))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"prefill_s": 0.0}, "prefill_s is 0, but reading a prompt takes time"),
        ({"decode_s": 0.0}, "decode_s is 0, but it has steps"),
        ({"draft_prefill_s": 0.3}, "draft_prefill_s is 0.3 s, more than decode_s, 0.25"),
        ({"stop_reason": None}, "it has no stop_reason"),
        ({"stop_reason": "budget"}, "it stopped at 4 tokens of a budget of 8"),
        ({"stop_reason": "stop"}, f"it ends with {EOS}, an end token, but says stop"),
        ({"token_ids": (7, EOS, 9, 8)}, f"it goes on after the end token {EOS}"),
        ({"seed": 1}, "the seed 1 does not follow from the run's, 5"),
        ({"prompt_tokens": 3}, "its prompt has 9 tokens, in others 3"),
        ({"token_ends": (1, 3, 2, 4)}, "token_ends do not lead through its text"),
        ({"num_nodes": (1, 3, 1)}, "a tree of 3 nodes, with 2 allowed"),
        ({"accept_lengths": (3,)}, "a step of 3 tokens from trees of depth 1"),
    ],
)
def test_a_fault_of_a_record(changes: dict[str, Any], fault: str) -> None:
    about = structs.replace(HEADER.methods["vanilla"], options=TREES)
    header = structs.replace(HEADER, methods={**HEADER.methods, "vanilla": about})
    told = list(find_faults(header, [replace(RECORDS[0], **changes), *RECORDS[1:]]))
    assert any(fault in text for text in told), told


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"created": "2999-01-01T00:00:00+00:00"}, "created is in the future: 2999"),
        ({"finished": "yesterday"}, "created or finished is not a time in ISO 8601"),
        ({"finished": "2020-01-01T00:00:00+00:00"}, "before it began at"),
        ({"num_records": 7}, "The run is complete, but has 4 of 7 records"),
    ],
)
def test_a_fault_of_the_header(changes: dict[str, Any], fault: str) -> None:
    told = list(find_faults(structs.replace(HEADER, **changes), RECORDS))
    assert any(fault in text for text in told), told


def test_a_request_and_a_prompt_that_are_missing() -> None:
    told = " ".join(find_faults(HEADER, RECORDS[:1]))
    assert "pld lacks" not in told and "gsm8k has records of 1 of its 2 prompts" in told
    assert "vanilla lacks 1 of the 2 requests" in " ".join(find_faults(HEADER, RECORDS[1:]))


def test_answers_that_took_longer_than_the_run() -> None:
    long = [replace(one, decode_s=60.0) for one in RECORDS]
    assert any("the whole run only 60 s" in text for text in find_faults(HEADER, long)), [
        *find_faults(HEADER, long)
    ]
