"""Recorded responses of real engines on `tiny`, as specbench reads them."""

import asyncio
import json
import re
from functools import cache
from typing import NamedTuple

import pytest

import specbench
from specbench.measure.server import counters
from specbench.measure.server.client import Client
from specbench.measure.server.find import FoundServer, find_server
from specbench.measure.server.openai_api import completions
from specbench.measure.server.records import make_record
from specbench.measure.server.stream import Answer, ChatRequest, Counts, RequestFailed
from specbench.models.cards import find_model
from specbench.types import Record, RecordKey, Request
from tests.engines.record import ASKED, NUM_TOKENS, QUESTION, long_prompt
from tests.support.replay import RESPONSES, Replay, recorded
from tests.support.stub_server import serving
from tests.support.tiny import CODEC

PROMPT = CODEC.render(ASKED)
WHOLE = ChatRequest(Request(PROMPT, NUM_TOKENS, eos_ids=CODEC.eos_ids), ASKED)
TOO_LONG = ChatRequest(Request(long_prompt(PROMPT), 8), ASKED)
NAMES = sorted(path.stem for path in RESPONSES.glob("*.json"))


@cache
def our_ids() -> tuple[int, ...]:
    engine = specbench.load("tiny", device="cpu", dtype="float32")
    return engine.generate(QUESTION, max_new_tokens=NUM_TOKENS).token_ids


class Said(NamedTuple):
    """A recorded server as a run finds it, its answers, and the reason why it refuses a long
    prompt.
    """

    server: FoundServer
    answer: Answer
    chat: Answer
    reason: str


def said(name: str) -> Said:
    models = next(exchange for exchange in recorded(name) if exchange["path"] == "/v1/models")
    model = json.loads(models["text"])["data"][0]["id"]

    async def ask(root: str) -> Said:
        async with Client(root) as client:
            server = await find_server(client, find_model("tiny"), CODEC, served_model=model)
            answer = await client.complete(server.protocol, server.header.model, WHOLE)
            chat = await client.complete(completions(is_chat=True), server.header.model, WHOLE)
            with pytest.raises(RequestFailed) as failure:
                await client.complete(server.protocol, server.header.model, TOO_LONG)
            return Said(server, answer, chat, failure.value.message)

    with serving(Replay(recorded(name))) as server:
        return asyncio.run(ask(server.root))


def record_of(method: str, answer: Answer) -> Record:
    key = RecordKey(method, 0.0, "gsm8k", "1", 0, 0, 1)
    return make_record(key, WHOLE.request, answer, CODEC, began=0.0, is_prompt_sent=True)


def test_engines_are_recorded_with_and_without_speculation_and_without_folders() -> None:
    assert {"vllm-vanilla", "vllm-eagle3"} <= {*NAMES}
    assert {f"{name.partition('-')[0]}-vanilla" for name in NAMES} <= {*NAMES}
    for name in NAMES:
        text = json.dumps(recorded(name))
        assert "/tmp/" not in text and "/home/" not in text


@pytest.mark.parametrize("name", NAMES)
def test_a_recorded_engine_gives_our_answer(name: str) -> None:
    engine, _, method = name.partition("-")
    server, answer, chat, reason = said(name)
    record = record_of(method, answer)
    software = {"vllm": "vLLM 0.32.0", "llamacpp": "llama.cpp b"}[engine]
    assert server.header.software.startswith(software)
    assert (server.header.sends_token_ids, server.has_counters) == (True, True)
    assert server.protocol.name == ("llamacpp" if engine == "llamacpp" else "completions")
    assert record.token_ids == our_ids()
    assert record.stop_reason == "eos"
    assert record.text == chat.text == CODEC.text(our_ids())
    assert (chat.stop, chat.num_tokens) == ("eos", len(our_ids()))
    assert record.serving and record.serving.server_decode_s
    assert record.serving.reported_tokens is None
    if method == "vanilla":
        assert set(record.accept_lengths) == {1}
    elif engine == "vllm":
        assert 1 + sum(record.accept_lengths) == record.num_tokens
        assert max(record.accept_lengths) > 2
    else:
        assert record.accept_lengths == ()
    assert bool(record.serving.num_accepted) == (method != "vanilla")
    assert "HTTP status 400" in reason and "context" in reason, "the prompt is too long"


@pytest.mark.parametrize("name", NAMES)
def test_counters_grow_by_the_tokens_and_drafts_of_the_answers(name: str) -> None:
    metrics = [exchange["text"] for exchange in recorded(name) if exchange["path"] == "/metrics"]
    assert len(metrics) == 2
    grown = counters.increase(*map(counters.read_counters, metrics))
    assert grown["num_tokens"] >= 2 * len(our_ids()) - 2
    assert not grown.get("num_cached_tokens")
    text = re.sub(r"((prefix_cache_hits|tokens_cached)_total.*) 0\b", r"\1 7", metrics[0])
    assert counters.read_counters(text)["num_cached_tokens"] == 7
    if not name.endswith("-vanilla"):
        assert grown["num_drafts"] > 0
        assert grown["accepted_at_1"] <= grown["num_drafts"]
        assert grown["num_accepted"] >= grown["accepted_at_1"] > 0


def test_a_token_that_llama_cpp_holds_back_is_read_from_the_text() -> None:
    text = "a café here"
    ids = (*CODEC.token_ids(text), CODEC.end_id or 0)
    held = next(i for i in range(len(ids)) if CODEC.text(ids[: i + 1]).endswith("\ufffd"))
    sent = (*ids[:held], *ids[held + 1 :])

    def read(token_ids: tuple[int, ...], num_tokens: int) -> Record:
        answer = Answer(text, token_ids, "eos", num_tokens, None, Counts(), 0.0, (1.0, 2.0))
        return record_of("vanilla", answer)

    assert read(sent, len(ids)).token_ids == ids
    assert read(ids[:-1], len(ids)).token_ids == ids, "the end token is counted and not sent"
    with pytest.raises(RequestFailed, match="counted"):
        read(sent, len(ids) + 1)
    with pytest.raises(RequestFailed, match="counted"):
        read((*sent[:-2], ids[0], ids[-1]), len(ids))  # a token that the text does not have there
