"""Everything a run on servers needs before its first request.

Running servers are asked what they are, and the tokenizer of their model is found. For an
engine that is started, its executable, the model and draft weights are found and checked.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import metadata, util
from pathlib import Path

from msgspec.structs import replace as replace_header

from specbench import registry
from specbench.errors import CheckpointError, UserError, printable, unknown_name
from specbench.log.header import MethodHeader, ModelHeader, RunHeader
from specbench.machine import environment
from specbench.measure.base import SetupInfo
from specbench.measure.local.engine_setup import DEFAULT_BUDGET, EMBEDDED_BUDGET
from specbench.measure.methods import BASELINE, check_labels, label_of
from specbench.measure.server.address import server_root
from specbench.measure.server.backend import ServerBackend
from specbench.measure.server.client import REQUEST_S, Client
from specbench.measure.server.engine import (
    WEIGHTS,
    Engine,
    EngineMethod,
    Launch,
    load_engine,
)
from specbench.measure.server.find import FoundServer, find_server
from specbench.measure.server.servers import FindServer, RunningServers, Start, StartedServers
from specbench.measure.spec import RunSpec
from specbench.models.cards import ModelCard, find_model
from specbench.models.chat import ChatCodec, load_codec
from specbench.models.checkpoints import identify, read_config
from specbench.models.hub import resolve, resolve_model, resolve_tokenizer, resolve_weights
from specbench.registry import MethodChoice, parse_choices
from specbench.types import Scope

NO_BASELINE_WARNING = (
    "No server is labelled vanilla, so there is no speedup. Start the same server without "
    "speculation beside it, and give both: --url A --label vanilla --url B --label NAME."
)
CHAT_WARNING = (
    "{} take no prompt as tokens: the chat was sent as messages, and the server's own template "
    "made the prompt. Token counts of the prompt are ours."
)
TEXT_WARNING = (
    "{} send no token ids: the text was tokenised, which can differ from the tokens that were "
    "generated. Tokens are counted by the server."
)
LOGS = "engines"
"""The folder in a run with the logs of the engines that it started."""
_NUM_TOKENS, _SCOPE = "num_tokens", "scope"
_MOST_CONTEXT = 4096
"""Tokens of context that an engine is started with at most: its memory grows with it."""
_MEMORY = (
    "{} learns from earlier requests, so that repeats and further loads flatter it: scope=request "
    "turns this off."
)
_WHEEL = (
    "{} is that of the wheel {}, which is compiled for many processors: a build for this machine "
    "may be faster."
)
_SLOTS_AT_A_RATE = 64
"""Requests at once that an engine takes if requests come at a rate; further ones wait."""


@dataclass(frozen=True)
class ServerSetup:
    """Running servers by label, with the tokenizer of their model."""

    spec: RunSpec
    card: ModelCard
    codec: ChatCodec
    servers: Mapping[str, FoundServer]
    no_checkpoint: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.card.title} ({', '.join(self.software)})"

    @cached_property
    def software(self) -> tuple[str, ...]:
        """The servers' software, each once."""
        return tuple(dict.fromkeys(found.software for found in self.servers.values()))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(sorted(self.servers, key=lambda label: label != BASELINE))

    @property
    def context(self) -> int | None:
        known = [found.context for found in self.servers.values() if found.context]
        return min(known, default=None)

    @property
    def default_budget(self) -> int:
        return EMBEDDED_BUDGET if self.card.is_embedded else DEFAULT_BUDGET

    def describe(self) -> SetupInfo:
        return SetupInfo(
            model_header(self.card, self.codec, self.spec, served_by=self.software),
            {label: method_header(label) for label in self.labels},
            values={"template": self.codec.template.name},
            warnings=self._warnings(),
        )

    def open(self, folder: Path, before: RunHeader | None = None) -> ServerBackend:
        source = RunningServers(self.servers, request_s=_request_s(self.spec))
        return ServerBackend(source, max(self.spec.concurrency, default=1))

    def _warnings(self) -> tuple[str, ...]:
        chat = [label for label, one in self.servers.items() if not one.protocol.takes_tokens]
        text = [label for label, one in self.servers.items() if not one.sends_token_ids]
        told = (
            self.codec.template.warning,
            NO_BASELINE_WARNING if BASELINE not in self.servers else None,
            CHAT_WARNING.format(f"The servers of {', '.join(chat)}") if chat else None,
            TEXT_WARNING.format(f"The servers of {', '.join(text)}") if text else None,
        )
        return tuple(text for text in told if text)


def make_server_setup(spec: RunSpec, *, is_offline: bool = False) -> ServerSetup:
    """Find the model's tokenizer and ask every server what it is.

    Raises:
        UserError: labels and addresses do not match, a server does not answer, or it does not serve
            the model.
    """
    labels = _labels(spec)
    roots = [server_root(url) for url in spec.urls]
    card = find_model(spec.model)
    codec = load_codec(resolve_tokenizer(card, offline=is_offline), card, spec.template)
    find = _finder(card, codec, spec.served_model)

    async def find_all() -> list[FoundServer]:
        found = []
        for root in roots:
            async with Client(root, request_s=_request_s(spec)) as client:
                found.append(await find(client))
        return found

    servers = dict(zip(labels, asyncio.run(find_all()), strict=True))
    return ServerSetup(spec, card, codec, servers)


def _labels(spec: RunSpec) -> tuple[str, ...]:
    """The labels of the servers, in the order of their addresses."""
    if not spec.urls:
        raise UserError(
            "--backend server needs the address of a server.",
            "Give --url http://127.0.0.1:8000 --label NAME, once for each server.",
        )
    if spec.methods:
        raise UserError(
            f"--method {','.join(spec.methods)} cannot be chosen at a running server.",
            "Name what the server does: --label NAME.",
        )
    labels = spec.labels or (("server",) if len(spec.urls) == 1 else ())
    if len(labels) != len(spec.urls):
        raise UserError(
            f"{len(spec.urls)} --url and {len(labels)} --label are given.",
            "Give each --url a --label, in the same order; the one without speculation is vanilla.",
        )
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"--label {label} is given twice.", "Give each server its own label.")
        if not label or printable(label) != label or "," in label:
            raise UserError(
                f"--label {label!r} is not a name.", "Give letters, digits, : = - and _."
            )
    return labels


def model_header(
    card: ModelCard, codec: ChatCodec, spec: RunSpec, *, served_by: tuple[str, ...]
) -> ModelHeader:
    """The model's part of the header. Which weights a server loaded is not known here."""
    return ModelHeader(
        name=card.name,
        label=f"{card.title}, served by {', '.join(served_by)}",
        source="embedded" if card.is_embedded else card.repo,
        dtype="dtype of the server" if spec.dtype == "auto" else spec.dtype,
        template_sha256=codec.template.sha256,
    )


def method_header(label: str, title: str = "") -> MethodHeader:
    """The header of what a server runs: titled as the method of that name, if there is one."""
    name = label.partition(":")[0]
    known = {entry.name for entry in registry.entries() if not entry.error}
    title = title or (registry.get(name).title if name in known else label)
    return MethodHeader(name=name, title=title, options={}, is_lossless=True, weights=None)


def _finder(card: ModelCard, codec: ChatCodec, served_model: str) -> FindServer:
    """Asks a server what it is, and whether it serves a model."""
    hello = [{"role": "user", "content": "Hello"}]
    return partial(
        find_server,
        card=card,
        served_model=served_model,
        prompt_ids=codec.render(hello),
        messages=hello,
    )


def _request_s(spec: RunSpec) -> float:
    return spec.request_timeout_s or REQUEST_S


@dataclass(frozen=True, slots=True)
class EngineRun:
    """A method of an engine, with its draft weights. `asked` has the options that were given."""

    asked: MethodChoice
    method: EngineMethod
    num_tokens: int
    weights: Path | None
    scope: Scope

    @property
    def label(self) -> str:
        return label_of(self.asked)


@dataclass(frozen=True)
class StartedSetup:
    """An engine's methods on a model, ready to be started one after the other.

    `wheel` is the package that has the engine, with its version, if no executable is installed.
    `refused` says which methods were left out since the engine cannot read their weights.
    """

    spec: RunSpec
    card: ModelCard
    path: Path
    codec: ChatCodec
    engine: Engine
    executable: tuple[str, ...]
    methods: tuple[EngineRun, ...]
    device: str
    wheel: str = ""
    no_checkpoint: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        origin = f" of {self.wheel}" if self.wheel else ""
        return f"{self.card.title} ({self.engine.title}{origin}, {self.device})"

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(one.label for one in self.methods)

    @property
    def context(self) -> int:
        config = read_config(self.path, self.card.name)
        length = (config.get("text_config") or config).get("max_position_embeddings")
        return min(length, _MOST_CONTEXT) if isinstance(length, int) else _MOST_CONTEXT

    @property
    def default_budget(self) -> int:
        return EMBEDDED_BUDGET if self.card.is_embedded else DEFAULT_BUDGET

    def describe(self) -> SetupInfo:
        model = model_header(self.card, self.codec, self.spec, served_by=(self.engine.title,))
        notes = [_MEMORY.format(one.label) for one in self.methods if one.scope == "run"]
        notes += [_WHEEL.format(self.engine.title, self.wheel)] if self.wheel else []
        warnings = (self.codec.template.warning, *notes, *self.refused)
        return SetupInfo(
            replace_header(model, files=identify(self.path).files),
            {one.label: self._method(one) for one in self.methods},
            values={"template": self.codec.template.name, "device": self.device},
            warnings=tuple(text for text in warnings if text),
        )

    def open(self, folder: Path, before: RunHeader | None = None) -> ServerBackend:
        spec = self.spec
        starts = {one.label: self._start(one) for one in self.methods}
        find = _finder(self.card, self.codec, self.card.name)
        source = StartedServers(starts, find, folder / LOGS, request_s=_request_s(spec))
        return ServerBackend(source, max(spec.concurrency, default=1))

    def _start(self, one: EngineRun) -> Start:
        spec, engine = self.spec, self.engine

        def command(scratch: Path, port: int) -> list[str]:
            launch = Launch(
                model=self.path,
                served_name=self.card.name,
                method=one.asked.name,
                weights=one.weights,
                num_tokens=one.num_tokens,
                port=port,
                context=self.context,
                num_at_once=max((*spec.concurrency, _SLOTS_AT_A_RATE if spec.request_rates else 1)),
                dtype=spec.dtype if spec.dtype != "auto" else "",
                is_cpu=self.device == "cpu",
                scratch=scratch,
                scope=one.scope,
            )
            words = [*self.executable, *engine.arguments(launch), *spec.engine_args]
            if not spec.threads:
                return words
            threads = engine.thread_settings.items()
            return [
                "env",
                *(f"{name}={text.format(spec.threads)}" for name, text in threads),
                *words,
            ]

        return Start(command, engine.settings, one.num_tokens, self.wheel)

    def _method(self, one: EngineRun) -> MethodHeader:
        header = method_header(one.asked.name, one.method.title)
        options = {
            **({_NUM_TOKENS: one.num_tokens} if one.num_tokens else {}),
            **({_SCOPE: one.scope} if one.method.scopes else {}),
        }
        return replace_header(
            header,
            options=options,
            weights=identify(one.weights) if one.weights else None,
            scope=one.scope,
        )


def make_started_setup(spec: RunSpec, *, is_offline: bool = False) -> StartedSetup:
    """Find the engine, the model and the draft weights of the methods.

    Raises:
        UserError: the engine is not installed or cannot run a method, or a file is missing.
    """
    engine = load_engine(spec.serving_engine)
    if spec.urls or spec.labels:
        raise UserError(
            f"--engine {engine.name} starts its own servers, and --url names running ones.",
            "Give one of them.",
        )
    device = _device(spec.device)
    asked = _asked(spec, engine)
    card = find_model(spec.model)
    executable, wheel = _executable(spec, engine)
    path = resolve_model(card, offline=is_offline)
    codec = load_codec(path, card, spec.template)
    engine.check_folder(path, "")
    runs, missing, refused = [], [], []
    for one in asked:
        method = engine.methods[one.name]
        weights = _weights(card, one, method, is_offline=is_offline)
        if method.weights and weights is None:
            missing.append(one)
            continue
        try:
            if weights is not None:
                engine.check_folder(weights, one.name)
        except CheckpointError as error:
            if spec.methods:
                raise
            refused.append(error.message)
            continue
        scope = _scope(one, method)
        runs.append(EngineRun(one, method, _num_tokens(one, method), weights, scope))
    if spec.methods and missing:
        raise UserError(
            f"{card.name} has no checkpoint for {', '.join(one.name for one in missing)}.",
            f"Name one: --method {missing[0].name}:weights=DIR_OR_HUB_ID.",
        )
    return StartedSetup(
        spec=spec,
        card=card,
        path=path,
        codec=codec,
        engine=engine,
        executable=executable,
        methods=tuple(runs),
        device=device,
        wheel=wheel,
        no_checkpoint=tuple(str(one) for one in missing),
        refused=tuple(refused),
    )


def _device(requested: str) -> str:
    """The device that an engine takes: a GPU if the driver knows one. Asks no torch, since an
    engine has its own.
    """
    if ":" in requested:
        raise UserError(
            f"--device {requested} cannot be passed to an engine.",
            "Choose GPUs by the environment variable CUDA_VISIBLE_DEVICES.",
        )
    if requested == "auto":
        return "cuda" if environment.gpus() else "cpu"
    return requested


def _asked(spec: RunSpec, engine: Engine) -> list[MethodChoice]:
    """The methods that run, with vanilla first: the named ones, or the engine's default ones."""
    asked = parse_choices(spec.methods)
    for one in asked:
        if one.name not in engine.methods:
            raise unknown_name("method", one.name, engine.methods, of=engine.title)
        known = (_NUM_TOKENS, WEIGHTS, *((_SCOPE,) if engine.methods[one.name].scopes else ()))
        for option in one.given:
            if option not in known:
                raise unknown_name("option", option, known, of=f"{engine.title}'s {one.name}")
    asked = asked or [MethodChoice(name) for name, one in engine.methods.items() if one.is_default]
    if spec.is_baseline_run and not any(str(one) == BASELINE for one in asked):
        asked.insert(0, MethodChoice(BASELINE))
    check_labels([label_of(one) for one in asked])
    return sorted(asked, key=lambda one: one.name != BASELINE)


def _executable(spec: RunSpec, engine: Engine) -> tuple[tuple[str, ...], str]:
    """The engine's command, and the package that serves it with its version, if one does.

    The given command, the one on the PATH, or the package's.
    """
    if spec.threads and not engine.thread_settings:
        raise UserError(
            f"--threads {spec.threads} cannot be passed to {engine.title}.", "Leave it out."
        )
    command = spec.engine_command or engine.executable
    if found := shutil.which(command[0]):
        return (found, *command[1:]), ""
    wheel = engine.wheel
    if spec.engine_command or not wheel or not util.find_spec(wheel.package):
        raise UserError(
            f"{engine.title} is not installed: there is no {command[0]}.",
            f"Install {engine.install}, or name it: --engine-command PATH.",
        )
    if reason := wheel.refusal(spec.engine_args):
        raise UserError(
            f"--engine-args: {reason}",
            f"It takes {', '.join(wheel.free_flags())}. For others, name a {command[0]}: "
            "--engine-command PATH.",
        )
    version = metadata.version(wheel.package)
    return (sys.executable, "-P", str(wheel.script)), f"{wheel.package} {version}"


def _weights(
    choice_card: ModelCard, one: MethodChoice, method: EngineMethod, *, is_offline: bool
) -> Path | None:
    """The folder of a method's draft weights: the given one, or the model card's."""
    if method.weights is None:
        return None
    if given := one.given.get(WEIGHTS, ""):
        what = f"The {one.name} checkpoint"
        return resolve(given, offline=is_offline, what=what, needs_tokenizer=False)
    weights = choice_card.weights_of(method.weights)
    return resolve_weights(choice_card, weights, offline=is_offline) if weights else None


def _num_tokens(one: MethodChoice, method: EngineMethod) -> int:
    text = one.given.get(_NUM_TOKENS, str(method.num_tokens))
    if not text.isdigit() or (not int(text) and method.num_tokens):
        raise UserError(
            f"{one}: {_NUM_TOKENS} {text!r} is not a number of tokens.", "Give 1 or more."
        )
    return int(text)


def _scope(one: MethodChoice, method: EngineMethod) -> Scope:
    given = one.given.get(_SCOPE, next(iter(method.scopes), "request"))
    for scope in method.scopes or ("request",):
        if given == scope:
            return scope
    raise unknown_name("scope", given, method.scopes, of=one.name)
