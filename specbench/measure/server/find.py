"""Find out which software a server runs, which model it serves, and which requests it takes.

The user's mistakes show here, before a run starts.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from specbench.errors import UserError, first_line, printable
from specbench.log.backend import ServerHeader, counted_drafts
from specbench.log.machine import UNKNOWN
from specbench.measure.requests import user
from specbench.measure.server import NAMES
from specbench.measure.server.baseline import answer_drafts
from specbench.measure.server.client import Client
from specbench.measure.server.counters import SETTLE_S, increase
from specbench.measure.server.engine import Engine, load_engine
from specbench.measure.server.openai_api import completions
from specbench.measure.server.prompt_counts import UNKNOWN_OFFSET, PromptOffset, find_offset
from specbench.measure.server.stream import ChatRequest, RequestFailed, StreamProtocol
from specbench.models.cards import ModelCard
from specbench.models.chat import ChatCodec
from specbench.types import Request

HELLO = [user("Hello")]
"""The chat that is sent to a server to find out what it is."""
PROBE_TOKENS = 8
"""The most tokens of the answer to `HELLO`."""
_HOW_TO_START = (
    "Start one, for example `vllm serve MODEL --port 8000` or `llama-server -m MODEL.gguf --port "
    "8000`, and give its address: --url http://127.0.0.1:8000."
)
_MOST_CONTEXT = 2**31
"""A reported context of this many tokens or more counts as a mistake of the server."""


@dataclass(frozen=True, slots=True)
class FoundServer:
    """The properties of a server that answers."""

    header: ServerHeader
    """The server's part of a run's header."""
    protocol: StreamProtocol
    """The protocol of the requests that it takes."""
    context: int | None = None
    """Length of the server's context in tokens; None if it does not report it."""
    has_counters: bool = False
    """True if the server counts its tokens or drafts in metrics that we can read."""
    offset: PromptOffset = UNKNOWN_OFFSET
    """Tokens that the server adds to the prompts that are rendered here."""
    num_drafts: int = 0
    """The drafts that the server counted for its first answer, or 0 without counts."""
    is_lossy: bool = False
    """True if its settings have a rule of acceptance that changes the output's distribution."""


async def find_server(
    client: Client, card: ModelCard, codec: ChatCodec, *, served_model: str
) -> FoundServer:
    """Find out what a server is, and whether it serves a model, by requesting a short answer.

    The protocols (forms of requests) are tried in order until one works.

    Args:
        client: sends requests to the server, whose address is `client.root`.
        card: the model that it should serve.
        codec: chats to tokens and back, for this model.
        served_model: the model's name at the server, if it is known; else empty.

    Raises:
        UserError: no server answers, it does not serve the model, or no protocol works.
    """
    # The model as the server lists it, with its name there as `id`.
    model = _served_model(await _models_at(client), client.root, card, served_model)
    context = _context(model, client.root)
    software = await _software(client, model.owned_by)  # name with version, and protocols to try
    # HELLO, a chat of one message, as tokens and as messages: a protocol sends one of the two.
    probe = ChatRequest(Request(codec.render(HELLO), max_new_tokens=PROBE_TOKENS), HELLO)
    failures: list[str] = []  # the path and the reason, for each protocol that failed
    for protocol in software.protocols:
        counters_before = await client.counters()
        try:
            answer = await client.complete(protocol, model.id, probe)
        except RequestFailed as failure:
            failures.append(f"{protocol.path}: {failure.message}")
            continue
        await asyncio.sleep(SETTLE_S)  # until the counters include the answer
        counters = await client.counters()  # counts by name; some appear with the first answer
        growth = increase(counters_before, counters)
        header = ServerHeader(
            url=client.root,
            software=software.name,
            model=model.id,
            protocol=protocol.name,
            sends_token_ids=answer.token_ids is not None,  # else only text
        )
        offset = UNKNOWN_OFFSET  # tokens that the server adds to prompts as rendered here
        if not protocol.takes_tokens:  # the server renders chats itself
            num_sent = len(probe.request.prompt_ids)
            offset = await find_offset(client, protocol, codec, model.id, answer, num_sent)
        return FoundServer(
            header,
            protocol,
            context=context,
            has_counters=bool(counters),
            offset=offset,
            # The drafts of the answer, by its own counts or by the server's counters.
            num_drafts=max(answer_drafts(answer.counts), counted_drafts(growth)),
            is_lossy=await _is_lossy(client, software),
        )
    reasons = " ".join(dict.fromkeys(failures))  # without repetitions
    raise UserError(
        f"The server at {client.root} gave no answer. {reasons}",
        "The server must stream completions through the OpenAI API. See its log.",
    )


async def _models_at(client: Client) -> str:
    """The list of models of a server, in JSON. Raises UserError if it does not answer."""
    try:
        return await client.get("/v1/models")
    except RequestFailed as failure:
        raise UserError(
            f"There is no server at {client.root}: GET {client.root}/v1/models failed. "
            f"{failure.message}",
            _HOW_TO_START,
        ) from failure


class _ListedModel(msgspec.Struct, frozen=True):
    """A model as a server lists it."""

    id: str
    """The model's name on the server."""
    root: str | None = None
    """The model's folder or repository."""
    owned_by: str | None = None
    """The model's owner. Some servers give their own name."""
    max_model_len: int | None = None
    """Length of its context in tokens."""
    meta: dict[str, Any] | None = None
    """Other facts. llama.cpp gives the context's length here."""


class _ListedModels(msgspec.Struct, frozen=True):
    """The answer at `/v1/models`."""

    data: tuple[_ListedModel, ...]


def _served_model(
    models_json: str, address: str, card: ModelCard, served_model: str
) -> _ListedModel:
    """A card's model in the list of models of a server.

    Args:
        models_json: the server's answer at `/v1/models`.
        address: the server's address, for messages.
        card: the model: its name for `--model`, and its repository (a Hub id or a path).
        served_model: the model's name at the server, by `--served-model` or as specbench started
            the server; else empty.

    Raises:
        UserError: the answer is not a list of models, or the list lacks the model.
    """
    try:
        models = msgspec.json.decode(models_json, type=_ListedModels).data
    except (msgspec.DecodeError, RecursionError) as error:
        raise UserError(
            f"{address}/v1/models is not a list of models: {printable(models_json[:80])}",
            _HOW_TO_START,
        ) from error
    # Names that the model may have at the server; the last is the repository without its owner.
    names = {card.name, card.repo, card.repo.rpartition("/")[2]}
    if served_model:
        names = {served_model}
    for model in models:
        if model.id in names or (not served_model and model.root in names):
            return model
    listed_names = ", ".join(model.id for model in models) or "no model"
    wanted = served_model or card.name
    raise UserError(
        f"The server at {address} does not serve {wanted}. It serves {first_line(listed_names)}.",
        f"If that is {card.name} under another name, give --served-model NAME. Otherwise give the "
        "served model as --model, because its tokenizer is needed.",
    )


def _context(model: _ListedModel, address: str) -> int | None:
    """The length of a model's context at a server in tokens. None if not reported, or not credible.

    Raises:
        UserError: `max_model_len`, which bounds every request, is not positive.
    """
    context = model.max_model_len
    if context is not None and context <= 0:
        raise UserError(
            f"{address}/v1/models has a max_model_len of {context} for {first_line(model.id)}.",
            "Start the server with a context that holds prompts and answers.",
        )
    context = context or (model.meta or {}).get("n_ctx")  # llama.cpp's name
    if isinstance(context, int) and 0 < context < _MOST_CONTEXT:
        return context
    return None


class _Software(NamedTuple):
    """The software that a server runs."""

    name: str
    """The server's name and version; "unknown" if it does not report one."""
    protocols: Sequence[StreamProtocol]
    """The protocols to try, the best first."""
    engine: Engine | None = None
    """The server's engine; None if it is not one of those in `engines`."""
    version_path: str = ""
    """The path at which it gave its version; empty if it gave none."""


async def _software(client: Client, owner: str | None) -> _Software:
    """The software of a server with its version, and the protocols to try with it.

    `client` sends requests to the server. `owner` is the owner that the server names for its
    model, or None. Each engine gives its version at a particular path, in JSON with a particular
    key (`engine.version_keys`). The server's engine is the first one whose version is found. If the
    engine has its own protocol, this is tried before those of the OpenAI API. TensorRT-LLM, and
    servers that give no version, have no engine here: they get the protocols of the OpenAI API.
    """
    # Prompts are sent as tokens, or as messages (`is_chat`). Answers have token ids, or only text.
    openai_protocols = (  # the most exact one first
        completions(),
        completions(returns_ids=False),
        completions(is_chat=True),
        completions(is_chat=True, returns_ids=False),
    )
    if owner == "tensorrt_llm":  # it gives its version at vLLM's path
        version = await _version_at(client, "/version", "version")
        return _Software(first_line(f"TensorRT-LLM {version or UNKNOWN}"), openai_protocols)
    for name in NAMES:  # names of all engines, such as vllm
        engine = load_engine(name)
        for path, key in engine.version_keys.items():
            version = await _version_at(client, path, key)
            if version is not None:
                title = first_line(f"{engine.title} {version or UNKNOWN}")  # one line, for tables
                own_protocols = (engine.protocol,) if engine.protocol else ()
                return _Software(title, (*own_protocols, *openai_protocols), engine, path)
    return _Software(UNKNOWN, openai_protocols)


async def _version_at(client: Client, path: str, key: str) -> str | None:
    """The text that the JSON object at a path has for a key, or None if it has none."""
    version = (await _object_at(client, path)).get(key)
    return version if isinstance(version, str) else None


async def _is_lossy(client: Client, software: _Software) -> bool:
    """True if a server's settings have a rule of acceptance that is not lossless."""
    engine = software.engine
    if engine is None:
        return False
    # The server's settings by name. `info_path` is empty if they are at the path of the version.
    settings = await _object_at(client, engine.info_path or software.version_path)
    return engine.is_lossy(engine.info_options(settings))  # `info_options` picks those of drafting


async def _object_at(client: Client, path: str) -> dict[str, Any]:
    """The JSON object at a path, or an empty one."""
    try:
        answer: Any = msgspec.json.decode(await client.get(path))
    except (RequestFailed, msgspec.DecodeError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}
