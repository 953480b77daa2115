"""The description of an engine: its title, methods, command line, form of requests, and metrics."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from specbench.log.methods import SettingsHeader
from specbench.measure.server.stream import StreamProtocol
from specbench.models.cards import Dtype
from specbench.models.memory import folder_bytes
from specbench.types import Scope

DRAFT_COUNTERS = {
    "spec_decode_num_drafts": "num_drafts",
    "spec_decode_num_draft_tokens": "num_draft_tokens",
    "spec_decode_num_accepted_tokens": "num_accepted",
    "spec_decode_num_accepted_tokens_per_pos": "accepted_at",
    "spec_decode_per_pos": "accepted_at",
}
"""vLLM's metrics of drafts, which other engines have taken over, and our names of them."""

OptionValue = int | float | bool | str
"""The value of a method's option."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One server to start: a model with a method."""

    model: Path
    """The folder of the model."""
    served_name: str
    """The model's name at the server."""
    method: str
    """The method, by the engine's name in `Engine.methods`."""
    weights: Path | None
    """The folder of the draft weights, if the method has any."""
    num_tokens: int
    """The most tokens of a draft; 0 if the method decides."""
    context: int
    """Tokens of a prompt with its answer."""
    num_at_once: int
    """Requests that the server takes at once."""
    dtype: str
    """The dtype of the weights; empty for the engine's choice."""
    is_cpu: bool
    """The server runs without a GPU."""
    scope: Scope
    """Lifetime of the method's memory."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What the engine gets for the user's options, by the engine's names."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same options as the header of a run has them: a file with its name, hash and content."""
    gpu_share: float = 0.0
    """Share of a GPU's memory; 0 for the engine's choice."""
    settings: SettingsHeader | None = None
    """The source of a draft size that the user did not give."""
    port: int = 0
    """A port of the loopback, known when the server is started."""
    scratch: Path = Path()
    """A folder of this launch alone, known when the server is started: for files that an engine
    needs in its own layout.
    """


@dataclass(frozen=True, slots=True)
class EngineMethod:
    """A method of an engine."""

    title: str
    """Title in tables."""
    num_tokens: int = 0
    """Tokens per draft by default; 0 if the method decides."""
    weights: str | None = None
    """The method whose weights it reads, by the name on model cards; None if it reads none."""
    needs_weights: bool = True
    """False if the weights may be part of the target's checkpoint."""
    scopes: tuple[Scope, ...] = ()
    """Lifetimes of its memory, the engine's default first; empty without a choice."""
    is_chain: bool = False
    """It drafts token by token: at all loads, a shorter draft is the beginning of a longer one."""
    is_default: bool = True
    """False for a method that needs an install or a model of its own: it runs only if named."""
    since: str = ""
    """The engine's first version with the method; empty if all versions known here have it."""
    gone_in: str = ""
    """The engine's first version without the method; empty if the latest has it."""
    engine_name: str = ""
    """The engine's name of the method; empty if it is ours."""
    options: Mapping[str, type[OptionValue]] = field(default_factory=dict)
    """The types of further options, by the engine's names of the options."""


WHOLE = "spec"
"""The method whose whole configuration comes from a file of the user."""
WHOLE_METHOD = EngineMethod("Speculation", is_default=False, options={"file": str, "name": str})
METHODS = {
    "vanilla": EngineMethod("Vanilla"),
    "ngram": EngineMethod("N-gram", 5),
    "sps": EngineMethod("SpS", 4, "sps", is_chain=True),
    "eagle": EngineMethod("EAGLE", 4, "eagle", is_chain=True),
    "eagle3": EngineMethod("EAGLE-3", 4, "eagle3", is_chain=True),
}
"""Methods of several engines, which draft alike in all of them."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A serving engine that can be started."""

    title: str
    """Title in tables."""
    executable: tuple[str, ...]
    """The words that begin its command line."""
    install: str
    """How to install it, for messages."""
    methods: Mapping[str, EngineMethod]
    """The methods that it can run."""
    arguments: Callable[[Launch], list[str]]
    """Makes its command line without the executable."""
    version_keys: Mapping[str, str]
    """Keys by path. A server that answers at a path with JSON that has the key is this engine,
    and the key's value is its version.
    """
    known_versions: tuple[str, str] = ("", "")
    """The first and the last version with the methods and options in its file in `engines`."""
    option_since: Mapping[str, str] = field(default_factory=dict)
    """First version with an option, or its value (NAME=VALUE), if not the first known version."""
    packages: tuple[str, ...] = ()
    """Python packages that install its executable, for its version."""
    wheel: str = ""
    """A package with the engine in it, used if no executable is installed."""
    launcher: ModuleType | None = None
    """A script that serves the wheel with the engine's own flags. Its `refusal` says why a user's
    arguments cannot be passed, and its `free_flags` lists those that can.
    """
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that it needs, unless the user has set them."""
    thread_variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that set its number of CPU threads: `{}` stands for the number. Empty
    if it has no such variable.
    """
    check_folder: Callable[[Path, str], object] = lambda folder, method: None
    """Raises UserError for a folder of weights that the engine cannot read: a method's, or the
    model's for the method "".
    """
    weight_bytes: Callable[[Path, Dtype], int] = folder_bytes
    """Bytes of a folder's weights in a dtype."""
    process_bytes: int = 4 * 10**9
    """Estimated memory of a server without weights and caches: this much of the machine's memory,
    and on a GPU as much again of the GPU's.
    """
    cpu_cache_gib: int = 0
    """GiB that it always reserves for keys and values on a CPU; 0 if it reserves what it needs."""
    fills_gpu: bool = True
    """It takes all memory of a GPU, or a share that it is given."""
    share_flag: str = ""
    """The flag for a share of a GPU's memory; empty if servers cannot be given equal shares."""
    protocol: StreamProtocol | None = None
    """Its own form of requests, if it has one."""
    is_lossy: Callable[[Mapping[str, Any]], bool] = lambda options: False
    """True if a method's options change the distribution of the output."""
    info_path: str = ""
    """The path of a running server's settings in JSON; empty if they are at the path of its
    version.
    """
    info_options: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda info: {}
    """Picks the options of its speculation from these settings; empty without speculation."""
    takes_size_per_request: bool = False
    """Some of its versions let a request name the most tokens of its drafts."""
    own_flags: tuple[str, ...] = ()
    """Other spellings of flags that specbench sets, and flags that would set them from a file."""
    speculation_flags: tuple[str, ...] = ()
    """Flags of speculation whose names do not begin like one (see `engine_arguments`)."""
    counters: Mapping[str, str] = field(default_factory=dict)
    """Our names of its metrics, by their names without prefix and suffix. The metric of
    `accepted_at` has a label with the position.
    """


def load_engine(name: str) -> Engine:
    """The engine of a file in `engines`."""
    engine: Engine = import_module(f"specbench.measure.server.engines.{name}").ENGINE
    return engine


def set_flags(**arguments: Any) -> list[str]:
    """Flags as words of a command line: `max_len=5` gives `["--max-len", "5"]`.

    `arguments` has the argument of each flag, by the flag's name with `_` in place of `-`. True is
    a flag without an argument. A flag is left out if its argument is None, False, 0 or an empty
    text: then the engine's default holds.
    """
    words: list[str] = []
    for name, argument in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        if argument is True:
            words.append(flag)
        elif argument not in (None, False, ""):  # 0 equals False
            words += [flag, str(argument)]
    return words


def option_flags(options: Mapping[str, Any], prefix: str) -> list[str]:
    """A method's options as words of a command line.

    `draft_p_min=0.5` with the prefix `--spec-` gives `["--spec-draft-p-min", "0.5"]`. `options` has
    the settings by option, with `_` in place of `-`. True is a flag without an argument, and False
    has no flag. Lists and objects are passed as JSON, other settings as they are, 0 too.
    """
    words: list[str] = []
    for option, setting in options.items():
        flag = f"{prefix}{option.replace('_', '-')}"
        if setting is True:
            words.append(flag)
        elif setting is not False:
            is_json = isinstance(setting, (list, dict))
            words += [flag, json.dumps(setting) if is_json else str(setting)]
    return words
