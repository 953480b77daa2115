"""Engines' reports on the drafts of an answer: their lengths, and the accepted tokens."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import UNSET

from specbench.measure.server.answer_reader import AnswerReader
from specbench.measure.server.engine import load_engine
from specbench.measure.server.openai_api import completions
from specbench.measure.server.records import make_record
from specbench.measure.server.stream import RequestFailed, StreamProtocol
from specbench.types import RecordKey, Request, Serving
from tests.support.backend import Words

IDS = (5, 6, 7, 8, 9, 10, 11, 2)
KEY = RecordKey("eagle3", 0.0, "chat", "chat/1", 0, 0)


def serving_of(protocol: StreamProtocol, *events: Mapping[str, Any]) -> Serving:
    """The figures in the record of an answer that arrives in these events."""
    reader = AnswerReader(protocol, sent=1.0, budget=16)
    for second, event in enumerate(events, start=2):
        reader.feed(f"data: {json.dumps(event)}\n\n".encode(), float(second))
    record = make_record(
        KEY, Request((1, 2), 16), reader.finish(), Words(), began=0.0, is_prompt_sent=True
    )
    assert record.serving
    return record.serving


def from_vllm(**counts: Any) -> Serving:
    """The figures of an answer with these counts from vLLM."""
    choice = {"index": 0, "text": "x", "token_ids": IDS, "finish_reason": "stop"}
    return serving_of(
        completions(),
        {"choices": [choice]},
        {"choices": [], "metrics": {"speculative_decoding": counts}},
    )


def from_sglang(**counts: Any) -> Serving:
    """The figures of an answer with these counts from SGLang."""
    meta = {"completion_tokens": len(IDS), "finish_reason": {"type": "stop"}, **counts}
    event = {"text": "x", "output_ids": IDS, "meta_info": meta}
    return serving_of(load_engine("sglang").protocol or completions(), event)


def test_tensorrt_llm_counts_drafts_in_its_last_choice() -> None:
    """Version 1.4 does so with `per_request_spec_decode_stats`. It sends only text."""
    choice = {"index": 0, "text": "fghi", "finish_reason": "stop"}
    counts = {
        "num_spec_steps": 2,
        "acceptance_histogram": [1, 0, 1],
        "total_accepted_draft_tokens": 2,
        "total_draft_tokens": 8,
        "acceptance_rate": 0.25,
        "num_spec_tokens": 4,
    }
    usage = {"prompt_tokens": 2, "completion_tokens": 4}
    events = [
        {"choices": [{**choice, "avg_decoded_tokens_per_iter": 2.0, "speculative_decoding": block}]}
        for block in (counts, None)
    ]
    with_counts, without = (
        serving_of(completions(), event, {"choices": [], "usage": usage}) for event in events
    )
    assert (with_counts.num_drafts, with_counts.num_accepted, with_counts.num_drafted) == (2, 2, 8)
    assert with_counts.drafts_by_accepted == (1, 0, 1)
    assert (without.num_drafts, without.num_accepted) == (None, None)


def test_vllm_lists_the_draft_tokens_of_each_step() -> None:
    serving = from_vllm(
        num_spec_steps=4,
        num_draft_tokens=11,
        num_accepted_draft_tokens=3,
        acceptance_histogram=[2, 1, 1, 0, 0],
        per_step_accepted=[2, 1, 0, 0],
        per_step_drafted=[4, 4, 2, 1],
    )
    assert serving.num_drafted == 11
    assert serving.drafts_by_length == (1, 1, 0, 2)
    assert serving.drafts_by_accepted == (2, 1, 1, 0, 0)


def test_a_listed_step_without_a_draft_does_not_count() -> None:
    serving = from_vllm(
        num_spec_steps=3,
        num_accepted_draft_tokens=2,
        per_step_accepted=[2, 0, 0],
        per_step_drafted=[4, 0, 0],
    )
    assert (serving.num_drafts, serving.drafts_by_length) == (1, (0, 0, 0, 1))


def test_counts_without_lists_have_no_lengths() -> None:
    """vLLM sends counts in this form without `detailed`."""
    serving = from_vllm(num_spec_steps=2, num_draft_tokens=8, num_accepted_draft_tokens=3)
    assert (serving.num_drafts, serving.num_drafted) == (2, 8)
    assert (serving.drafts_by_length, serving.drafts_by_accepted) == (UNSET, UNSET)


@pytest.mark.parametrize(
    ("histogram", "kept"),
    [([1, 0, 2], (1, 0, 2)), ([1, 0, 5], UNSET), ([4, -1], UNSET), ([], UNSET), (None, UNSET)],
)
def test_a_histogram_of_sglang_counts_if_it_has_all_drafts(histogram: Any, kept: Any) -> None:
    serving = from_sglang(
        spec_verify_ct=3,
        spec_num_correct_drafts=4,
        spec_num_proposed_drafts=9,
        spec_correct_drafts_histogram=histogram,
    )
    assert (serving.num_drafts, serving.num_drafted, serving.num_accepted) == (3, 9, 4)
    assert serving.drafts_by_accepted == kept


@pytest.mark.parametrize(
    ("drafted", "reason"),
    [
        ([4, 1], "accepted 2 of 1 draft tokens"),
        ([4], "1 steps drafted, but 2 steps"),
        ([4, 10**9], "accepted 2 of 1000000000 draft tokens"),
    ],
)
def test_drafts_that_contradict_the_accepted_tokens_are_refused(
    drafted: list[int], reason: str
) -> None:
    with pytest.raises(RequestFailed, match=reason):
        from_vllm(
            num_spec_steps=2,
            num_accepted_draft_tokens=3,
            per_step_accepted=[1, 2],
            per_step_drafted=drafted,
        )
