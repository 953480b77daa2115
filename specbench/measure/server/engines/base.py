"""The description of an engine: its name, executable, methods, and command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specbench.types import Scope

WEIGHTS = "weights"


@dataclass(frozen=True, slots=True)
class Launch:
    """One server to start: a model with a method. `port` is one of the loopback.

    `scope` is the lifetime of the method's memory, for methods that have the choice.
    `scratch` is a folder of this launch alone, for files that an engine needs in a form of its own.
    """

    model: Path
    served_name: str
    method: str
    weights: Path | None
    num_tokens: int
    port: int
    context: int
    num_at_once: int
    dtype: str
    is_cpu: bool
    scratch: Path
    scope: str = ""


@dataclass(frozen=True, slots=True)
class EngineMethod:
    """A method of an engine: its title, tokens per draft, and whose weights it reads, if any.

    `scopes` are lifetimes of its memory, the engine's default first; empty without the choice.
    """

    title: str
    num_tokens: int = 0
    weights: str | None = None
    scopes: tuple[Scope, ...] = ()


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine. `arguments` makes its command line without the executable.

    `settings` are environment variables that it needs; those that the user has set stay.
    `check_folder` raises UserError for a folder of weights that the engine cannot read.
    """

    name: str
    title: str
    executable: tuple[str, ...]
    install: str
    methods: Mapping[str, EngineMethod]
    arguments: Callable[[Launch], list[str]]
    settings: Mapping[str, str] = field(default_factory=dict)
    check_folder: Callable[[Path], object] = lambda folder: None


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
