"""Attacks on the files of static trees: damage, and a different tree in a continued run.

A run uses the tree that it names, or is refused with the file's path. No run has steps of two
trees.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

from specbench.errors import UserError
from specbench.log.store import read_run
from specbench.measure.spec import RunSpec
from tests.cli.conftest import cut
from tests.faults import damage
from tests.faults.areas.checkpoints import head_of
from tests.faults.program import check_message, model_folder, ran
from tests.support.checkpoint import write_prompts

TRIES = 100
TREE = [[0], [0, 0], [1]]
ODD: tuple[Any, ...] = (
    [],
    [[]],
    {},
    None,
    3,
    [[0]] * 9,
    [[-1]],
    [[10**30]],
    [[0, 0]],
    [["0"]],
    [[0.5]],
    [[True]],
    [[0] * 99],
    [[n] for n in range(3000)],
    [[0], 1],
    "x",
    [[[0]]],
    [[9]],
)


def attack(random: Random, folder: Path) -> None:
    tree = folder / "tree.json"
    tree.write_text(json.dumps(TREE))
    prompts = write_prompts(folder / "two.jsonl", ["ab ab ab"], ["b a b a"])
    spec = RunSpec(
        methods=(f"medusa:weights={head_of('medusa')},tree={tree}",),
        model=str(model_folder()),
        prompts=str(prompts),
        template="none",
        max_new_tokens=6,
        threads=1,
        settings="paper",
    )
    goes_on = random.random() < 0.5
    if goes_on:
        ran(spec, folder)
        cut(folder / "run", random.randint(1, 3))
    how = random.random()
    if how < 0.5:
        tree.write_text(json.dumps(random.choice(ODD)))
    elif how < 0.8:
        tree.write_bytes(damage.damaged(random, tree.read_bytes()))
    else:
        damage.replace_file(random, tree)
        if tree.is_fifo():
            tree.unlink()
    try:
        ran(spec, folder)
    except UserError as error:
        check_message(error)
    if (folder / "run" / "run.json").exists():
        records = read_run(folder / "run").records
        sizes = {
            size
            for record in records
            if record.key.method != "vanilla"
            for size in record.num_nodes
        }
        assert len(sizes) <= 1, f"the run has steps of two trees: {sizes}"
    assert not (folder / "executed").exists(), "code in a file was executed"
