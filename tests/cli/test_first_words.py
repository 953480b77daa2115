"""The first words of a command and its mistakes come before slow libraries are imported."""

from __future__ import annotations

import json
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
from specbench.methods._source import read_options

SLOW = ("numpy", "torch", "transformers", "pandas", "scipy", "matplotlib")
PROGRAM = """
import os, sys

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

spy = sys.stderr = Spy(sys.stderr)
from specbench.cli import main
for number, words in enumerate(sys.stdin.read().splitlines()):
    if child := os.fork():
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7, words
        continue
    spy.stream = open(f"{number}.err", "w", encoding="utf-8")
    sys.argv = ["specbench", *words.split()]
    try:
        main()
    except SystemExit as error:
        assert error.code == 2
        end()
    os._exit(1)
"""
FIRST = {
    "run": "Starting: tiny, its default methods, the default tasks",
    "run --method pld,sps --dataset gsm8k": "Starting: tiny, pld and sps, gsm8k",
    "run --method pld:ngram=1|2|3 --dry-run": "Starting: tiny, 3 methods, the def",
    "race hello --method pld": "Starting: tiny, pld\n",
    "doctor": "Checking this machine with tiny …",
    "audit --method pld": "Starting: the audit of pld on tiny",
    "train eagle --model tiny --data self --out o": "Starting: eagle for tiny",
}
MISTAKES = {
    "run --method pld:ngram=two": "Option ngram='two' of method 'pld' is not of type",
    "run --method eagle3:dpth=3": "Did you mean 'depth'?",
    "run --method sps:schedule=x": "No value 'x' of sps:schedule",
    "run --method suffix:num_tokens=0": "Give at least 1.",
    "run --method rest": "specbench datastore build FILE.jsonl --model tiny",
    "run --method rest:datastore=none": "Datastore none is not a file.",
    "run --method rest:datastore=model/model.safetensors": "is not a datastore: it has",
    "run --method sam:datastore=model/config.json": "is not a datastore: it: ",
    "run --model model": "computes a power",
    "run --method medusa:weights=head": "there is no folder 'head' here",
    "run --method medusa:weights=.": "has no config.json",
    "run --model .": "has no config.json",
    "run --template nosuch": "No template 'nosuch'.",
    "race --method plt hello": "Did you mean 'pld'?",
    "doctor --model nope": "No model 'nope'.",
    "audit --method pld:ngrm=3": "Did you mean 'ngram'?",
    "run --method eagle2:depth=1000000": "is too large.\nGive at most 1000.",
    "run --settings none.toml": "is neither a file nor a run.",
    "run --output model/config.json/out": "cannot be written to.",
    "run --until-ci 10% --limit 1": "cannot be reached: too few prompts",
    "run --until-ci 10% --method vanilla": "needs vanilla and another method",
    "train eagle --model tiny --data x --out o": "There is no file x.",
    "train eagle --model tiny --data x --out o --openings y": "--openings are for",
}


def _wrong(until: str, commands: Mapping[str, str], folder: Path) -> list[str]:
    """Run commands until their first word or their end, each in a fork of one interpreter.

    Returns those that did not say what they should, or imported something slow.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ",".join(SLOW), until],
        input="\n".join(commands), cwd=folder, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = []
    for number, (words, told) in enumerate(commands.items()):
        said, _, slow = (folder / f"{number}.err").read_text("utf-8").rpartition("END")
        is_told = said.startswith(told) if until == "first" else told in said
        found += [] if is_told and not slow.strip() else [f"{words}: {said} {slow}"]
    return found


def test_the_first_line_comes_before_slow_imports(tmp_path: Path) -> None:
    assert _wrong("first", FIRST, tmp_path) == []


def test_a_mistake_is_told_without_slow_imports(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    header = json.dumps({"other": {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    content = len(header).to_bytes(8, "little") + header + bytes(4)
    (folder / "model.safetensors").write_bytes(content)
    (folder / "tokenizer.json").write_text("{}")
    (folder / "tokenizer_config.json").write_text('{"chat_template": "{{ 9 ** 9 }}"}')
    assert _wrong("last", MISTAKES, tmp_path) == []


def _options(options: Any) -> list[tuple[object, ...]]:
    described = registry.describe_options(type("", (), {"options": options}))  # type: ignore[arg-type]
    metadata = [{**one.metadata} for one in fields(options)]
    return [*zip(described, metadata, strict=True)]


@pytest.mark.parametrize("name", described())
def test_options_read_from_source_are_those_of_the_method(name: str) -> None:
    module = import_module(f"specbench.methods.{name}")
    read = read_options(Path(str(module.__file__)))
    assert _options(read) == _options(module.METHOD.options)


def test_options_of_the_plug_in_of_init_are_read_and_others_left(tmp_path: Path) -> None:
    import specbench.cli

    template = Path(specbench.cli.__file__).with_name("plugin") / "specbench_bigram.py.txt"
    assert [one[0].name for one in _options(read_options(template))] == ["num_tokens"]  # type: ignore[attr-defined]
    for text in ("", "import torch\nMETHOD = make()", "from torch import X\nMETHOD = M(options=X)"):
        file = tmp_path / "other.py"
        file.write_text(text)
        assert read_options(file) is None
