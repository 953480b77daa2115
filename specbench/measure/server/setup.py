"""Set up a run on servers: those that run already, or those that are started for it.

Asks each running server what it is, and finds the tokenizer of the model. Of servers to start,
finds and checks the engine's executable, the model and the draft weights of the methods.
"""

import asyncio
import shutil
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import metadata, util
from pathlib import Path
from typing import Any

from specbench import registry
from specbench.errors import CheckpointError, UserError, printable, unknown_name
from specbench.log.header import RunHeader
from specbench.log.methods import MethodHeader
from specbench.log.model import FileHeader, ModelHeader
from specbench.machine import environment
from specbench.measure.base import SetupInfo
from specbench.measure.methods import BASELINE, check_labels
from specbench.measure.server.address import server_root
from specbench.measure.server.backend import ServerBackend
from specbench.measure.server.client import Client, FoundServer, find_server
from specbench.measure.server.engine import Engine, EngineMethod, Launch, load_engine
from specbench.measure.server.servers import RunningServers, StartedServers
from specbench.measure.spec import RunSpec
from specbench.measure.weights import no_weights
from specbench.models.cards import ModelCard, find_model
from specbench.models.chat import ChatCodec, load_codec
from specbench.models.checkpoints import identify
from specbench.models.hub import resolve, resolve_model, resolve_tokenizer, resolve_weights
from specbench.registry import MethodChoice, parse_choices
from specbench.settings.run_method import label_of
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
_NUM_TOKENS, _SCOPE, _WEIGHTS = "num_tokens", "scope", "weights"
_MOST_CONTEXT = 4096
"""Tokens of context that an engine is started with at most: its memory grows with it."""
_MEMORY = (
    "{} learns from earlier requests, so that repeats and further loads flatter it: scope=request "
    "turns this off."
)
_WHEEL = (
    "{} comes from the wheel {}, which is compiled for many processors: a build for this "
    "machine may be faster."
)
_SLOTS_AT_A_RATE = 64
"""Requests at once that an engine takes if requests come at a rate; further ones wait."""


@dataclass(frozen=True)
class _ServedSetup:
    """A model's tokenizer, and by label the servers that answer for the model."""

    spec: RunSpec
    card: ModelCard
    codec: ChatCodec
    servers: Mapping[str, Any]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(sorted(self.servers, key=lambda label: label != BASELINE))

    def _about(
        self,
        served_by: Iterable[str],
        methods: dict[str, MethodHeader],
        told: Iterable[str | None],
        files: dict[str, FileHeader],
        **values: str,
    ) -> SetupInfo:
        """The setup's part of the header. A running server's weights are not known here."""
        model = ModelHeader(
            name=self.card.name,
            label=f"{self.card.title}, served by {', '.join(served_by)}",
            source="embedded" if self.card.is_embedded else self.card.repo,
            dtype="dtype of the server" if self.spec.dtype == "auto" else self.spec.dtype,
            template_sha256=self.codec.template.sha256,
            files=files,
        )
        template = self.codec.template
        warnings = tuple(filter(None, (template.warning, *told)))
        return SetupInfo(model, methods, {"template": template.name, **values}, warnings)


@dataclass(frozen=True)
class ServerSetup(_ServedSetup):
    """Running servers by label, with the tokenizer of their model."""

    servers: Mapping[str, FoundServer]
    no_checkpoint = ()

    @property
    def title(self) -> str:
        return f"{self.card.title} ({', '.join(self.software)})"

    @cached_property
    def software(self) -> tuple[str, ...]:
        """The servers' software, each once."""
        return tuple(dict.fromkeys(found.header.software for found in self.servers.values()))

    @property
    def context(self) -> int | None:
        known = [found.context for found in self.servers.values() if found.context]
        return min(known, default=None)

    def describe(self) -> SetupInfo:
        chat = [label for label, one in self.servers.items() if not one.protocol.takes_tokens]
        text = [label for label, one in self.servers.items() if not one.header.sends_token_ids]
        told = (
            NO_BASELINE_WARNING if BASELINE not in self.servers else None,
            CHAT_WARNING.format(f"The servers of {', '.join(chat)}") if chat else None,
            TEXT_WARNING.format(f"The servers of {', '.join(text)}") if text else None,
        )
        methods = {label: _method_header(label) for label in self.labels}
        return self._about(self.software, methods, told, files={})

    def open(self, folder: Path, before: RunHeader | None = None) -> ServerBackend:
        source = RunningServers(self.servers, request_s=self.spec.request_timeout_s)
        return ServerBackend(source, max(self.spec.concurrency, default=1))


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

    async def find(root: str) -> FoundServer:
        async with Client(root, request_s=spec.request_timeout_s) as client:
            return await find_server(client, card, codec, served_model=spec.served_model)

    found = map(asyncio.run, map(find, roots))
    return ServerSetup(spec, card, codec, dict(zip(labels, found, strict=True)))


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


def _method_header(label: str) -> MethodHeader:
    """The header of what a server runs: titled as the method of that name, if there is one."""
    name = label.partition(":")[0]
    known = {entry.name for entry in registry.entries() if not entry.error}
    title = registry.get(name).title if name in known else label
    return MethodHeader(name=name, title=title, options={}, is_lossless=True, weights=None)


@dataclass(frozen=True)
class StartedSetup(_ServedSetup):
    """An engine's methods on a model, ready to be started one after the other.

    `servers` are those to start, by label. `wheel` is the package that has the engine, with
    its version, if no executable is installed. `refused` says which methods were left out
    since the engine cannot read their weights.
    """

    servers: Mapping[str, Launch]
    path: Path
    engine: Engine
    command: tuple[str, ...]
    context: int
    device: str
    wheel: str = ""
    no_checkpoint: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        origin = f" of {self.wheel}" if self.wheel else ""
        return f"{self.card.title} ({self.engine.title}{origin}, {self.device})"

    def describe(self) -> SetupInfo:
        lasting = (name for name, one in self.servers.items() if one.scope == "run")
        notes = [_MEMORY.format(name) for name in lasting]
        notes += [_WHEEL.format(self.engine.title, self.wheel)] if self.wheel else []
        methods = {label: self._method(one) for label, one in self.servers.items()}
        told, files = (*notes, *self.refused), identify(self.path).files
        return self._about([self.engine.title], methods, told, files, device=self.device)

    def open(self, folder: Path, before: RunHeader | None = None) -> ServerBackend:
        name = self.card.name
        find = partial(find_server, card=self.card, codec=self.codec, served_model=name)
        source = StartedServers(
            self.servers,
            self.command_line,
            self.engine.settings,
            find,
            folder=folder / LOGS,
            wheel=self.wheel,
            request_s=self.spec.request_timeout_s,
        )
        return ServerBackend(source, max(self.spec.concurrency, default=1))

    def command_line(self, launch: Launch) -> list[str]:
        """The command line that starts a server."""
        words = [*self.command, *self.engine.arguments(launch), *self.spec.engine_args]
        named = self.engine.thread_settings.items() if self.spec.threads else ()
        threads = [f"{name}={text.format(self.spec.threads)}" for name, text in named]
        return ["env", *threads, *words] if threads else words

    def _method(self, one: Launch) -> MethodHeader:
        method = self.engine.methods[one.method]
        options: dict[str, Any] = {_NUM_TOKENS: one.num_tokens} if one.num_tokens else {}
        return MethodHeader(
            name=one.method,
            title=method.title,
            options=options | ({_SCOPE: one.scope} if method.scopes else {}),
            is_lossless=True,
            weights=identify(one.weights) if one.weights else None,
            scope=one.scope,
        )


def make_started_setup(spec: RunSpec, *, is_offline: bool = False) -> StartedSetup:
    """Find the engine, the model and the draft weights of the methods.

    Raises:
        UserError: the engine is not installed or cannot run a method, or a file is missing.
    """
    from specbench.measure.local.engine_setup import context_length  # imports torch

    engine = load_engine(spec.serving_engine)
    if spec.urls or spec.labels:
        raise UserError(
            f"--engine {spec.serving_engine} starts its own servers, and --url names running ones.",
            "Give one of them.",
        )
    device = _device(spec.device)
    asked = _asked(spec, engine)
    card = find_model(spec.model)
    command, wheel = _executable(spec, engine)
    path = resolve_model(card, offline=is_offline)
    codec = load_codec(path, card, spec.template)
    engine.check_folder(path, "")
    context = min(context_length(path, card.name) or _MOST_CONTEXT, _MOST_CONTEXT)
    servers: dict[str, Launch] = {}
    missing, refused = list[MethodChoice](), list[str]()
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
        servers[label_of(one)] = Launch(
            model=path,
            served_name=card.name,
            method=one.name,
            weights=weights,
            num_tokens=_num_tokens(one, method),
            context=context,
            num_at_once=max((*spec.concurrency, _SLOTS_AT_A_RATE if spec.request_rates else 1)),
            dtype=spec.dtype if spec.dtype != "auto" else "",
            is_cpu=device == "cpu",
            scope=_scope(one, method),
        )
    if spec.methods and missing:
        raise no_weights(card, [one.name for one in missing])
    absent, told = tuple(map(str, missing)), tuple(refused)
    return StartedSetup(
        spec, card, codec, servers, path, engine, command, context, device, wheel, absent, told
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
        known = (_NUM_TOKENS, _WEIGHTS, *((_SCOPE,) if engine.methods[one.name].scopes else ()))
        for option in one.given:
            if option not in known:
                raise unknown_name("option", option, known, of=f"{engine.title}'s {one.name}")
    asked = asked or [MethodChoice(name) for name, one in engine.methods.items() if one.is_default]
    if spec.is_baseline_run and not any(str(one) == BASELINE for one in asked):
        asked.insert(0, MethodChoice(BASELINE))
    check_labels([label_of(one) for one in asked])
    return sorted(asked, key=lambda one: one.name != BASELINE)


def _executable(spec: RunSpec, engine: Engine) -> tuple[tuple[str, ...], str]:
    """The engine's command: the given one, the one on the PATH, or the wheel's.

    For a wheel, the second value is its name and version; else it is empty.
    """
    if spec.threads and not engine.thread_settings:
        raise UserError(
            f"--threads {spec.threads} cannot be passed to {engine.title}.", "Leave it out."
        )
    command = spec.engine_command or engine.executable
    if found := shutil.which(command[0]):
        return (found, *command[1:]), ""
    launcher = engine.launcher
    if spec.engine_command or not launcher or not util.find_spec(engine.wheel):
        raise UserError(
            f"{engine.title} is not installed: there is no {command[0]}.",
            f"Install {engine.install}, or name it: --engine-command PATH.",
        )
    if reason := launcher.refusal(spec.engine_args):
        raise UserError(
            f"--engine-args: {reason}",
            f"It takes {', '.join(launcher.free_flags())}. For others, name a {command[0]}: "
            "--engine-command PATH.",
        )
    words = (sys.executable, "-P", str(launcher.__file__))
    return words, f"{engine.wheel} {metadata.version(engine.wheel)}"


def _weights(
    choice_card: ModelCard, one: MethodChoice, method: EngineMethod, *, is_offline: bool
) -> Path | None:
    """The folder of a method's draft weights: the given one, or the model card's."""
    if method.weights is None:
        return None
    if given := one.given.get(_WEIGHTS, ""):
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
