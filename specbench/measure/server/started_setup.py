"""Set up a run on servers that are started for it.

Finds and checks the engine's executable, the model, and the draft weights of the methods.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from specbench.errors import UserError
from specbench.log.backend import Arrangement
from specbench.log.header import RunHeader
from specbench.log.methods import MethodHeader
from specbench.machine import environment
from specbench.measure.base import SetupInfo
from specbench.measure.methods import BASELINE
from specbench.measure.server.arrangement import arrange
from specbench.measure.server.backend import ServerBackend
from specbench.measure.server.engine import Engine, Launch, load_engine
from specbench.measure.server.engine_arguments import check_engine_args
from specbench.measure.server.engine_version import is_in_version, is_known_version
from specbench.measure.server.executable import find_executable
from specbench.measure.server.find import find_server
from specbench.measure.server.served_settings import read_served_settings
from specbench.measure.server.served_setup import ServedSetup
from specbench.measure.server.started_methods import (
    NUM_TOKENS,
    SCOPE,
    choices_in_version,
    engine_choices,
    make_launches,
)
from specbench.measure.server.started_servers import StartedServers
from specbench.measure.spec import RunSpec
from specbench.models.chat import load_codec
from specbench.models.checkpoints import identify
from specbench.models.hub import resolve_model

LOGS = "engines"
"""The folder in a run with the logs of the engines that it started."""
_MOST_CONTEXT = 4096
"""Most tokens of context that an engine is started with: its memory grows with the context."""
_SLOTS_AT_A_RATE = 64
"""Requests at once that an engine takes if requests come at a rate; further ones wait."""
_MEMORY_WARNING = (
    "{} learns from earlier requests, so it looks faster in later passes and at later loads{}"
)
_NO_MEMORY = ": scope=request turns this off."
"""The end of the warning for a method that can forget."""
_VERSION_WARNING = (
    "The version of {} could not be read before its start, so its methods were not checked against "
    "it."
)
_OTHER_VERSION = (
    "specbench knows the flags of {0} {2} to {3}. This is {1}: its methods are tried with the same "
    "flags."
)
_WHEEL_WARNING = (
    "{} comes from the wheel {}, which is compiled for many processors: a build for this "
    "machine may be faster."
)


@dataclass(frozen=True)
class StartedSetup(ServedSetup):
    """An engine's methods on a model, ready to be started."""

    servers: Mapping[str, Launch]
    """The servers to start, by label."""
    path: Path
    """The folder of the model."""
    engine: Engine
    """The engine."""
    command: tuple[str, ...]
    """The words that begin the engine's command line."""
    context: int
    """Tokens of context that the servers are started with."""
    device: str
    """The device of the servers: cpu or cuda."""
    wheel: str = ""
    """The package that has the engine, with its version; empty if an executable is installed."""
    version: str = ""
    """The engine's version before its start; empty if it is unknown."""
    no_checkpoint: tuple[str, ...] = ()
    """Methods without draft weights for the model."""
    refused: tuple[str, ...] = ()
    """Sentences about methods that were left out: the engine, or its version, cannot run them."""

    @property
    def title(self) -> str:
        """The model, the engine and its device, in words."""
        origin = f" of {self.wheel}" if self.wheel else ""
        return f"{self.card.title} ({self.engine.title}{origin}, {self.device})"

    def describe(self) -> SetupInfo:
        """The setup's part of the run's header, with warnings about what may mislead a reader."""
        warnings = [  # about methods that keep what they saw in earlier requests of the run
            _MEMORY_WARNING.format(label, self._memory_hint(launch))
            for label, launch in self.servers.items()
            if launch.scope == "run"
        ]
        if not self.version and not self.wheel:  # an executable whose version is unknown
            warnings.append(_VERSION_WARNING.format(self.engine.title))
        elif self.version and not is_known_version(self.engine, self.version):
            first, last = self.engine.known_versions
            warnings.append(_OTHER_VERSION.format(self.engine.title, self.version, first, last))
        if self.wheel:
            warnings.append(_WHEEL_WARNING.format(self.engine.title, self.wheel))
        return self.make_info(
            [self.engine.title],
            {label: self._method_header(launch) for label, launch in self.servers.items()},
            (*warnings, *self.refused),  # `refused`: sentences on methods that were left out
            files=identify(self.path, prefers_index=True).files,  # engines read the index's files
            device=self.device,
        )

    def open(self, folder: Path, before: RunHeader | None = None) -> ServerBackend:
        arrangement = self._arrangement(before)
        find = partial(find_server, card=self.card, codec=self.codec, served_model=self.card.name)
        servers = StartedServers(
            self._shared(arrangement),
            self.command_line,
            self.engine.variables,
            find,
            folder=folder / LOGS,
            wheel=self.wheel,
            request_s=self.spec.request_timeout_s,
            arrangement=arrangement,
        )
        return ServerBackend(servers, max(self.spec.concurrency, default=1))

    @property
    def commands(self) -> dict[str, list[str]]:
        """The command lines of the servers by label, without the ports of a later start."""
        launches = self._shared(self._arrangement(None))
        with TemporaryDirectory(prefix="specbench-") as scratch:  # for files in an engine's layout
            return {
                label: self.command_line(replace(launch, scratch=Path(scratch)))
                for label, launch in launches.items()
            }

    def _shared(self, arrangement: Arrangement | None) -> dict[str, Launch]:
        """The servers to start by label, each with its share of a GPU."""
        share = arrangement.gpu_share if arrangement else 0.0
        return {label: replace(launch, gpu_share=share) for label, launch in self.servers.items()}

    def _arrangement(self, before: RunHeader | None) -> Arrangement | None:
        """The turns of the servers. A continued run keeps those of its blocks so far (`before`)."""
        if before is not None and before.blocks:
            return before.arrangement
        return arrange(self.engine, [*self.servers.values()], self.spec.engine_args)

    def command_line(self, launch: Launch) -> list[str]:
        """The command line that starts a server."""
        words = [*self.command, *self.engine.arguments(launch), *self.spec.engine_args]
        if not self.spec.threads or not self.engine.thread_variables:
            return words
        variables = [
            f"{name}={pattern.format(self.spec.threads)}"  # {} is the number of threads
            for name, pattern in self.engine.thread_variables.items()
        ]
        return ["env", *variables, *words]

    def _memory_hint(self, launch: Launch) -> str:
        """The end of the warning about a method that learns from earlier requests."""
        can_forget = "request" in self.engine.methods[launch.method].scopes
        return _NO_MEMORY if can_forget else "."

    def _method_header(self, launch: Launch) -> MethodHeader:
        """The header of the method of a server to start: its title, options and draft weights.

        `launch.facts` has the user's further options by name, as the header shows them. The name
        that the user gave to a whole configuration is among them, and is the method's title.
        """
        method = self.engine.methods[launch.method]
        options: dict[str, Any] = {}  # by name
        if launch.num_tokens:  # 0: the method decides the tokens of a draft
            options[NUM_TOKENS] = launch.num_tokens
        if method.scopes:  # lifetimes of the method's memory that the engine offers
            options[SCOPE] = launch.scope
        options |= launch.facts
        return MethodHeader(
            name=launch.method,
            title=launch.facts.get("name") or method.title,
            options=options,
            is_lossless=not self.engine.is_lossy(launch.options),
            weights=identify(launch.weights, prefers_index=True) if launch.weights else None,
            scope=launch.scope,
            settings=launch.settings,  # where a size that the user did not give comes from, or None
        )


def make_started_setup(spec: RunSpec, *, is_offline: bool = False) -> StartedSetup:
    """Find the engine, the model and the draft weights of the methods.

    `spec` has the run's options; with `is_offline`, nothing is downloaded. The setup has the
    servers to start by the methods' labels, and what they have in common.

    Raises:
        UserError: the engine is not installed or cannot run a method, or a file is missing.
    """
    from specbench.measure.local.engine_setup import context_length  # imports torch

    engine = load_engine(spec.serving_engine)
    _refuse_addresses(spec)
    device = _device(spec.device)  # cpu or cuda
    card = spec.card
    choices = engine_choices(spec, engine)  # names of methods with the options given
    is_named = bool(spec.methods)  # by the user: one that the engine cannot run raises
    executable = find_executable(spec, engine)  # its command, wheel and version
    choices = choices_in_version(choices, engine, executable.version, is_named=is_named)
    model_path = resolve_model(card, offline=is_offline)  # the folder
    codec = load_codec(model_path, card, spec.template, spec.template_args)
    # Raises if the engine cannot read the model. (A method's name would check its weights.)
    engine.check_folder(model_path, "")
    # Tokens of context, at most _MOST_CONTEXT because an engine's memory grows with the context.
    # If the context of the model is unknown, it is _MOST_CONTEXT.
    context = min(context_length(model_path, card.name) or _MOST_CONTEXT, _MOST_CONTEXT)
    vanilla = Launch(  # a server to start, without speculation
        model=model_path,
        served_name=card.name,
        method=BASELINE,
        weights=None,  # no draft weights
        num_tokens=0,  # no drafts
        context=context,
        num_at_once=_num_at_once(spec),  # requests
        dtype=spec.dtype if spec.dtype != "auto" else "",  # "": the engine's choice
        is_cpu=device == "cpu",
        scope="request",  # it remembers nothing of earlier requests
    )
    # Raises for flags that specbench sets. Port 1 is a placeholder: each start takes a free port.
    check_engine_args(engine, spec.engine_args, engine.arguments(replace(vanilla, port=1)))
    settings = read_served_settings(spec, engine)  # draft sizes by load; None without a file
    # The servers of all methods, and the methods left out for lack of weights or of support.
    launches = make_launches(
        choices, engine, card, vanilla, settings, is_named=is_named, is_offline=is_offline
    )
    return StartedSetup(
        spec=spec,
        card=card,
        codec=codec,
        servers=launches.servers,
        path=model_path,
        engine=engine,
        command=executable.words,
        context=context,
        device=device,
        version=executable.version,
        wheel=executable.wheel,  # empty if the engine's own executable is used
        no_checkpoint=tuple(str(choice) for choice in launches.missing),  # no draft weights
        refused=(*launches.refused, *_left_out(spec, engine, executable.version)),
    )


def _refuse_addresses(spec: RunSpec) -> None:
    """Raise UserError if the user named servers that run already, beside an engine to start."""
    if spec.urls or spec.labels:
        raise UserError(
            f"--engine {spec.serving_engine} starts its own servers, and --url names running ones.",
            "Give one of them.",
        )


def _left_out(spec: RunSpec, engine: Engine, version: str) -> list[str]:
    """A sentence for each default method that the engine's version lacks."""
    if spec.methods:
        return []
    return [
        f"{engine.title} {version} has no {name}, so it was left out."
        for name, method in engine.methods.items()
        if method.is_default and not is_in_version(method, version)
    ]


def _num_at_once(spec: RunSpec) -> int:
    """Requests that a server has to take at once."""
    num_at_once = max(spec.concurrency, default=1)
    if spec.request_rates:
        return max(num_at_once, _SLOTS_AT_A_RATE)
    return num_at_once


def _device(requested: str) -> str:
    """The device that an engine takes, from the text of --device: cpu or cuda.

    For "auto" it is a GPU if the driver knows one. Torch is not asked, since an engine has a torch
    of its own. Raises UserError if a GPU is numbered (cuda:1).
    """
    if ":" in requested:
        raise UserError(
            f"--device {requested} cannot be passed to an engine.",
            "Choose GPUs by the environment variable CUDA_VISIBLE_DEVICES.",
        )
    if requested == "auto":
        return "cuda" if environment.gpus() else "cpu"
    return requested
