"""A local server that answers as the engines do, with the same chunks, counters and faults.

It does not know the tiny model's answers. A test says which tokens it sends.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web

TEXT = "abcdefghijklmnopqrstuvwxyz"


class Server:
    """A server for `serving`, which sets its address and the function that stops it."""

    root: str
    stop: Callable[[], object]

    def app(self) -> web.Application:
        raise NotImplementedError


S = TypeVar("S", bound=Server)


@dataclass
class Stub(Server):
    """The behaviour of the server.

    `answer` maps the tokens of a prompt to the tokens of its answer. `count` returns the number of
    tokens that the server reports for a prompt, given as tokens or as messages. The event with the
    counts comes `late_s` seconds after the others.

    `fault` names what goes wrong from request `fault_from` on, for `num_faults` requests.
    """

    engine: str = "vllm"
    model: str = "tiny"
    context: int | None = 4096
    answer: Callable[[Sequence[int]], Sequence[int]] = lambda prompt: (5, 6, 7, 2)
    eos: int = 2
    accepted_per_step: Sequence[int] | None = None
    count: Callable[[Sequence[Any]], int] = len
    info_path: str = "/server_info"
    info: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""
    fault_from: int = 0
    num_faults: int = 10**9
    delay_s: float = 0.0
    late_s: float = 0.0
    requests: list[dict[str, Any]] = field(default_factory=list)
    most_at_once: int = 0
    counters: dict[str, float] = field(default_factory=dict)
    root: str = ""
    active: set[int] = field(default_factory=set)
    stop: Callable[[], object] = lambda: None

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/completions", self._complete)
        app.router.add_post("/v1/chat/completions", self._complete)
        if self.engine == "trtllm":
            app.router.add_get("/version", self._say({"version": "1.4.0"}))
        if self.engine == "vllm":
            app.router.add_get("/version", self._say({"version": "0.32.0"}))
            if self.info:
                app.router.add_get(self.info_path, self._say(self.info))
        if self.engine == "llamacpp":
            app.router.add_get("/props", self._say({"build_info": "b11434"}))
            app.router.add_post("/completion", self._complete)
        if self.engine == "sglang":
            app.router.add_get(self.info_path, self._say({"version": "0.5.23", **self.info}))
            app.router.add_post("/generate", self._complete)
        return app

    def _say(self, values: Mapping[str, Any]) -> Any:
        async def answer(request: web.Request) -> web.Response:
            return web.json_response(values)

        return answer

    async def _models(self, request: web.Request) -> web.Response:
        if self.fault == "html":
            return web.Response(text="<html>welcome</html>", content_type="text/html")
        owner = "tensorrt_llm" if self.engine == "trtllm" else "someone"
        about = {"id": self.model, "max_model_len": self.context, "owned_by": owner}
        return web.json_response({"object": "list", "data": [about]})

    async def _metrics(self, request: web.Request) -> web.Response:
        if not self.counters:
            raise web.HTTPNotFound
        prefix = {"vllm": "vllm:", "llamacpp": "llamacpp:"}.get(self.engine, "sglang:")
        lines = [f'{prefix}{name}{{engine="0"}} {value}' for name, value in self.counters.items()]
        return web.Response(text="# HELP some text\n" + "\n".join(lines) + "\n")

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if self.engine == "plain" and "messages" not in body:
            return web.json_response({"error": {"message": "prompt must be a string"}}, status=400)
        number = len(self.requests)
        self.requests.append(body)
        is_faulty = self.fault_from <= number < self.fault_from + self.num_faults
        fault = self.fault if is_faulty else ""
        if fault in ("429", "500", "400"):
            message = {"429": "too many requests", "500": "boom", "400": "prompt too long"}[fault]
            return web.json_response({"error": {"message": message}}, status=int(fault))
        if fault == "html answer":
            return web.Response(text="<html>bad gateway</html>", content_type="text/html")
        self.active.add(number)
        self.most_at_once = max(self.most_at_once, len(self.active))
        try:
            return await self._stream(request, body, fault, number)
        finally:
            self.active.discard(number)

    async def _stream(
        self, request: web.Request, body: Mapping[str, Any], fault: str, number: int
    ) -> web.StreamResponse:
        if fault == "hangs":
            await asyncio.sleep(3600)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        prompt = body.get("prompt") or body.get("input_ids") or body.get("messages") or ()
        ids = list(self.answer(prompt))
        is_eos = ids[-1] == self.eos
        if self.counters:
            self.counters["generation_tokens_total"] += len(ids)
            accepted = sum(self.accepted_per_step or ())
            self.counters["spec_decode_num_accepted_tokens_total"] += accepted
            self.counters["spec_decode_num_drafts_total"] += len(self.accepted_per_step or ())
        chunks = chunks_of(self, request.path, prompt, ids, is_eos=is_eos)
        for position, chunk in enumerate(chunks):
            if position == 2 and fault:
                if fault == "drops" and request.transport:
                    request.transport.abort()
                    return response
                if fault == "half":
                    await response.write_eof()
                    return response
                if fault == "stalls":
                    await asyncio.sleep(3600)
                if fault == "garbage":
                    chunk = "{not json"
                if fault == "error event":
                    chunk = json.dumps({"error": {"message": "EngineCore died", "code": 500}})
            if fault == "wrong count" and '"completion_tokens"' in chunk:
                chunk = chunk.replace(f'"completion_tokens": {len(ids)}', '"completion_tokens": 99')
            is_late = '"usage"' in chunk
            await asyncio.sleep(self.late_s if is_late and self.late_s else self.delay_s)
            await response.write(f"data: {chunk}\n\n".encode())
        self.active.discard(number)  # before the client can know
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


def chunks_of(
    stub: Stub, path: str, prompt: Sequence[int], ids: Sequence[int], *, is_eos: bool
) -> Iterator[str]:
    """The chunks of an answer in the engine's format, one per token."""
    finish = "stop" if is_eos else "length"
    texts = ["" if token == stub.eos else TEXT[token % 26] for token in ids]
    usage = {"prompt_tokens": stub.count(prompt), "completion_tokens": len(ids)}
    if path == "/completion":  # llama.cpp counts the end token and does not send it
        sent = ids[:-1] if is_eos else ids
        for token in sent:
            yield json.dumps({"index": 0, "content": TEXT[token % 26], "tokens": [token]})
        timings: dict[str, Any] = {"prompt_ms": 3.0, "predicted_ms": 9.0, "predicted_n": len(ids)}
        if stub.accepted_per_step is not None:
            timings |= {"draft_n": 8, "draft_n_accepted": sum(stub.accepted_per_step)}
        yield json.dumps({
            "content": "", "tokens": [], "stop": True, "stop_type": "eos" if is_eos else "limit",
            "tokens_predicted": len(ids), "tokens_evaluated": len(prompt), "timings": timings,
        })  # fmt: skip
        return
    if path == "/generate":  # SGLang repeats the text, and the tokens with some settings
        for i in range(len(ids)):
            is_last = i == len(ids) - 1
            meta: dict[str, Any] = {
                "prompt_tokens": len(prompt), "completion_tokens": i + 1,
                "finish_reason": {"type": finish} if is_last else None,
            }  # fmt: skip
            if stub.accepted_per_step is not None:
                meta["spec_verify_ct"] = len(stub.accepted_per_step)
            yield json.dumps(
                {"text": "".join(texts[: i + 1]), "output_ids": ids[: i + 1], "meta_info": meta}
            )
        return
    has_ids = stub.engine == "vllm"
    for i, (token, text) in enumerate(zip(ids, texts, strict=True)):
        choice: dict[str, Any] = {"index": 0, "finish_reason": None}
        choice |= {"delta": {"content": text}} if "chat" in path else {"text": text}
        choice |= {"token_ids": [token]} if has_ids else {}
        choice |= {"finish_reason": finish} if i == len(ids) - 1 else {}
        yield json.dumps({"id": "cmpl-1", "choices": [choice]})
    final: dict[str, Any] = {"id": "cmpl-1", "choices": [], "usage": usage}
    if stub.accepted_per_step is not None and has_ids:
        final["metrics"] = {
            "time_to_first_token_ms": 17.4, "generation_time_ms": 56.9,
            "speculative_decoding": {
                "num_spec_steps": len(stub.accepted_per_step),
                "num_accepted_draft_tokens": sum(stub.accepted_per_step),
                "per_step_accepted": list(stub.accepted_per_step),
            },
        }  # fmt: skip
    yield json.dumps(final)


@contextmanager
def serving(stub: S) -> Iterator[S]:
    """Serve the stub on its own port, in a thread, until the block ends."""
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def serve() -> None:
        runner = web.AppRunner(stub.app(), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        stub.root = f"http://127.0.0.1:{runner.addresses[0][1]}"
        stop = asyncio.Event()
        stub.stop = lambda: loop.call_soon_threadsafe(stop.set)
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield stub
    finally:
        stub.stop()
        thread.join(10)
        loop.close()
