"""Describe serving engines by their titles, methods, command lines, requests and metrics."""

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
"""Our names for vLLM's metrics about drafts, which other engines use too."""

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
    """The most tokens of a prompt with its answer."""
    num_at_once: int
    """The most requests that the server works on at once."""
    dtype: str
    """The dtype of the weights; empty for the engine's choice."""
    is_cpu: bool
    """True if the server runs without a GPU."""
    scope: Scope
    """The method remembers tokens for a "request", or for a whole "run"."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The user's options as the engine gets them, by the engine's names."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """The same options as a run's header has them. A file is described by its name, hash and
    content.
    """
    gpu_share: float = 0.0
    """Share of a GPU's memory; 0 for the engine's choice."""
    settings: SettingsHeader | None = None
    """The source of a draft size that the user did not give."""
    port: int = 0
    """A port of the loopback, known when the server is started."""
    scratch: Path = Path()
    """A folder for files that the engine needs in its own layout. Only this launch uses it. Known
    when the server is started.
    """


@dataclass(frozen=True, slots=True)
class EngineMethod:
    """A method of an engine."""

    title: str
    """Title in tables."""
    num_tokens: int = 0
    """The default number of tokens per draft, or 0 if the method decides."""
    weights: str | None = None
    """The name, on model cards, of the method whose weights it reads; None if it reads none."""
    needs_weights: bool = True
    """False if the weights may be part of the target's checkpoint."""
    scopes: tuple[Scope, ...] = ()
    """The scopes that it can have, the engine's default first; empty if there is no choice."""
    is_chain: bool = False
    """True if it drafts token by token, so that each short draft is the beginning of a longer
    one.
    """
    is_default: bool = True
    """False for a method that needs a special installation or model: it runs only if named."""
    gone_in: str = ""
    """The engine's first version without the method; empty if the latest has it."""
    engine_name: str = ""
    """The engine's name for the method; empty if it is the same as ours."""
    options: Mapping[str, type[OptionValue]] = field(default_factory=dict)
    """The types of the method's other options, by the engine's names of the options."""


WHOLE = "spec"
"""The name of the method whose whole configuration comes from a file of the user."""
WHOLE_METHOD = EngineMethod("Speculation", is_default=False, options={"file": str, "name": str})
METHODS = {
    "vanilla": EngineMethod("Vanilla"),
    "ngram": EngineMethod("N-gram", 5),
    "sps": EngineMethod("SpS", 4, "sps", is_chain=True),
    "eagle": EngineMethod("EAGLE", 4, "eagle", is_chain=True),
    "eagle3": EngineMethod("EAGLE-3", 4, "eagle3", is_chain=True),
}
"""Methods that draft alike in several engines."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A serving engine that can be started."""

    title: str
    """Title in tables."""
    executable: tuple[str, ...]
    """The words that begin its command line."""
    install: str
    """A sentence for messages about how to install it."""
    methods: Mapping[str, EngineMethod]
    """The methods that it can run."""
    arguments: Callable[[Launch], list[str]]
    """Makes the words of its command line that follow the executable."""
    version_keys: Mapping[str, str]
    """JSON keys by path. If a server's answer at a path is JSON with the key, the server is of this
    engine, and the key's value is its version.
    """
    known_versions: tuple[str, str] = ("", "")
    """The first and the last version known to have the methods and options listed in its file."""
    option_since: Mapping[str, str] = field(default_factory=dict)
    """The first version with an option, or with one of its values (NAME=VALUE), if it is later than
    the first known version.
    """
    packages: tuple[str, ...] = ()
    """Python packages that install its executable; their metadata have its version."""
    wheel: str = ""
    """A Python package that contains the engine, used if no executable is installed."""
    launcher: ModuleType | None = None
    """A script that serves a model with the engine in the wheel, and takes the engine's flags. Its
    `refusal` says why a user's arguments cannot be passed, and `free_flags` lists allowed flags.
    """
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that it needs, unless the user has set them."""
    thread_variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that set its number of CPU threads. `{}` in a value stands for the
    number. Empty if it has no such variable.
    """
    check_folder: Callable[[Path, str], object] = lambda folder, method: None
    """Raises UserError for a folder of weights that the engine cannot read. The second argument is
    the method that has the weights, or "" for the model.
    """
    weight_bytes: Callable[[Path, Dtype], int] = folder_bytes
    """Bytes of a folder's weights in a dtype."""
    process_bytes: int = 4 * 10**9
    """The estimated bytes of a server without weights and caches. A server on a GPU needs as many
    bytes of the machine's memory and of the GPU's.
    """
    cpu_cache_gib: int = 0
    """The GiB that it always reserves for keys and values on a CPU, or 0 if it reserves what it
    needs.
    """
    fills_gpu: bool = True
    """True if it takes all memory of a GPU, or a share that it is given."""
    share_flag: str = ""
    """The flag for a share of a GPU's memory; empty if servers cannot be given equal shares."""
    protocol: StreamProtocol | None = None
    """The engine's own protocol for requests; None if it has only the one that all share."""
    is_lossy: Callable[[Mapping[str, Any]], bool] = lambda options: False
    """Takes a method's options. True if they change the distribution of the output."""
    info_path: str = ""
    """The path at which a running server gives its settings in JSON; empty if that is the path of
    its version.
    """
    info_options: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda info: {}
    """Picks the options of speculation from these settings; empty without speculation."""
    takes_size_per_request: bool = False
    """True if a request can set the most tokens of its drafts, in some versions."""
    own_flags: tuple[str, ...] = ()
    """Other spellings of the flags that specbench sets, and flags that set these from a file."""
    speculation_flags: tuple[str, ...] = ()
    """Flags of speculation whose names do not show that (see `engine_arguments`)."""
    completes_flags: bool = False
    """True if it takes the beginning of a flag for the whole flag, as Python's argparse does."""
    counters: Mapping[str, str] = field(default_factory=dict)
    """Maps the names of its metrics, without prefix and suffix, to our names. The metric that we
    call `accepted_at` has a label with the position in the draft.
    """


def load_engine(name: str) -> Engine:
    """The engine that a file in `engines` describes. `name` is the file's name without `.py`."""
    engine: Engine = import_module(f"specbench.measure.server.engines.{name}").ENGINE
    return engine


def set_flags(**arguments: Any) -> list[str]:
    """The words of a command line for flags. For example, `max_len=5` gives `["--max-len", "5"]`.

    `arguments` has the argument of each flag, by the flag's name with `_` in place of `-`. True
    stands for a flag without an argument. A flag is left out if its argument is None, False, 0 or
    an empty text, so that the engine's default holds.
    """
    given = {
        name: argument
        for name, argument in arguments.items()
        if argument not in (None, False, "")  # 0 equals False
    }
    return option_flags(given, "--")


def option_flags(options: Mapping[str, Any], prefix: str) -> list[str]:
    """A method's options as words of a command line.

    `draft_p_min=0.5` with the prefix `--spec-` gives `["--spec-draft-p-min", "0.5"]`. `options` has
    the settings by option, with `_` in place of `-`. True stands for a flag without an argument,
    and False for no flag. Lists and dicts are passed as JSON, other settings (also 0) as text.
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
