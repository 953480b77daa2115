"""The description of an engine: its title, methods, command line, form of requests, and metrics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from specbench.measure.server.stream import StreamProtocol
from specbench.types import Scope

DRAFT_COUNTERS = {
    "spec_decode_num_drafts": "num_drafts",
    "spec_decode_num_draft_tokens": "num_draft_tokens",
    "spec_decode_num_accepted_tokens": "num_accepted",
    "spec_decode_num_accepted_tokens_per_pos": "accepted_at",
    "spec_decode_per_pos": "accepted_at",
}
"""Metrics of drafts, which engines have taken over from vLLM."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One server to start: a model with a method.

    `num_tokens` is the most tokens of a draft; 0 without a limit. `scope` is the lifetime of
    the method's memory. Known at the start: `port` is on the loopback, and `scratch` is a
    folder of this launch alone, for files that an engine needs in its own layout.
    """

    model: Path
    served_name: str
    method: str
    weights: Path | None
    num_tokens: int
    context: int
    num_at_once: int
    dtype: str
    is_cpu: bool
    scope: Scope
    port: int = 0
    scratch: Path = Path()


@dataclass(frozen=True, slots=True)
class EngineMethod:
    """A method of an engine: its title, tokens per draft, and whose weights it reads, if any.

    `scopes` are lifetimes of its memory, the engine's default first; empty without a choice.
    A method that needs an install of its own is not `is_default`: it runs only if named.
    """

    title: str
    num_tokens: int = 0
    weights: str | None = None
    scopes: tuple[Scope, ...] = ()
    is_default: bool = True


METHODS = {
    "vanilla": EngineMethod("Vanilla"),
    "ngram": EngineMethod("N-gram", 5),
    "sps": EngineMethod("SpS", 4, "sps"),
    "eagle": EngineMethod("EAGLE", 4, "eagle"),
    "eagle3": EngineMethod("EAGLE-3", 4, "eagle3"),
}
"""Methods of several engines, which draft alike in all of them."""


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine. `arguments` makes its command line without the executable.

    `wheel` is a package with the engine in it, used if no executable is installed. `launcher`
    is a script that serves it with the engine's own flags. Its `refusal` says why a user's
    arguments cannot be passed, and its `free_flags` lists those that can.

    `settings` are environment variables that it needs, unless the user has set them.
    `thread_settings` are the variables with its number of CPU threads, which stands for `{}`;
    empty if it has none. `check_folder` raises UserError for a folder of weights that the
    engine cannot read: a method's, or the model's for the method "". `version` is a path and a
    key: a server that answers there with JSON that has the key is this engine, and the value is
    its version. `protocol` is its own form of requests, if it has one. `counters` maps names of
    its metrics, without prefix and suffix, to ours; `accepted_at` has a label with the position.
    """

    title: str
    executable: tuple[str, ...]
    install: str
    methods: Mapping[str, EngineMethod]
    arguments: Callable[[Launch], list[str]]
    version: tuple[str, str]
    wheel: str = ""
    launcher: ModuleType | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    thread_settings: Mapping[str, str] = field(default_factory=dict)
    check_folder: Callable[[Path, str], object] = lambda folder, method: None
    protocol: StreamProtocol | None = None
    counters: Mapping[str, str] = field(default_factory=dict)


def load_engine(name: str) -> Engine:
    """The engine of a file in `engines`."""
    engine: Engine = import_module(f"specbench.measure.server.engines.{name}").ENGINE
    return engine


def set_flags(**values: Any) -> list[str]:
    """Flags of a command line: `max_len=5` is `--max-len 5`; True is a flag without a value."""
    flags = []
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            flags.append(flag)
        elif value not in (None, False, ""):
            flags += [flag, str(value)]
    return flags
