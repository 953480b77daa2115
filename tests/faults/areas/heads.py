"""Attacks with damaged or hostile draft weights: each loads, or is refused with file and reason.

Vanilla's answers do not change, and no file is executed.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
from functools import cache
from pathlib import Path
from random import Random

import torch

from specbench.engine.load import load_target
from specbench.errors import UserError
from specbench.measure.spec import RunSpec
from specbench.registry import get
from tests.faults.areas.checkpoints import DEEP, VALUES, Code, change_tensors, damage_bytes
from tests.faults.program import model_folder, ran
from tests.support.checkpoint import write_prompts
from tests.support.weights import WEIGHTS

TRIES = 200
METHODS = ("medusa", "hydra", "eagle", "eagle2", "eagle3", "sps", "peagle", "dflash")


def attack(random: Random, folder: Path) -> None:
    method = random.choice(METHODS)
    head = Path(shutil.copytree(_whole(method), folder / "head"))
    random.choice(DAMAGES)(random, head)
    prompts = write_prompts(folder / "one.jsonl", ["ab ab ab"])
    spec = RunSpec(
        str(model_folder()), (f"{method}:weights={head}",), prompts=str(prompts), template="none",
        max_new_tokens=4, device="cpu",
    )  # fmt: skip
    try:
        run = ran(spec, folder)
    except UserError as error:
        assert error.hint and len(error.message) < 1000, error.message
        assert "Traceback" not in error.message, error.message
    else:
        vanilla, own = run.records
        assert vanilla.is_ok and (own.is_ok or own.error), own
        assert not own.is_ok or own.token_ids == vanilla.token_ids, "another answer"
    assert not (folder / "executed").exists(), "code was executed"


@cache
def _whole(method: str) -> Path:
    """Sound weights of the method, made once a process."""
    target = load_target(model_folder(), dtype=torch.float32, device=torch.device("cpu"))
    kind = get(method).weights
    assert kind
    return WEIGHTS[kind](target, Path(tempfile.mkdtemp(prefix="fault-head-")) / "head")


def change_config(random: Random, head: Path) -> None:
    file = head / "config.json"
    values = json.loads(file.read_text()) if file.exists() else {}
    more = ("layer_types", "rope_scaling", "quantization_config", "auto_map", "draft_vocab_size")
    for _ in range(random.choice((1, 1, 3))):
        name = random.choice([*values, *more])
        if random.random() < 0.2:
            values.pop(name, None)
        else:
            values[name] = random.choice(VALUES)
    file.write_text(random.choice((json.dumps(values),) * 9 + (DEEP, "[]", "", "\0")))


def hostile(random: Random, head: Path) -> None:
    """A pickle that runs a command, a link to itself, a pipe, a folder, or no file."""
    file = random.choice(sorted(head.iterdir()))
    file.unlink()
    kind = random.randrange(6)
    if kind == 0:
        file.write_bytes(pickle.dumps(Code()))
    elif kind == 1:
        torch.save({"code": Code()}, file)
    elif kind == 2:
        file.symlink_to(file)
    elif kind == 3:
        os.mkfifo(file)
    elif kind == 4:
        file.mkdir()


DAMAGES = (damage_bytes, change_config, change_config, change_tensors, hostile)
