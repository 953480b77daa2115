"""Attacks with what a user gives: recipes, cards, datastores, end tokens and wrong names.

Each is taken or refused in one message, in time, and a wrong name is told before any download.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
from safetensors.numpy import load_file, save_file

from methods._datastore import Datastore
from specbench.data.tasks import find_tasks
from specbench.errors import CheckpointError, UserError
from specbench.measure.suite.recipe import read_recipe
from tests.faults.program import model_folder, specbench
from tests.support.checkpoint import write_prompts

TRIES = 400
RECIPE = """title = "Two"
[values]
limit = 1
[[runs]]
models = ["tiny"]
methods = ["pld", "lookahead:ngram=3"]
temperatures = [0, 1]
"""
CARD = """name = "mine"
title = "Mine"
description = "Words."
order = 30
[hub]
id = "one/two"
config = "main"
split = "test"
turns = ["{question}"]
category = "math"
default_limit = 80
"""
DEEP = "[" * 5000 + "]" * 5000
VALUES = [DEEP, "9" * 5000, "'''", "{", "-1", "1e999", "nan", "true", '""', "[[1]]"]
ENDS: list[Any] = [2**63, 2**31, -1, 10**30, 1.5, "x", "", None, {}, [[]], [2**63], [0, -5]]
NAMES = ("--model", "nope"), ("--method", "pdl"), ("--dataset", "gsm"), ("--method", "pld:a=1")


def attack(random: Random, folder: Path) -> None:
    random.choice((_recipe, _card, _datastore, _end_token, _order))(random, folder)


def _mutated(random: Random, text: str) -> bytes:
    """A line with another value or key, a line gone or twice, or bytes changed or cut."""
    lines = text.splitlines(keepends=True)
    at, kind = random.randrange(len(lines)), random.randrange(5)
    if kind == 0 and "=" in lines[at]:
        lines[at] = lines[at].split("=")[0] + f"= {random.choice(VALUES)}\n"
    elif kind == 1:
        lines[at] = f"{random.choice(('wrong', 'a.b', 'limit_s', DEEP))} = 3\n"
    elif kind == 2:
        lines[at] *= random.choice((0, 2))
    content = bytearray("".join(lines).encode())
    if kind == 3:
        for _ in range(random.choice((1, 5))):
            content[random.randrange(len(content))] = random.randrange(256)
    return bytes(content[: random.randrange(len(content))] if kind == 4 else content)


def _recipe(random: Random, folder: Path) -> None:
    path = folder / "recipe.toml"
    path.write_bytes(_mutated(random, RECIPE))
    try:
        read_recipe(path)
    except UserError as error:
        _is_one_message(error)
        assert specbench("suite", path, folder=folder).code == 2


def _card(random: Random, folder: Path) -> None:
    path = folder / "mine.toml"
    path.write_bytes(_mutated(random, CARD))
    try:
        find_tasks([str(path)])
    except UserError as error:
        _is_one_message(error)


def _datastore(random: Random, folder: Path) -> None:
    """A store that is read drafts what the text says; any other is refused."""
    texts = [[random.randrange(40) for _ in range(random.randrange(1, 60))] for _ in range(4)]
    made, path = Datastore.build(texts), folder / "store.safetensors"
    made.save(path)
    parts = load_file(path)
    name, kind = random.choice(("token_ids", "order")), random.randrange(6)
    array = parts[name]
    if kind == 0:
        array[random.randrange(len(array))] = random.choice((-2, 10**9, *array[:3]))
    elif kind == 1:
        parts[name] = array.astype(random.choice((np.int64, np.float32, np.int8)))
    elif kind == 2:
        parts[name] = random.choice((array[:-1], array[:0], array[None], array[:1]))
    elif kind == 3:
        parts[name] = np.array(random.sample([*array], len(array)), dtype=array.dtype)
    elif kind == 4:
        del parts[name]
    save_file(parts, path)
    if kind == 5:
        content = path.read_bytes()
        path.write_bytes(content[: random.randrange(len(content))])
    try:
        store = Datastore.load(path)
    except CheckpointError as error:
        _is_one_message(error)
        return
    context = random.choice(texts)[:2]
    text = load_file(path)["token_ids"].tolist()
    for found in store.continuations(context, 3, 5):
        at = [i for i in range(len(text)) if text[i : i + len(context)] == context]
        after = [text[i + len(context) :][: len(found)] for i in at]
        assert found in after, "not in the text"


def _end_token(random: Random, folder: Path) -> None:
    """End tokens that no vocabulary has."""
    model = Path(shutil.copytree(model_folder(), folder / "model"))
    for name in random.sample(("config.json", "generation_config.json"), random.randint(1, 2)):
        values = json.loads((model / name).read_text())
        values[random.choice(("eos_token_id", "pad_token_id"))] = random.choice(ENDS)
        (model / name).write_text(json.dumps(values))
    prompts = write_prompts(folder / "one.jsonl", ["ab ab ab"])
    with patch("specbench.machine.bandwidth.bandwidth", lambda device, block: 1e9):
        said = specbench(
            *("run", "--model", "model", "--method", "pld", "--prompts", prompts, "--device"),
            *("cpu", "--max-new-tokens", "4", "--template", "none", "--quiet"),
            *("--output", "run"),
            folder=folder,
        )
    assert said.code in (0, 2), said.err
    assert "Error" not in said.err or "model" in said.err, said.err


def _order(random: Random, folder: Path) -> None:
    """A wrong name beside prompts that are not here: the name is told, and nothing fetched."""
    asked: list[object] = []
    rest = ("--prompts", random.choice(("paper", "hub")), "--dataset", "gsm8k")
    name = random.choice(NAMES)
    words = [*rest, *name] if name[0] != "--dataset" else [*rest[:2], *name]
    if is_offline := random.random() < 0.5:
        words = [*words, "--offline"]
    with patch("socket.getaddrinfo", lambda *given, **_: asked.append(given)):
        own = {"SPECBENCH_CACHE": "empty", "HF_HUB_OFFLINE": str(int(is_offline))}
        said = specbench("run", *words, folder=folder, **own)
    assert said.code == 2 and not asked, (said, asked)
    assert "offline" not in said.err and f"'{name[1].split('=')[0].split(':')[-1]}" in said.err


def _is_one_message(error: UserError) -> None:
    assert error.message and error.hint and len(error.message) < 1000, error.message
    assert "Traceback" not in error.message and "\0" not in error.message, error.message
