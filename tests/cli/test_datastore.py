"""`specbench datastore build`, and the run that its last line names.

`specbench train` from the command line.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from specbench.log.store import read_run
from tests.cli.conftest import Specbench

CORPUS = [
    {"text": "Once upon a time there was a fox."},
    {"turns": ["What is 2 + 2?"], "reference": ["2 + 2 = 4."]},
]


def test_a_datastore_is_built_and_its_hash_is_recorded(
    specbench: Specbench, tmp_path: Path
) -> None:
    corpus, store = tmp_path / "corpus.jsonl", tmp_path / "store"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in CORPUS))
    build = ("datastore", "build", str(corpus), "--model", "tiny", "--output", str(store))
    assert "2 texts" in specbench(*build).out
    assert "exists" in specbench(*build).err
    out = tmp_path / "run"
    specbench(
        "run", "--method", f"rest:datastore={store}", "--dataset", "gsm8k", "--limit", "1",
        "--max-new-tokens", "4", "--output", str(out),
    )  # fmt: skip
    about = read_run(out).header.methods["rest:datastore=store"]
    assert about.weights is not None
    assert about.weights.files["store"].bytes == store.stat().st_size


def test_training_says_what_it_left_out_and_ends_with_the_command_that_runs_the_head(
    specbench: Specbench, model: Path, prompt_file: Path, tmp_path: Path
) -> None:
    chat = {"conversations": [{"from": "human", "value": "ab?"}, {"from": "gpt", "value": "ab ab"}]}
    lost = {"conversations": [{"from": "human", "value": "and?"}]}
    data = tmp_path / "chats.json"
    data.write_text(json.dumps([chat, chat, chat, lost]))
    options = ("--template", "none", "--device", "cpu")
    small = ("--steps", 2, "--rows", 1, "--length", 32)
    head = tmp_path / "head"
    command = ("train", "medusa", "--model", model, "--data", data, "--out", head)
    said = specbench(*command, *small, *options)
    assert said.code == 0
    assert f"Left out of {data}: chats without an answer (1)." in said.err
    assert "step 2/2  loss " in said.err
    last = said.out.splitlines()[-1]
    _, *words = shlex.split(last.removeprefix("Run it: "))
    run = specbench(*words, "--prompts", prompt_file, "--max-new-tokens", 4, "--quiet", *options)
    assert run.code == 0
    assert "Medusa (weights=head)" in run.out
