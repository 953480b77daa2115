"""`specbench datastore build` and `specbench train`: a run can use what each of them writes."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from specbench.log.store import read_run
from tests.cli.conftest import Specbench
from tests.models.making import write_jsonl
from tests.support.texts import assert_in

CORPUS = [
    {"text": "Once upon a time there was a fox."},
    {"turns": ["What is 2 + 2?"], "reference": ["2 + 2 = 4."]},
]


def test_a_datastore_is_built_and_its_hash_is_recorded(specbench: Specbench) -> None:
    corpus, store = write_jsonl(Path("corpus.jsonl"), [*CORPUS]), Path("store")
    build = ("datastore", "build", corpus, "--model", "tiny", "--output", store)
    assert "2 texts" in specbench(*build).out
    assert "exists" in specbench(*build).err
    call = ("run", "--method", f"rest:datastore={store}", "--dataset", "gsm8k", "--limit", "1")
    specbench(*call, "--max-new-tokens", "4", "--output", "run")
    about = read_run(Path("run")).header.methods["rest:datastore=store"]
    assert about.weights is not None
    assert about.weights.files["store"].bytes == store.stat().st_size


def test_training_names_what_it_left_out_and_the_next_command(
    specbench: Specbench, model: Path, prompt_file: Path
) -> None:
    chat = {"conversations": [{"from": "human", "value": "ab?"}, {"from": "gpt", "value": "ab ab"}]}
    lost = {"conversations": [{"from": "human", "value": "and?"}]}
    chats = Path("chats.json")
    chats.write_text(json.dumps([chat, chat, chat, lost]))
    options = ("--template", "none", "--device", "cpu")
    small = ("--steps", 2, "--rows", 1, "--length", 32)
    command = ("train", "medusa", "--model", model, "--data", chats, "--out", "head")
    said = specbench(*command, *small, *options, code=0)
    left_out = f"Left out of {chats}: chats without an answer (1)."
    assert_in(said.err, left_out, "step 2/2  loss ")
    last = said.out.splitlines()[-1]
    _, *words = shlex.split(last.removeprefix("Run it: "))
    run = specbench(
        *words, "--prompts", prompt_file, "--max-new-tokens", 4, "--quiet", *options, code=0
    )
    assert "Medusa (weights=head)" in run.out
