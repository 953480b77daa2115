"""Find the executable of a serving engine, or else the script that serves the engine's wheel."""

import shutil
import sys
from importlib import metadata, util
from typing import NamedTuple

from specbench.errors import UserError
from specbench.measure.server.engine import Engine
from specbench.measure.server.engine_version import find_version
from specbench.measure.spec import RunSpec


class Executable(NamedTuple):
    """An engine's executable."""

    words: tuple[str, ...]
    """The words that begin its command line."""
    wheel: str = ""
    """The name and version of the wheel that has the engine; empty without one."""
    version: str = ""
    """The engine's version; empty if it is unknown, and for a wheel."""


def find_executable(spec: RunSpec, engine: Engine) -> Executable:
    """The engine's command as the user gave it, from the PATH, or for the engine's wheel.

    A wheel is a Python package that contains the engine, but no command. The script `launcher`
    serves it, if the user gave no command and the engine's executable is not installed.

    Args:
        spec: the run's options. `threads` is the number of CPU threads (None if not given),
            `engine_command` has the words of the engine's command that the user gave (empty if not
            given), and `engine_args` has further words for the engine.
        engine: the serving engine. It has its title in tables, the words that begin its command
            line (`executable`), how to install it, and the name of its wheel (empty without one).

    Raises:
        UserError: the program that begins the command does not exist and no wheel can be used, or
            the engine does not take the user's threads or arguments.
    """
    if spec.threads and not engine.thread_variables:  # it has no variable that sets threads
        raise UserError(
            f"--threads {spec.threads} cannot be passed to {engine.title}.", "Leave it out."
        )
    program, *arguments = spec.engine_command or engine.executable
    path = shutil.which(program)  # None if there is no such program
    if path:
        return Executable((path, *arguments), version=find_version(engine, path, arguments))
    launcher = engine.launcher  # the module of the script; None without a wheel
    if spec.engine_command or not launcher or not util.find_spec(engine.wheel):
        raise UserError(
            f"{engine.title} is not installed: there is no {program}.",
            f"Install {engine.install}, or name it: --engine-command PATH.",
        )
    if reason := launcher.refusal(spec.engine_args):  # empty if the script can take them
        raise UserError(
            f"--engine-args: {reason}",
            f"It takes {', '.join(launcher.free_flags())}. For other flags, name a {program}: "
            "--engine-command PATH.",
        )
    return Executable(
        # With -P, the script's folder is not searched for modules.
        words=(sys.executable, "-P", str(launcher.__file__)),
        # Name and version, for the run's title and header.
        wheel=f"{engine.wheel} {metadata.version(engine.wheel)}",
    )
