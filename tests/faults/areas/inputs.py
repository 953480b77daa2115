"""Attacks with a user's files: recipes, cards and datastores.

A file is accepted, or refused in one message.
"""

from pathlib import Path
from random import Random

import numpy as np
from safetensors.numpy import load_file, save_file

from methods.shared.datastore import Datastore
from specbench.data.tasks import find_tasks
from specbench.errors import UserError
from specbench.measure.suite.recipe import read_recipe
from tests.faults.damage import change_tensors, damage_file, damaged
from tests.faults.program import check_message, specbench

TRIES = 240
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


def attack(random: Random, folder: Path) -> None:
    try:
        random.choice((_recipe, _card, _datastore))(random, folder)
    except UserError as error:
        check_message(error)
        if (recipe := folder / "recipe.toml").exists():
            assert specbench("suite", recipe, folder=folder).code == 2


def _mutated(random: Random, text: str) -> bytes:
    """The text with a line changed, removed or repeated, or with damaged bytes."""
    lines = text.splitlines(keepends=True)
    at, kind = random.randrange(len(lines)), random.randrange(5)
    if kind == 0 and "=" in lines[at]:
        lines[at] = lines[at].split("=")[0] + f"= {random.choice(VALUES)}\n"
    elif kind == 1:
        lines[at] = f"{random.choice(('wrong', 'a.b', 'limit', DEEP))} = 3\n"
    elif kind == 2:
        lines[at] *= random.choice((0, 2))
    content = "".join(lines).encode()
    return damaged(random, content) if kind > 2 else content


def _recipe(random: Random, folder: Path) -> None:
    (folder / "recipe.toml").write_bytes(_mutated(random, RECIPE))
    read_recipe(folder / "recipe.toml")


def _card(random: Random, folder: Path) -> None:
    (folder / "mine.toml").write_bytes(_mutated(random, CARD))
    find_tasks([str(folder / "mine.toml")])


def _datastore(random: Random, folder: Path) -> None:
    """A changed datastore is refused, or drafts only continuations that its text has."""
    texts = [[random.randrange(40) for _ in range(random.randrange(1, 60))] for _ in range(4)]
    path = folder / "store.safetensors"
    Datastore.build(texts).save(path)
    random.choice((_change_array, _change_array, change_tensors, damage_file))(random, folder)
    store = Datastore.load(path)
    context = random.choice(texts)[:2]
    token_ids = load_file(path)["token_ids"].tolist()
    for draft in store.continuations(context, 3, 5):
        starts = [i for i in range(len(token_ids)) if token_ids[i : i + len(context)] == context]
        continuations = [token_ids[i + len(context) :][: len(draft)] for i in starts]
        assert draft in continuations, "a draft is not in the text"


def _change_array(random: Random, folder: Path) -> None:
    path = folder / "store.safetensors"
    parts = load_file(path)
    name, kind = random.choice(("token_ids", "order")), random.randrange(3)
    array = parts[name]
    if kind == 0:
        array[random.randrange(len(array))] = random.choice((-2, 10**9, *array[:3]))
    elif kind == 1:
        parts[name] = random.choice((array[:-1], array[:0], array[None], array[:1]))
    else:
        parts[name] = np.array(random.sample([*array], len(array)), dtype=array.dtype)
    save_file(parts, path)
