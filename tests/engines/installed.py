"""The engines that are installed, and the options with which they run `tiny`."""

import atexit
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from specbench.zoo import TINY

_COMMANDS = {
    "vllm": ("SPECBENCH_VLLM", "vllm"),
    "llamacpp": ("SPECBENCH_LLAMA_SERVER", "llama-server"),
}
"""The environment variable that names an engine's command, and the command on the PATH."""
TASKS = "gsm8k,alpaca"


@dataclass(frozen=True)
class Installed:
    """An engine, its name for the model, and every method that it can run.

    Without a `command`, specbench finds the engine itself.
    """

    name: str
    command: tuple[str, ...]
    model: str
    methods: tuple[str, ...]


def installed(name: str) -> Installed:
    """An engine. The test is skipped if it is not installed."""
    variable, usual = _COMMANDS[name]
    given = os.environ.get(variable)
    is_in_wheel = name == "llamacpp" and find_spec("xllamacpp")
    if not (given or shutil.which(usual) or is_in_wheel):
        wheel = ", or the wheel xllamacpp" if name == "llamacpp" else ""
        pytest.skip(f"needs {usual} on the PATH, {variable} with its path{wheel}")
    command = (given,) if given else ()
    if name == "vllm":
        return Installed(name, command, "tiny", ("ngram", "sps", "eagle3", "medusa"))
    folder = tiny_as_gguf()
    heads = [f"{head}:weights={folder / head}" for head in ("sps", "eagle3")]
    return Installed(name, command, str(folder / "target"), ("ngram", *heads))


@cache
def tiny_as_gguf() -> Path:
    """`tiny`, its draft model and its EAGLE-3 head, each in a folder with its GGUF file."""
    from tools.to_gguf import write_folder

    root = Path(tempfile.mkdtemp(prefix="tiny-gguf-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    for name in ("target", "sps", "eagle3"):
        folder = shutil.copytree(TINY / name, root / name)
        target = TINY / "target" if name == "eagle3" else None
        write_folder(folder, folder / "model.gguf", target=target, kind="F32")
    return root
