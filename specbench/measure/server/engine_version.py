"""Find the version of an engine before it is started, and the methods that this version has."""

import re
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from specbench.errors import UserError
from specbench.measure.server.engine import Engine, EngineMethod
from specbench.registry import MethodChoice

_ASK_S = 60.0
"""Seconds that `PROGRAM --version` may take: some engines import torch first."""
_VERSION = re.compile(r"\d+(?:\.\d+)*")
"""A number with points, such as 0.32.0, or the number of a build, such as 11434."""


def find_version(engine: Engine, program: str, arguments: Sequence[str] = ()) -> str:
    """The version of an installed engine, or an empty text if it cannot be found.

    The version is in the metadata of the engine's Python package, if the environment of `program`
    has it. Else it is what `program --version` prints. A program that only starts the engine
    (python, or any with `arguments`) would print its own version, so it is not asked.

    Args:
        engine: the serving engine, with the names of its Python packages.
        program: the path of the program that begins the engine's command line.
        arguments: further words that begin the command line, such as `-m sglang.launch_server`.
    """
    environment = Path(program).parent.parent  # the folder above bin/PROGRAM
    for package in engine.packages:
        # The metadata are in a folder PACKAGE-VERSION.dist-info, where PACKAGE has `_` for `-`.
        pattern = f"lib/python*/site-packages/{package.replace('-', '_')}-*.dist-info"
        for folder in environment.glob(pattern):
            return folder.name.removesuffix(".dist-info").rpartition("-")[2]
    if arguments or Path(program).name.startswith("python"):
        return ""
    with suppress(OSError, subprocess.SubprocessError, UnicodeDecodeError):
        answer = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            timeout=_ASK_S,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        match = _VERSION.search(answer.stdout or answer.stderr)
        return match[0] if match else ""
    return ""


def is_in_version(method: EngineMethod, version: str) -> bool:
    """True if this version of the engine has the method, or if the version is unknown ("")."""
    number = _number(version)
    return not number or not method.gone_in or number < _number(method.gone_in)


def is_known_version(engine: Engine, version: str) -> bool:
    """True if specbench knows the engine's methods and options in this version."""
    first, last = map(_number, engine.known_versions)
    number = _number(version)
    return first <= number and number[: len(last)] <= last


def check_options(engine: Engine, choice: MethodChoice, version: str) -> None:
    """Raise UserError if a version of the engine lacks an option that the user gave for a method.

    `choice.given` has the texts that the user gave, by option. An option may be older than one of
    its values, so both NAME and NAME=TEXT are looked up. If the version is unknown (""), nothing is
    refused.
    """
    for name, given_text in choice.given.items():
        for option in (name, f"{name}={given_text}"):
            since = engine.option_since.get(option, "")
            if since and version and _number(version) < _number(since):
                raise UserError(
                    f"{engine.title} {version} has no {option}: it was added in {since}.",
                    f"Use a newer {engine.title} (--engine-command PATH), or leave {option} out.",
                )


def check_version(engine: Engine, name: str, version: str) -> None:
    """Raise UserError if the method `name` was removed before this version of the engine."""
    method = engine.methods[name]
    if not is_in_version(method, version):
        raise UserError(
            f"{engine.title} {version} has no {name}: it was removed in {method.gone_in}.",
            f"Use an older {engine.title} (--engine-command PATH), or leave {name} out.",
        )


def _number(version: str) -> tuple[int, ...]:
    """The parts of a version's number, such as (0, 32, 0). Empty if the version has no number."""
    match = _VERSION.match(version)
    return tuple(int(part) for part in match[0].split(".")) if match else ()
