"""Attacks with damaged or hostile checkpoints: each loads, or is refused with file and reason.

No file is executed, and each attempt ends in time.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file

from specbench.errors import UserError
from specbench.measure.spec import RunSpec
from specbench.models import chat
from tests.faults.program import model_folder, ran
from tests.support.checkpoint import write_prompts

TRIES = 200
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
FILES = (CONFIG, WEIGHTS, "tokenizer.json", "tokenizer_config.json", "generation_config.json")
DEEP = '{"a":' * 100_000
VALUES: tuple[Any, ...] = (
    None, -1, 0, 0.5, 1e99, float("nan"), "x", "", [], [1], {}, {"a": 1}, True, 10**12, -(2**63),
)  # fmt: skip
TEMPLATES = (
    "{{ 1 / 0 }}", "{{ none.x.y }}", "{{ messages[9] }}", "", " ", "{{ raise_exception('a') }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'x' * 20000000 }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{% if %}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages[0].content.format(*[1]) }}",
    "{{ cycler.__init__.__globals__.os.system('touch executed') }}", "{% include 'a' %}",
)  # fmt: skip


class Code:
    """A pickle that runs a command when it is loaded."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("touch executed",)


def attack(random: Random, folder: Path) -> None:
    model = Path(shutil.copytree(model_folder(), folder / "model"))
    random.choice(DAMAGES)(random, model)
    prompts = write_prompts(folder / "one.jsonl", ["ab ab ab"])
    spec = RunSpec(str(model), ("pld",), prompts=str(prompts), max_new_tokens=4, device="cpu")
    try:
        with patch.object(chat, "RENDER_LIMIT_S", 0.3):
            ran(spec, folder)
    except UserError as error:
        assert "model" in error.message or "template" in error.message, error.message
        assert error.hint and len(error.message) < 1000, error.message
    assert not (folder / "executed").exists(), "code was executed"


def damage_bytes(random: Random, folder: Path) -> None:
    file = random.choice(sorted(folder.iterdir()))
    content = bytearray(file.read_bytes())
    if random.random() < 0.3:
        del content[random.randrange(len(content)) :]
    else:
        for _ in range(random.choice((1, 10, 1000))):
            content[random.randrange(min(len(content), 5000))] = random.randrange(256)
    file.write_bytes(content)


def replace(random: Random, model: Path) -> None:
    file = model / random.choice((*FILES, INDEX))
    file.unlink(missing_ok=True)
    kind = random.randrange(9)
    if kind == 0:
        file.mkdir()
    elif kind == 1:
        file.symlink_to(file)
    elif kind == 2:
        os.mkfifo(file)
    else:
        texts = ("", "<!doctype html><title>Not found</title>", DEEP, "[]", "null", "\0" * 99)
        file.write_text(texts[kind - 3])


def damage_config(random: Random, model: Path) -> None:
    file = model / random.choice((CONFIG, "generation_config.json", "tokenizer_config.json"))
    values = json.loads(file.read_text())
    for _ in range(random.choice((1, 1, 3))):
        more = ("text_config", "auto_map", "layer_types", "sliding_window", "quantization_config")
        values[random.choice([*values, *more])] = random.choice(VALUES)
    file.write_text(json.dumps(values))


def name_code(random: Random, model: Path) -> None:
    (model / "own.py").write_text("import os\nos.system('touch executed')\n")
    values = json.loads((model / CONFIG).read_text())
    names = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    kind = random.choice(("llama", "own"))
    (model / CONFIG).write_text(json.dumps({**values, "model_type": kind, "auto_map": names}))


def damage_header(random: Random, model: Path) -> None:
    content = (model / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    name, other = random.sample(names, 2)
    entry = header[name]
    values = (*VALUES, [-1], [2**40, 2**40], [0.5, 1], [[1]], ["a"], "F99", header[other])
    kind = random.randrange(5)
    if kind == 0:
        entry[random.choice([*entry])] = random.choice(values)
    elif kind == 1:
        del entry[random.choice([*entry])]
    elif kind == 2:
        entry["data_offsets"] = header[other]["data_offsets"]
    elif kind == 3:
        header[name] = random.choice(values)
    else:
        entry["data_offsets"] = [n + random.choice((-1, 1, 2**33)) for n in entry["data_offsets"]]
    text = json.dumps(header).encode()
    if random.random() < 0.1:
        text = DEEP.encode()
    size = random.choice((len(text),) * 5 + (2**63, 0, len(text) + 1))
    (model / WEIGHTS).write_bytes(struct.pack("<Q", size) + text + data)


def change_tensors(random: Random, folder: Path) -> None:
    """Drop, add, reshape, retype or spoil a tensor."""
    file = next(file for file in folder.iterdir() if file.suffix in (".safetensors", ".bin", ".pt"))
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


def change_layers(random: Random, model: Path) -> None:
    values = json.loads((model / CONFIG).read_text())
    values["num_hidden_layers"] += random.choice((-1, 1, 5))
    (model / CONFIG).write_text(json.dumps(values))


def pickled(random: Random, model: Path) -> None:
    tensors: Any = load_file(model / WEIGHTS)
    (model / WEIGHTS).unlink()
    file = model / "pytorch_model.bin"
    kind = random.randrange(6)
    if kind == 0:
        file.write_bytes(pickle.dumps(Code()))
    elif kind == 1:
        torch.save({**tensors, "code": Code()}, file)
    elif kind == 2:
        torch.save(random.choice(([1], None, {1: 2}, {"a": "b"}, tensors["lm_head.weight"])), file)
    else:
        torch.save(tensors, file)
        content = bytearray(file.read_bytes())
        for _ in range(20):
            content[random.randrange(len(content))] ^= 1 << random.randrange(8)
        file.write_bytes(content if kind == 3 else content[: random.randrange(len(content))])


def index(random: Random, model: Path) -> None:
    names = [WEIGHTS, "../model/" + WEIGHTS, "/etc/passwd", 3, None, [], "gone", "a\0b", ""]
    maps = {"a": random.choice(names), "b": random.choice(names)}
    whole: Any = random.choice(({"weight_map": maps}, {"weight_map": []}, {}, [], 3))
    (model / INDEX).write_text(json.dumps(whole))


def template(random: Random, model: Path) -> None:
    with suppress(FileNotFoundError):
        (model / "chat_template.jinja").unlink()
    values = json.loads((model / "tokenizer_config.json").read_text())
    values["chat_template"] = random.choice(TEMPLATES)
    (model / "tokenizer_config.json").write_text(json.dumps(values))


DAMAGES = (
    damage_bytes, damage_bytes, replace, damage_config, damage_config, name_code, damage_header,
    damage_header, change_tensors, change_layers, pickled, index, template, template,
)  # fmt: skip
