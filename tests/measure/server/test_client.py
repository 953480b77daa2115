"""One request to a server: its content, its times, and its failures."""

import asyncio
import json
from dataclasses import dataclass
from itertools import pairwise

import pytest
from aiohttp import web

from specbench.errors import UserError
from specbench.measure.server import answer_reader as reader_module
from specbench.measure.server import client as client_module
from specbench.measure.server.address import API_KEY, server_root
from specbench.measure.server.answer_reader import AnswerReader
from specbench.measure.server.client import Client
from specbench.measure.server.engine import load_engine
from specbench.measure.server.find import FoundServer, find_server
from specbench.measure.server.openai_api import completions
from specbench.measure.server.running_setup import make_running_setup
from specbench.measure.server.stream import (
    Answer,
    ChatRequest,
    RequestFailed,
)
from specbench.measure.spec import RunSpec, make_spec
from specbench.models.cards import find_model
from specbench.types import Request, Sampling
from tests.support.backend import Words
from tests.support.stub_server import Stub, serving

ASK = ChatRequest(
    Request((1, 8, 9), 16, Sampling(0.5), frozenset({2}), seed=2**40 + 3),
    [{"role": "user", "content": "hi"}],
)
IDS = (5, 6, 7, 2)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(client_module, "SHORT_S", 0.5)


def find(stub: Stub, served_model: str = "") -> FoundServer:
    async def ask() -> FoundServer:
        async with Client(stub.root, request_s=1) as client:
            model = find_model("tiny")
            return await find_server(client, model, Words(), served_model=served_model)

    return asyncio.run(ask())


def complete(stub: Stub, *, request_s: float = 5) -> Answer:
    """The answer of a server that begins to fail after `find` has described it."""
    fault, stub.fault = stub.fault, ""
    server, stub.fault = find(stub), fault
    stub.requests.clear()

    async def ask() -> Answer:
        async with Client(stub.root, request_s=request_s) as client:
            return await client.complete(server.protocol, server.header.model, ASK)

    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("engine", "protocol", "software", "ids"),
    [("sglang", "sglang", "SGLang 0.5.23", IDS), ("plain", "chat", "unknown", None)],
)
def test_a_server_is_recognised_and_asked_in_a_form_that_it_takes(
    engine: str, protocol: str, software: str, ids: tuple[int, ...] | None
) -> None:
    with serving(Stub(engine)) as stub:
        server, answer = find(stub), complete(stub)
    assert (server.header.protocol, server.header.software) == (protocol, software)
    assert server.header.sends_token_ids == bool(ids)
    assert (answer.token_ids, answer.text, answer.num_tokens) == (ids, "fgh", 4)
    assert (answer.prompt_tokens, answer.stop) == (3 if ids else 1, "eos")
    assert stub.requests[0].get("messages") == (None if ids else ASK.messages)


def test_tensorrt_llm_is_not_taken_for_vllm_by_its_version() -> None:
    """Both engines give their version at one path. TensorRT-LLM takes tokens and sends text."""
    with serving(Stub("trtllm")) as stub:
        server, answer = find(stub), complete(stub)
    assert (server.header.protocol, server.header.software) == ("completions", "TensorRT-LLM 1.4.0")
    assert (answer.token_ids, answer.text, answer.prompt_tokens) == (None, "fgh", 3)


SAMPLING = "rejection_sample_method"
STRICT = {"speculative_accept_threshold_single": 1.0, "speculative_accept_threshold_acc": 1.0}
ACC_09 = {**STRICT, "speculative_accept_threshold_acc": 0.9}


@pytest.mark.parametrize(
    ("engine", "info", "is_lossy"),
    [
        ("sglang", {"speculative_algorithm": "EAGLE3", **STRICT}, False),
        ("sglang", {"speculative_algorithm": "EAGLE3", **ACC_09}, True),
        ("sglang", {"speculative_algorithm": None, **ACC_09}, False),
        ("sglang", {"speculative_algorithm": "NGRAM"}, False),
        ("vllm", {}, False),  # without VLLM_SERVER_DEV_MODE=1
        ("vllm", {"vllm_config": {"speculative_config": None}}, False),
        ("vllm", {"vllm_config": {"speculative_config": {SAMPLING: "standard"}}}, False),
        ("vllm", {"vllm_config": {"speculative_config": {SAMPLING: "fly"}}}, True),
        ("vllm", {"speculative_config": {SAMPLING: "synthetic"}}, True),
        ("vllm", {"vllm_config": "VllmConfig(...)"}, False),
    ],
)
def test_a_running_server_may_say_that_it_is_lossy(
    engine: str, info: dict[str, object], is_lossy: bool
) -> None:
    with serving(Stub(engine, info=info)) as stub:
        assert find(stub).is_lossy is is_lossy
        spec = make_spec(model="tiny", urls=(stub.root,), labels=("eagle3",), backend="server")
        method = make_running_setup(spec, is_offline=True).describe().methods["eagle3"]
    assert method.is_lossless is not is_lossy


def test_old_settings_of_sglang_are_at_another_path() -> None:
    info = {"speculative_algorithm": "EAGLE3", **ACC_09}
    with serving(Stub("sglang", info_path="/get_server_info", info=info)) as stub:
        assert find(stub).is_lossy


def test_a_request_overrides_the_models_sampling_defaults() -> None:
    body = completions().body("tiny", ASK)
    assert body["prompt"] == [1, 8, 9]
    assert (body["temperature"], body["top_p"], body["seed"]) == (0.5, 1.0, 3)
    assert (body["max_tokens"], body["stream"], body["return_token_ids"]) == (16, True, True)
    assert body["stream_options"] == {"include_usage": True}
    assert not {"stop", "ignore_eos", "min_tokens"} & set(body)
    assert (body["top_k"], body["min_p"], body["repetition_penalty"]) == (-1, 0.0, 1.0)
    drawn = ChatRequest(Request((1, 8), 16, Sampling(1.0, top_k=40)), [])
    assert completions().body("tiny", drawn)["top_k"] == 40
    assert not {"top_k", "min_p"} & set(completions(returns_ids=False).body("tiny", ASK))
    llamacpp = load_engine("llamacpp").protocol
    assert llamacpp is not None
    body = llamacpp.body("tiny", ASK)
    assert (body["cache_prompt"], body["top_k"], body["min_p"]) == (False, 0, 0.0)


def test_times_come_from_the_client_and_grow() -> None:
    with serving(Stub(delay_s=0.005)) as stub:
        answer = complete(stub)
    times = (answer.sent, *answer.arrivals)
    assert 1 <= len(answer.arrivals) <= 4, "a busy client reads several tokens at once"
    assert all(a < b for a, b in pairwise(times))
    assert times[-1] - times[0] >= 4 * 0.004


FAULTS = {
    "500": "HTTP status 500: boom",
    "400": "HTTP status 400: prompt too long",
    "429": "HTTP status 429: too many requests The request was sent 4 times",
    "html answer": "answered with text/html, not with a stream of events: <html>bad gateway</html>",
    "half": "broke off after 2 events with tokens",
    "drops": "closed the connection before the end of its answer. 2 events with tokens had arrived",
    "garbage": "an event that is not an answer .*{not json",
    "error event": "reported an error: EngineCore died",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_only_a_refused_request_is_tried_again(fault: str) -> None:
    with serving(Stub(fault=fault)) as stub, pytest.raises(RequestFailed, match=FAULTS[fault]):
        complete(stub)
    assert len(stub.requests) == (4 if fault == "429" else 1)


@pytest.mark.parametrize("fault", ["hangs", "stalls"])
def test_a_request_to_a_hanging_server_ends_at_the_time_limit(fault: str) -> None:
    with (
        serving(Stub(fault=fault)) as stub,
        pytest.raises(RequestFailed, match=r"No complete answer within 0.05 s: [02] events"),
    ):
        complete(stub, request_s=0.05)
    assert len(stub.requests) == 1


def test_a_refused_request_is_sent_again_counted_and_timed_from_its_first_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "FIRST_WAIT_S", 0.05)
    with serving(Stub(fault="429", num_faults=2)) as stub:
        answer = complete(stub)
    assert (answer.num_retries, answer.token_ids, len(stub.requests)) == (2, IDS, 3)
    assert answer.arrivals[0] - answer.sent >= 0.05


@pytest.mark.parametrize("is_refused", [True, False])
def test_a_server_that_is_busy_is_alive(is_refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def get(self: Client, path: str) -> str:
        raise RequestFailed("HTTP status 503", is_refused=is_refused)

    monkeypatch.setattr(Client, "get", get)
    client = Client("http://127.0.0.1:1", request_s=1)
    asyncio.run(client.check_alive())
    assert (client.dead_reason is None) == is_refused


def test_reasoning_is_a_part_of_the_answer_and_is_counted_once() -> None:
    delta = {"reasoning": "So ", "reasoning_content": "So ", "content": "four."}
    event = completions(is_chat=True).read(json.dumps({"choices": [{"delta": delta}]}).encode())
    assert event.text == "So four."


def test_a_model_may_be_served_under_another_name() -> None:
    with serving(Stub(model="llama-3")) as stub:
        assert find(stub, served_model="llama-3").header.model == "llama-3"


def test_an_address_is_taken_with_and_without_v1_and_scheme() -> None:
    assert server_root("host:8000/v1/") == server_root("http://host:8000") == "http://host:8000"
    assert server_root("https://host/proxy/v1") == "https://host/proxy"


DEEP, LONG = "[" * 100_000, "9" * 5000
MANY = "x" * (5 * 2**20)
POSITION = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="%s"} 1\n'


@dataclass
class Odd(Stub):
    """A server that describes itself like this."""

    version: str = '{"version": "0.32.0"}'
    metrics: str = "vllm:generation_tokens_total 1\n"
    context_text: str = "4096"

    def app(self) -> web.Application:
        app = web.Application()
        models = f'{{"data": [{{"id": "tiny", "meta": {{"n_ctx": {self.context_text}}}}}]}}'
        about = {"/v1/models": models, "/version": self.version, "/metrics": self.metrics}
        for path, text in about.items():

            async def answer(request: web.Request, text: str = text) -> web.Response:
                return web.Response(text=text)

            app.router.add_get(path, answer)
        app.router.add_post("/v1/completions", self._complete)
        return app


@pytest.mark.parametrize(
    ("values", "software", "has_counters", "context"),
    [
        ({}, "vLLM 0.32.0", True, 4096),
        ({"version": '{"version": ' + DEEP}, "unknown", True, 4096),
        ({"version": f'{{"version": {LONG}}}'}, "unknown", True, 4096),
        ({"version": f'{{"version": "{MANY}"}}'}, "unknown", True, 4096),
        ({"version": f'{{"version": "{LONG}"}}'}, f"vLLM {LONG}"[:159] + "…", True, 4096),
        ({"metrics": MANY}, "vLLM 0.32.0", False, 4096),
        ({"metrics": "vllm:generation_tokens_total " + LONG}, "vLLM 0.32.0", False, 4096),
        ({"metrics": POSITION % LONG + POSITION % "²"}, "vLLM 0.32.0", False, 4096),
        ({"context_text": "-5"}, "vLLM 0.32.0", True, None),
        ({"context_text": "1" * 3000}, "vLLM 0.32.0", True, None),
    ],
)
def test_the_description_of_a_server_is_bounded(
    values: dict[str, str], software: str, has_counters: bool, context: int | None
) -> None:
    with serving(Odd(**values)) as stub:  # type: ignore[arg-type]
        server = find(stub)
    assert (server.header.software, server.context) == (software, context)
    assert server.has_counters == has_counters


@pytest.mark.parametrize(
    ("stub", "reason"),
    [
        (Stub(fault="html"), "list of models"),
        (Stub(model="llama-3"), r"does not serve tiny\. It serves llama-3"),
        (Stub(fault="500"), r"gave no answer\. /v1/completions: .* 500: boom"),
        (Stub(context=-5), r"has a max_model_len of -5 for tiny"),
        (Stub(context=0), r"has a max_model_len of 0 for tiny"),
        (Odd(context_text=DEEP), "list of models"),
        (Odd(context_text='"' + MANY), "/v1/models has more than 4 MiB"),
    ],
)
def test_a_server_of_something_else_is_refused_with_the_reason(stub: Stub, reason: str) -> None:
    with serving(stub), pytest.raises(UserError, match=reason) as refused:
        find(stub)
    assert len(refused.value.message) < 500


@pytest.mark.parametrize("choice", ['"text": "", "token_ids": [5]', f'"text": "{LONG}"'])
def test_an_endless_answer_fails(choice: str) -> None:
    piece = f'data: {{"choices": [{{{choice}}}]}}\n'.encode()
    with pytest.raises(RequestFailed, match="went on after the 16 tokens that it was asked for"):
        feed(piece, times=100)
    with pytest.raises(RequestFailed, match="broke off"):
        feed(piece, times=4)


def test_the_bytes_of_an_answer_and_the_texts_in_messages_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reader_module, "MOST_BYTES", 1000)
    with pytest.raises(RequestFailed, match="an answer of more than"):
        feed(b'data: {"choices": []}\n', times=100)
    for event in (f'{{"error": "{LONG}"}}', f'{{"choices": [{{"finish_reason": "{LONG}"}}]}}'):
        with pytest.raises(RequestFailed) as failed:
            monkeypatch.setattr(reader_module, "MOST_BYTES", 10**6)
            feed(f"data: {event}\n".encode())
        assert LONG[:50] in failed.value.message and len(failed.value.message) < 300


END = b'data: {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}\n\n'


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ('\ufeffdata: {"choices": [{"text": "ab"}]}\n', "ab"),
        ('data: \ufeff{"choices": [{"text": "ab"}]}\n', "ab"),
        ('\ufeff: a comment\ndata: {"choices": [{"text": "\ufeffb"}]}\n', "\ufeffb"),
        ('data: {"choices": null, "usage": null}\ndata: {"choices": [{"text": "ab"}]}\n', "ab"),
        ('data: {"choices": [{"index": 1, "text": "x"}, {"index": 0, "text": "ab"}]}\n', "ab"),
        (
            'data: {"choices": [{"index": 2, "text": "x", "finish_reason": "length"}]}\n'
            'data: {"choices": [{"index": 0, "text": "ab"}]}\n',
            "ab",
        ),
        ('data: {"choices": [{"index": null, "text": "ab"}]}\n', "ab"),
    ],
)
def test_the_first_choice_of_any_format_is_the_answer(events: str, text: str) -> None:
    answer = feed(events.encode() + END)
    assert (answer.text, answer.stop) == (text, "eos")


def feed(piece: bytes, times: int = 1) -> Answer:
    reader = AnswerReader(completions(), 0.0, 16)
    for _ in range(times):
        reader.feed(piece, 1.0)
    return reader.finish()


@pytest.mark.parametrize(
    "url",
    ["http://me:hunter22@host/v1", "hunter22@host", "host?key=hunter22", "http://h:x/#hunter22"],
)
def test_an_address_with_a_password_or_a_key_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(UserError, match="has a user, a password or a key") as refused:
        RunSpec(backend="server", urls=("http://host", url))
    shown = f"{refused.value.message} {refused.value.hint}"
    assert "hunter22" not in shown and API_KEY in shown
