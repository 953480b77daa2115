"""A command's first line and its error messages come before slow libraries are imported."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from specbench import registry
from specbench.methods import described
from specbench.methods.shared.source import read_options
from tests.cli.conftest import Specbench
from tests.support.paths import RECORDED

SLOW = ("numpy", "torch", "transformers", "pandas", "scipy", "matplotlib")
PROGRAM = """
import os, shlex, sys

slow, is_first = sys.argv[1].split(","), sys.argv[2] == "first"

def end():
    print("END", *[name for name in slow if name in sys.modules], file=spy.stream, flush=True)
    os._exit(7)

class Spy:
    def __init__(self, stream):
        self.stream = stream
    def __getattr__(self, name):
        return getattr(self.stream, name)
    def write(self, text):
        self.stream.write(text)
        if is_first and text.strip():
            end()

def run(words):
    sys.argv = ["specbench", *shlex.split(words)]
    try:
        main()
    except SystemExit as error:
        assert error.code == 2

spy = sys.stderr = Spy(sys.stderr)
from specbench.cli import main
if not is_first:  # all forks then have the modules that a mistake needs
    run("run --method pdl")
for number, words in enumerate(sys.stdin.read().splitlines()):
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7, words
        continue
    spy.stream = open(f"{number}.err", "w", encoding="utf-8")
    run(words)
    end()
"""
FIRST = {
    "run": "Starting: tiny, its default methods, the default tasks",
    "run --method pld,sps --dataset gsm8k": "Starting: tiny, pld, sps, gsm8k",
    "run --method pld:ngram=1|2|3 --dry-run": "Starting: tiny, pld, the default",
    "race hello --method pld": "Starting: tiny, pld\n",
    "doctor": "Checking this machine with tiny …",
    "audit --method pld": "Starting: the audit of pld on tiny",
    "train eagle --model tiny --data self --out o": "Starting: eagle for tiny",
}
_LINES = Path(__file__).with_name("mistakes.txt").read_text(encoding="utf-8").splitlines()
MISTAKES = [line.partition(" => ")[::2] for line in _LINES if not line.startswith("#")]
VLLM_RUN = RECORDED / "vllm-cpu"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder in which the commands with mistakes run."""
    (tmp_path / "bad.jsonl").write_text("{]\n")
    (tmp_path / "empty.toml").touch()
    (tmp_path / "long.jsonl").write_text(json.dumps({"prompt": "word " * 5000}))
    configs = {
        "eagle_head": {"model_type": "llama", "num_hidden_layers": 1},
        "medusa_head": {"medusa_num_heads": 4, "medusa_num_layers": 1},
        "bert": {"model_type": "bert", "num_hidden_layers": 12},
    }
    for name, config in configs.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    header = json.dumps({"other": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(4)
    (model / "model.safetensors").write_bytes(content)
    (model / "tokenizer.json").write_text("{}")
    (model / "tokenizer_config.json").write_text('{"chat_template": "{{ 9 ** 9 }}"}')
    return tmp_path


def is_told(said: str, expected: str) -> bool:
    """Return whether one message of two to five lines has the reason and the fix."""
    first, _, error = said.partition("Error: ")
    is_first = not first or first.startswith(("Starting: ", "Checking this machine"))
    is_short = first.count("\n") <= 1 and 2 <= len(error.splitlines()) <= 5
    return is_first and is_short and all(part in error for part in expected.split(" => "))


def _wrong(until: str, commands: Mapping[str, str], folder: Path) -> list[str]:
    """Run each command until its first word or its end, in a fork of one interpreter.

    Return the commands without the expected words, and those that imported something slow.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ",".join(SLOW), until],
        input="\n".join(commands), cwd=folder, capture_output=True, text=True, timeout=120,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wrong = []
    for number, (words, expected) in enumerate(commands.items()):
        said, _, slow = (folder / f"{number}.err").read_text("utf-8").rpartition("END")
        is_right = said.startswith(expected) if until == "first" else is_told(said, expected)
        wrong += [] if is_right and not slow.strip() else [f"{words}: {said} {slow}"]
    return wrong


def test_the_first_line_comes_before_slow_imports(tmp_path: Path) -> None:
    assert _wrong("first", FIRST, tmp_path) == []


def test_mistakes_are_reported_without_slow_imports(folder: Path) -> None:
    commands = {
        words.replace("RUN", str(VLLM_RUN)): expected
        for words, expected in MISTAKES
        if not words.startswith("~")
    }
    assert _wrong("last", commands, folder) == []
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    ("words", "expected"), [mistake for mistake in MISTAKES if mistake[0][0] == "~"]
)
def test_mistakes_that_only_libraries_find_have_the_same_form(
    specbench: Specbench, folder: Path, words: str, expected: str
) -> None:
    given = [VLLM_RUN if word == "RUN" else word for word in shlex.split(words)[1:]]
    said = specbench(*given)
    assert said.code == 2 and is_told(said.err, expected), said.err
    assert not (folder / "results").exists()


def _options(options: Any) -> list[tuple[object, ...]]:
    described = registry.describe_options(type("", (), {"options": options}))  # type: ignore[arg-type]
    metadata = [{**declared.metadata} for declared in fields(options)]
    return [*zip(described, metadata, strict=True)]


@pytest.mark.parametrize("name", described())
def test_options_read_from_source_equal_the_methods(name: str) -> None:
    module = import_module(f"specbench.methods.{name}")
    assert _options(read_options(name)) == _options(module.METHOD.options)


def test_options_of_an_unreadable_file_are_unknown() -> None:
    assert read_options("_source") is read_options("none") is None
