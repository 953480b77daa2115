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
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file

from specbench.cli.options import quiet_libraries
from specbench.cli.progress import ProgressView
from specbench.engine.load import load_target
from specbench.errors import UserError
from specbench.measure.plan import make_plan
from specbench.measure.session import run_plan
from specbench.measure.spec import RunSpec
from specbench.registry import get
from tests.faults.areas.checkpoints import DEEP, VALUES, Code
from tests.faults.program import model_folder
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
    quiet_libraries()
    os.chdir(folder)
    try:
        with patch("specbench.machine.bandwidth.bandwidth", lambda device, block: 1e9):
            plan = make_plan(spec, is_offline=True)
            run = run_plan(plan, folder / "run", ProgressView(), given=[])
    except UserError as error:
        assert error.hint and len(error.message) < 1000, error.message
        assert "Traceback" not in error.message, error.message
    else:
        vanilla, own = run.records
        assert vanilla.is_ok and (own.is_ok or own.error), own
        assert not own.is_ok or own.token_ids == vanilla.token_ids, "another answer"
    finally:
        os.chdir("/")
    assert not (folder / "executed").exists(), "code was executed"


@cache
def _whole(method: str) -> Path:
    """Sound weights of the method, made once a process."""
    target = load_target(model_folder(), dtype=torch.float32, device=torch.device("cpu"))
    kind = get(method).weights
    assert kind
    return WEIGHTS[kind](target, Path(tempfile.mkdtemp(prefix="fault-head-")) / "head")


def damage_bytes(random: Random, head: Path) -> None:
    file = random.choice(sorted(head.iterdir()))
    content = bytearray(file.read_bytes())
    if random.random() < 0.3:
        del content[random.randrange(len(content)) :]
    else:
        for _ in range(random.choice((1, 10, 1000))):
            content[random.randrange(min(len(content), 5000))] = random.randrange(256)
    file.write_bytes(content)


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


def change_tensors(random: Random, head: Path) -> None:
    """Drop, add, reshape, retype or spoil a tensor."""
    file = next(file for file in head.iterdir() if file.suffix in (".safetensors", ".bin", ".pt"))
    is_safe = file.suffix == ".safetensors"
    tensors: Any = load_file(file) if is_safe else torch.load(file)
    name = random.choice(sorted(tensors))
    kind = random.randrange(5)
    if kind == 0:
        tensors[f"{name}.more"] = tensors[name].clone()
    elif kind == 1:
        tensors[name] = torch.zeros(random.choice(((3,), (2**10, 2), (0,), (1, 1, 1))))
    elif kind == 2:
        tensors[name] = tensors[name].to(random.choice((torch.int8, torch.bool, torch.float16)))
    elif kind == 3:
        tensors[name] = torch.full_like(tensors[name], random.choice((0, 1)))
        if tensors[name].is_floating_point():
            largest = torch.finfo(tensors[name].dtype).max
            tensors[name].fill_(random.choice((torch.nan, torch.inf, largest, 0.0)))
    else:
        del tensors[name]
    save_file(tensors, file, {"format": "pt"}) if is_safe else torch.save(tensors, file)


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
