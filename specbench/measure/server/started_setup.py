"""Set up a run on servers that are started for it.

The engine's executable, the model, and the draft weights of the methods are found and checked.
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
from specbench.machine.nvml import driver, visible_cards
from specbench.measure.base import SetupInfo
from specbench.measure.methods import BASELINE
from specbench.measure.server.arrangement import arrange
from specbench.measure.server.backend import ServerBackend
from specbench.measure.server.engine import Engine, Launch, load_engine
from specbench.measure.server.engine_arguments import check_engine_args
from specbench.measure.server.engine_version import is_in_version, is_known_version
from specbench.measure.server.executable import Executable, find_executable
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
"""The folder, in a run's folder, with the logs of the engines that the run started."""
_MOST_CONTEXT = 4096
"""The longest context in tokens that an engine is started with: its memory grows with it."""
_SLOTS_AT_A_RATE = 64
"""The most requests that an engine works on at once if they come at a rate. More requests wait."""
_MEMORY_WARNING = (
    "{} learns from earlier requests, so it looks faster in later passes and at later loads{}"
)
_NO_MEMORY = ": scope=request turns this off."
"""The end of the warning for a method that can forget."""
_VERSION_WARNING = (
    "The version of {0} could not be read before {0} started, so its methods were not checked "
    "against the version."
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
    """The servers of an engine's methods for a model, ready to be started."""

    servers: Mapping[str, Launch]
    """The servers to start, by label."""
    path: Path
    """The folder of the model."""
    engine: Engine
    """The serving engine."""
    executable: Executable
    """The engine's executable or wheel, with its version."""
    context: int
    """Length in tokens of the context that the servers are started with."""
    device: str
    """The device of the servers: cpu or cuda."""
    no_checkpoint: tuple[str, ...] = ()
    """Methods without draft weights for the model."""
    refused: tuple[str, ...] = ()
    """Warnings about methods left out because the engine or its version cannot run them."""

    @property
    def title(self) -> str:
        """The model, the engine and its device, in words."""
        origin = f" of {self.executable.wheel}" if self.executable.wheel else ""
        return f"{self.card.title} ({self.engine.title}{origin}, {self.device})"

    def describe(self) -> SetupInfo:
        """The setup's part of the run's header, with warnings."""
        # First the warnings about methods that remember earlier requests of the run.
        warnings = [
            _MEMORY_WARNING.format(label, self._memory_hint(launch))
            for label, launch in self.servers.items()
            if launch.scope == "run"
        ]
        executable = self.executable
        if executable.wheel:
            warnings.append(_WHEEL_WARNING.format(self.engine.title, executable.wheel))
        elif not executable.version:
            warnings.append(_VERSION_WARNING.format(self.engine.title))
        elif not is_known_version(self.engine, executable.version):
            first, last = self.engine.known_versions
            warning = _OTHER_VERSION.format(self.engine.title, executable.version, first, last)
            warnings.append(warning)
        return self.make_info(
            [self.engine.title],  # for the label: "MODEL, served by ENGINE"
            {label: self._method_header(launch) for label, launch in self.servers.items()},
            (*warnings, *self.refused),  # `refused` has those about methods that were left out
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
            wheel=self.executable.wheel,
            request_s=self.spec.request_timeout_s,
            arrangement=arrangement,
        )
        return ServerBackend(servers, max(self.spec.concurrency, default=1))

    @property
    def commands(self) -> dict[str, list[str]]:
        """The command lines of the servers by label, without the ports, which a start chooses."""
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
        """The arrangement of the servers. A continued run keeps the one in its header."""
        if before is not None and before.blocks:
            return before.arrangement
        return arrange(self.engine, [*self.servers.values()], self.spec.engine_args)

    def command_line(self, launch: Launch) -> list[str]:
        """The command line that starts a server."""
        words = [*self.executable.words, *self.engine.arguments(launch), *self.spec.engine_args]
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

        `launch.facts` has the user's other options by name, as the header shows them. For a whole
        configuration, they include the name that the user gave to it, which is the method's title.
        """
        method = self.engine.methods[launch.method]
        options: dict[str, Any] = {}  # by name
        if launch.num_tokens:  # 0 if the method decides the number of draft tokens
            options[NUM_TOKENS] = launch.num_tokens
        if method.scopes:  # the scopes that the engine offers, if there is a choice
            options[SCOPE] = launch.scope
        options |= launch.facts
        return MethodHeader(
            name=launch.method,
            title=launch.facts.get("name") or method.title,
            options=options,
            is_lossless=not self.engine.is_lossy(launch.options),
            weights=identify(launch.weights, prefers_index=True) if launch.weights else None,
            scope=launch.scope,
            settings=launch.settings,  # the source of a size that the user did not give, or None
        )


def make_started_setup(spec: RunSpec, *, is_offline: bool = False) -> StartedSetup:
    """Find the engine, the model and the draft weights of the methods.

    `spec` has the run's options; with `is_offline`, nothing is downloaded. The setup has the
    servers to start, by the methods' labels, and what they have in common.

    Raises:
        UserError: the engine is not installed, or cannot run a method that the user named; a file
            is missing; the user also gave addresses of servers or a numbered GPU; or the arguments
            for the engine have a flag that is refused.
    """
    from specbench.measure.local.engine_setup import context_length  # imports torch

    engine = load_engine(spec.serving_engine)
    _refuse_addresses(spec)
    device = _device(spec.device)  # cpu or cuda
    card = spec.card
    choices = engine_choices(spec, engine)  # names of methods with the options given
    is_named = bool(spec.methods)  # by the user: then a method that cannot run is an error
    executable = find_executable(spec, engine)  # its command, wheel and version
    choices = choices_in_version(choices, engine, executable.version, is_named=is_named)
    model_path = resolve_model(card, offline=is_offline)  # the folder
    codec = load_codec(model_path, card, spec.template, spec.template_args)
    # Raises if the engine cannot read the model. ("" stands for the model, not a method's weights.)
    engine.check_folder(model_path, "")
    # The length of the context in tokens. It is at most _MOST_CONTEXT, because an engine's memory
    # grows with the context, and equal to it if the model's context is unknown.
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
        scope="request",  # it remembers no earlier requests
    )
    # Raises for flags that specbench sets. Port 1 is a placeholder: each start takes a free port.
    check_engine_args(engine, spec.engine_args, engine.arguments(replace(vanilla, port=1)))
    settings = read_served_settings(spec, engine)  # draft sizes by load; None without a file
    # The servers of all methods, and the methods left out because weights or support are missing.
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
        executable=executable,
        context=context,
        device=device,
        no_checkpoint=tuple(str(choice) for choice in launches.missing),  # no draft weights
        refused=(*launches.refused, *_left_out(spec, engine, executable.version)),
    )


def _refuse_addresses(spec: RunSpec) -> None:
    """Raise UserError if the user named both an engine to start and running servers."""
    if spec.urls or spec.labels:
        raise UserError(
            f"--engine {spec.serving_engine} starts its own servers, and --url names running ones.",
            "Give one of them.",
        )


def _left_out(spec: RunSpec, engine: Engine, version: str) -> list[str]:
    """A warning about each default method that the version lacks; none if methods were named."""
    if spec.methods:
        return []
    return [
        f"{engine.title} {version} has no {name}, so it was left out."
        for name, method in engine.methods.items()
        if method.is_default and not is_in_version(method, version)
    ]


def _num_at_once(spec: RunSpec) -> int:
    """The number of requests that a server has to work on at once, for all loads of the run."""
    least = _SLOTS_AT_A_RATE if spec.request_rates else 1
    return max([least, *spec.concurrency])


def _device(requested: str) -> str:
    """The device that an engine takes (cpu or cuda), from the text of --device.

    For "auto" it is a GPU if the driver reports one that CUDA_VISIBLE_DEVICES does not hide. Torch
    is not asked, since an engine may use another torch. Raises UserError if a GPU is numbered
    (cuda:1).
    """
    if ":" in requested:
        raise UserError(
            f"--device {requested} cannot be passed to an engine.",
            "Choose GPUs with the environment variable CUDA_VISIBLE_DEVICES.",
        )
    if requested != "auto":
        return requested
    with driver() as nvml:
        has_gpu = bool(nvml and visible_cards(nvml))
    return "cuda" if has_gpu else "cpu"
