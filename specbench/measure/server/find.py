"""Detect a server's models, its software, and the form of requests that it takes.

The user's mistakes show here, before anything is measured.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from specbench.errors import UserError, first_line, printable
from specbench.log.backend import ServerHeader
from specbench.log.machine import UNKNOWN
from specbench.measure.server import NAMES, stream
from specbench.measure.server.client import Client
from specbench.measure.server.engine import load_engine
from specbench.models.cards import ModelCard
from specbench.models.chat import ChatCodec
from specbench.types import Request

_START = (
    "Start one, for example `vllm serve MODEL --port 8000` or `llama-server -m MODEL.gguf --port "
    "8000`, and give its address: --url http://127.0.0.1:8000."
)


HELLO = [{"role": "user", "content": "Hello"}]
PROBE_TOKENS = 8
_MOST_CONTEXT = 2**31


@dataclass(frozen=True, slots=True)
class FoundServer:
    """A server that answers. `context` is None if it does not tell."""

    header: ServerHeader
    protocol: stream.StreamProtocol
    context: int | None = None
    has_counters: bool = False


async def find_server(
    client: Client, card: ModelCard, codec: ChatCodec, *, served_model: str
) -> FoundServer:
    """Ask a server what it is and whether it serves a model, with a short answer to a prompt.

    Raises:
        UserError: nothing answers there, the model is not served, or no form of request works.
    """
    try:
        listed = await client.get("/v1/models")
    except stream.RequestFailed as failure:
        raise UserError(
            f"There is no server at {client.root}: GET {client.root}/v1/models failed. "
            f"{failure.message}",
            _START,
        ) from failure
    model, context = _served(listed, client.root, card, served_model)
    software, protocols = await _software(client)
    probe = stream.ChatRequest(Request(codec.render(HELLO), PROBE_TOKENS), HELLO)
    failures = []
    for protocol in protocols:
        try:
            answer = await client.complete(protocol, model, probe)
        except stream.RequestFailed as failure:
            failures.append(f"{protocol.path}: {failure.message}")
            continue
        header = ServerHeader(
            url=client.root,
            software=software,
            model=model,
            protocol=protocol.name,
            sends_token_ids=answer.token_ids is not None,
        )
        has_counters = bool(await client.counters())  # some appear with the first answer
        return FoundServer(header, protocol, context, has_counters)
    raise UserError(
        f"The server at {client.root} gave no answer. {' '.join(dict.fromkeys(failures))}",
        "It must stream completions of the OpenAI API. See its log.",
    )


def _served(listed: str, root: str, card: ModelCard, served_model: str) -> tuple[str, int | None]:
    """The model's name at the server and its context."""
    try:
        models = msgspec.json.decode(listed, type=_Models).data
    except (msgspec.DecodeError, RecursionError) as error:
        raise UserError(
            f"{root}/v1/models is not a list of models: {printable(listed[:80])}", _START
        ) from error
    names = {served_model} if served_model else {card.name, card.repo, card.repo.rpartition("/")[2]}
    for model in models:
        if model.id in names or (not served_model and model.root in names):
            meta = model.meta or {}
            context = model.max_model_len or meta.get("n_ctx")
            is_known = isinstance(context, int) and 0 < context < _MOST_CONTEXT
            return model.id, context if is_known else None
    serves = ", ".join(model.id for model in models) or "no model"
    wanted = served_model or card.name
    raise UserError(
        f"The server at {root} does not serve {wanted}. It serves {first_line(serves)}.",
        f"If that is {card.name} under another name: --served-model NAME. Else name it by --model: "
        "its tokenizer is needed.",
    )


async def _software(client: Client) -> tuple[str, tuple[stream.StreamProtocol, ...]]:
    """The server's software with its version, and the forms of requests to try, the best first."""
    general = tuple(
        stream.completions(is_chat=is_chat, returns_ids=returns_ids)
        for is_chat in (False, True)
        for returns_ids in (True, False)
    )
    for engine in map(load_engine, NAMES):
        path, key = engine.version
        try:
            values: Any = msgspec.json.decode(await client.get(path))
        except (stream.RequestFailed, msgspec.DecodeError, RecursionError):
            continue
        if isinstance(values, dict) and isinstance(version := values.get(key), str):
            own = (engine.protocol,) if engine.protocol else ()
            return first_line(f"{engine.title} {version or UNKNOWN}"), (*own, *general)
    return UNKNOWN, general


class _Model(msgspec.Struct, frozen=True):
    id: str
    root: str | None = None
    max_model_len: int | None = None
    meta: dict[str, Any] | None = None


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...]
