"""Responses of real engines on `tiny`, as they were recorded: what specbench reads from them."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from functools import cache
from typing import Any, TypeVar

import pytest

import specbench
from specbench.measure.server.client import Client, increase, read_counters
from specbench.measure.server.find import FoundServer, find_server
from specbench.measure.server.records import make_record
from specbench.measure.server.stream import Answer, ChatRequest, Counts, RequestFailed, completions
from specbench.models.cards import find_model
from specbench.models.chat import load_codec
from specbench.types import Record, RecordKey, Request
from specbench.zoo import TINY
from tests.engines.record import ASKED, NUM_TOKENS, QUESTION, long_prompt
from tests.support.replay import RESPONSES, Replay, recorded
from tests.support.stub_server import serving

T = TypeVar("T")

CODEC = load_codec(TINY / "target", find_model("tiny"), "auto")
PROMPT = CODEC.render(ASKED)
WHOLE = ChatRequest(Request(PROMPT, NUM_TOKENS, eos_ids=CODEC.eos_ids), ASKED)
NAMES = sorted(path.stem for path in RESPONSES.glob("*.json"))
SPECULATIVE = [name for name in NAMES if not name.endswith("-vanilla")]
EVERY = pytest.mark.parametrize("name", NAMES)


@cache
def ours() -> tuple[int, ...]:
    engine = specbench.load("tiny", device="cpu", dtype="float32")
    return engine.generate(QUESTION, max_new_tokens=NUM_TOKENS).token_ids


def ask(name: str, work: Callable[[Client, FoundServer], Coroutine[Any, Any, T]]) -> T:
    """The result of `work` on the recorded server, found as a run finds it."""

    models = next(one for one in recorded(name) if one["path"] == "/v1/models")
    model = json.loads(models["text"])["data"][0]["id"]

    async def run(root: str) -> T:
        async with Client(root) as client:
            found = await find_server(client, find_model("tiny"), CODEC, served_model=model)
            return await work(client, found)

    with serving(Replay(recorded(name))) as server:
        return asyncio.run(run(server.root))


def test_engines_are_recorded_with_and_without_speculation() -> None:
    assert "vllm-vanilla" in NAMES and SPECULATIVE
    assert {f"{name.partition('-')[0]}-vanilla" for name in NAMES} <= {*NAMES}


@EVERY
def test_an_engine_is_known_with_its_version_and_sends_token_ids(name: str) -> None:
    async def found(client: Client, found: FoundServer) -> FoundServer:
        return found

    server = ask(name, found)
    software = {"vllm": "vLLM 0.32.0", "llamacpp": "llama.cpp b"}[name.partition("-")[0]]
    assert server.software.startswith(software)
    assert (server.sends_token_ids, server.has_counters) == (True, True)
    assert server.protocol.name == ("llamacpp" if "llama" in name else "completions")


@EVERY
def test_a_greedy_answer_is_ours_and_has_its_steps(name: str) -> None:
    async def complete(client: Client, found: FoundServer) -> Any:
        return await client.complete(found.protocol, found.model, WHOLE)

    answer = ask(name, complete)
    method = name.partition("-")[2]
    key = RecordKey(method, 0.0, "gsm8k", "1", 0, 0, 1)
    request = WHOLE.request
    record = make_record(key, request, answer, CODEC, began=0.0, is_prompt_sent=True)
    assert record.token_ids == ours()
    assert record.stop_reason == "eos"
    assert record.text == CODEC.text(ours())
    assert record.serving and record.serving.server_decode_s
    if method == "vanilla":
        assert set(record.accept_lengths) == {1}
    elif "vllm" in name:
        assert 1 + sum(record.accept_lengths) == record.num_tokens
        assert max(record.accept_lengths) > 2
    assert bool(record.serving.num_accepted) == (method != "vanilla")


@EVERY
def test_an_answer_to_a_chat_is_the_same_text(name: str) -> None:
    async def complete(client: Client, found: FoundServer) -> Any:
        return await client.complete(completions(is_chat=True), found.model, WHOLE)

    answer = ask(name, complete)
    assert answer.text == CODEC.text(ours())
    assert (answer.stop, answer.num_tokens) == ("eos", len(ours()))


@EVERY
def test_a_prompt_that_is_too_long_is_refused_with_the_servers_reason(name: str) -> None:
    async def complete(client: Client, found: FoundServer) -> str:
        too_long = ChatRequest(Request(long_prompt(PROMPT), 8), ASKED)
        with pytest.raises(RequestFailed) as failure:
            await client.complete(found.protocol, found.model, too_long)
        return failure.value.message

    reason = ask(name, complete)
    assert "HTTP status 400" in reason and "context" in reason


@EVERY
def test_counters_grow_by_the_tokens_and_drafts_of_the_answers(name: str) -> None:
    metrics = [one["text"] for one in recorded(name) if one["path"] == "/metrics"]
    assert len(metrics) == 2
    grown = increase(*map(read_counters, metrics))
    assert grown["num_tokens"] >= 2 * len(ours()) - 2
    assert not grown.get("num_cached_tokens")
    text = re.sub(r"((prefix_cache_hits|tokens_cached)_total.*) 0\b", r"\1 7", metrics[0])
    assert read_counters(text)["num_cached_tokens"] == 7
    if name in SPECULATIVE:
        assert grown["num_drafts"] > 0
        assert grown["accepted_at_1"] <= grown["num_drafts"]
        assert grown["num_accepted"] >= grown["accepted_at_1"] > 0


@EVERY
def test_a_recording_names_no_folder(name: str) -> None:
    assert "/tmp/" not in json.dumps(recorded(name)) and "/home/" not in json.dumps(recorded(name))


def test_a_token_that_llama_cpp_holds_back_within_a_character_is_read_from_the_text() -> None:
    text = "a café here"
    ids = (*CODEC.token_ids(text), CODEC.end_id or 0)
    held = next(i for i in range(len(ids)) if CODEC.text(ids[: i + 1]).endswith("\ufffd"))
    sent = (*ids[:held], *ids[held + 1 :])

    def record_of(token_ids: tuple[int, ...], num_tokens: int) -> Record:
        answer = Answer(
            text=text, token_ids=token_ids, num_tokens=num_tokens, prompt_tokens=None, stop="eos",
            sent=0.0, arrivals=(1.0, 2.0), counts=Counts(),
        )  # fmt: skip
        key = RecordKey("vanilla", 0.0, "gsm8k", "1", 0, 0, 1)
        return make_record(key, WHOLE.request, answer, CODEC, began=0.0, is_prompt_sent=True)

    assert record_of(sent, len(ids)).token_ids == ids
    with pytest.raises(RequestFailed, match="counted"):
        record_of(sent, len(ids) + 1)
    with pytest.raises(RequestFailed, match="counted"):
        record_of((*sent[:-2], ids[0], ids[-1]), len(ids))  # not a part of the text
