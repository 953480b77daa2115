"""The engines that are installed, and the options with which they run `tiny`."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

_COMMANDS = {
    "vllm": ("SPECBENCH_VLLM", "vllm"),
    "llamacpp": ("SPECBENCH_LLAMA_SERVER", "llama-server"),
}
"""The environment variable that names an engine's command, and the command on the PATH."""
_MODEL = "SPECBENCH_LLAMA_MODEL"
TASKS = "gsm8k,alpaca"


@dataclass(frozen=True)
class Installed:
    """An engine, with the model as it names it and every method that it can run."""

    name: str
    command: str
    model: str
    methods: tuple[str, ...]


def installed(name: str) -> Installed:
    """An engine; skips the test without one."""
    variable, usual = _COMMANDS[name]
    command = os.environ.get(variable) or shutil.which(usual)
    if not command:
        pytest.skip(f"needs {usual} on the PATH, or {variable} with its path")
    if name == "vllm":
        methods = ["ngram", "sps", "eagle3", "medusa"]
        return Installed(name, command, "tiny", tuple(methods))
    folder = os.environ.get(_MODEL)
    if not folder:
        pytest.skip(f"needs {_MODEL}: a folder with tiny as a GGUF file")
    heads = [one for one in ("sps", "eagle3") if (Path(folder) / one).is_dir()]
    methods = ["ngram", *(f"{one}:weights={Path(folder) / one}" for one in heads)]
    return Installed(name, command, folder, tuple(methods))
