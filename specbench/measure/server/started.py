"""Set up a run whose servers are started for it.

Finds and checks the engine's executable, the model and the draft weights of the methods.
"""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib import metadata, util
from pathlib import Path
from typing import Any

from msgspec.structs import replace as replace_header

from specbench.errors import CheckpointError, UserError, unknown_name
from specbench.log.header import MethodHeader, RunHeader
from specbench.machine import environment
from specbench.measure.base import SetupInfo
from specbench.measure.local.engine_setup import context_length
from specbench.measure.methods import BASELINE, check_labels, label_of, no_weights
from specbench.measure.server.backend import ServerBackend
from specbench.measure.server.engine import WEIGHTS, Engine, EngineMethod, Launch, load_engine
from specbench.measure.server.find import find_server
from specbench.measure.server.servers import StartedServers
from specbench.measure.server.setup import model_header
from specbench.measure.spec import RunSpec
from specbench.models.cards import ModelCard, find_model
from specbench.models.chat import ChatCodec, load_codec
from specbench.models.checkpoints import identify
from specbench.models.hub import resolve, resolve_model, resolve_weights
from specbench.registry import MethodChoice, parse_choices
from specbench.types import Scope

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
    "{} comes from the wheel {}, which is compiled for many processors: a build for this "
    "machine may be faster."
)
_SLOTS_AT_A_RATE = 64
"""Requests at once that an engine takes if requests come at a rate; further ones wait."""


@dataclass(frozen=True)
class StartedSetup:
    """An engine's methods on a model, ready to be started one after the other.

    `servers` are those to start, by label. `wheel` is the package that has the engine, with
    its version, if no executable is installed. `refused` says which methods were left out
    since the engine cannot read their weights.
    """

    spec: RunSpec
    card: ModelCard
    path: Path
    codec: ChatCodec
    engine: Engine
    command: tuple[str, ...]
    servers: Mapping[str, Launch]
    context: int
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
        return tuple(self.servers)

    def describe(self) -> SetupInfo:
        model = model_header(self.card, self.codec, self.spec, served_by=(self.engine.title,))
        lasting = (name for name, one in self.servers.items() if one.scope == "run")
        notes = [_MEMORY.format(name) for name in lasting]
        notes += [_WHEEL.format(self.engine.title, self.wheel)] if self.wheel else []
        warnings = (self.codec.template.warning, *notes, *self.refused)
        return SetupInfo(
            replace_header(model, files=identify(self.path).files),
            {label: self._method(one) for label, one in self.servers.items()},
            values={"template": self.codec.template.name, "device": self.device},
            warnings=tuple(text for text in warnings if text),
        )

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
    engine = load_engine(spec.serving_engine)
    if spec.urls or spec.labels:
        raise UserError(
            f"--engine {engine.name} starts its own servers, and --url names running ones.",
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
        spec, card, path, codec, engine, command, servers, context, device, wheel, absent, told
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
