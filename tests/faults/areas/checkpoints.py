"""Attacks with damaged or hostile checkpoints and draft weights.

Within a time limit, a checkpoint loads, or is refused with its file and the reason. Draft weights
do not change vanilla's answer, and no file is executed.
"""

import json
import shutil
import struct
import tempfile
from functools import cache
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file

from specbench.engine.load import load_target
from specbench.errors import UserError
from specbench.measure.spec import RunSpec
from specbench.models import templates
from specbench.registry import get
from tests.faults import damage
from tests.faults.program import check_message, model_folder, ran
from tests.support.checkpoint import write_prompts
from tests.support.weights import WEIGHTS

TRIES = 500
METHODS = ("medusa", "hydra", "eagle", "eagle2", "eagle3", "sps", "peagle", "dflash")
CONFIG, TENSORS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
VALUES: tuple[Any, ...] = (
    None, -1, 0, 0.5, 1e99, float("nan"), "x", "", [], [1], {}, {"a": 1}, True, 10**12, -(2**63),
)  # fmt: skip
ENDS = (*VALUES, 2**63, 2**31, 10**30, [[]], [2**63], [0, -5])
"""End tokens that are in no vocabulary."""
KEYS = (
    "text_config", "auto_map", "layer_types", "sliding_window", "quantization_config",
    "rope_scaling", "draft_vocab_size",
)  # fmt: skip
TEMPLATES = (
    "{{ 1 / 0 }}", "{{ none.x.y }}", "{{ messages[9] }}", "", " ", "{{ raise_exception('a') }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{{ 'x' * 20000000 }}", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "{% if %}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}", "{{ messages[0].content.format(*[1]) }}",
    "{{ cycler.__init__.__globals__.os.system('touch executed') }}", "{% include 'a' %}",
)  # fmt: skip


def attack(random: Random, folder: Path) -> None:
    if is_head := random.random() < 0.4:
        method = random.choice(METHODS)
        place = Path(shutil.copytree(head_of(method), folder / "head"))
        model, method, template = model_folder(), f"{method}:weights={place}", "none"
    else:
        model = place = Path(shutil.copytree(model_folder(), folder / "model"))
        method, template = "pld", "auto"
    random.choice(OF_HEADS if is_head else OF_MODELS)(random, place)
    prompts = write_prompts(folder / "one.jsonl", ["ab ab ab"])
    spec = RunSpec(
        str(model), (method,), prompts=str(prompts), template=template, max_new_tokens=4,
        device="cpu",
    )  # fmt: skip
    try:
        with patch.object(templates, "RENDER_LIMIT_S", 0.3):
            vanilla, drafted = ran(spec, folder).records
    except UserError as error:
        check_message(error)
        assert is_head or "model" in error.message or "template" in error.message, error.message
    else:
        assert vanilla.is_ok or not is_head
        assert not is_head or drafted.error or drafted.token_ids == vanilla.token_ids, (
            "the answer has changed"
        )
    assert not (folder / "executed").exists(), "code was executed"


@cache
def head_of(method: str) -> Path:
    """Sound weights of the method, made once per process."""
    target = load_target(model_folder(), dtype=torch.float32, device=torch.device("cpu"))
    kind = get(method).weights
    assert kind
    return WEIGHTS[kind](target, Path(tempfile.mkdtemp(prefix="fault-head-")) / "head")


def change_config(random: Random, folder: Path) -> None:
    names = (CONFIG, "generation_config.json", "tokenizer_config.json")
    file = folder / random.choice([n for n in names if (folder / n).exists()] or names[:1])
    values = json.loads(file.read_text()) if file.exists() else {}
    for _ in range(random.choice((1, 1, 3))):
        damage.change_value(random, values, VALUES, KEYS)
    file.write_text(random.choice((json.dumps(values),) * 9 + (damage.DEEP, "[]", "", "\0")))


def end_tokens(random: Random, model: Path) -> None:
    for name in random.sample((CONFIG, "generation_config.json"), random.randint(1, 2)):
        values = json.loads((model / name).read_text())
        values[random.choice(("eos_token_id", "pad_token_id"))] = random.choice(ENDS)
        (model / name).write_text(json.dumps(values))


def replace(random: Random, folder: Path) -> None:
    files = sorted(folder.iterdir())
    if folder / TENSORS in files:
        files.append(folder / INDEX)
    damage.replace_file(random, random.choice(files))


def name_code(random: Random, model: Path) -> None:
    (model / "own.py").write_text("import os\nos.system('touch executed')\n")
    values = json.loads((model / CONFIG).read_text())
    names = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    kind = random.choice(("llama", "own"))
    (model / CONFIG).write_text(json.dumps({**values, "model_type": kind, "auto_map": names}))


def damage_header(random: Random, model: Path) -> None:
    content = (model / TENSORS).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, tensor_bytes = json.loads(content[8 : 8 + length]), content[8 + length :]
    name, other = random.sample([name for name in header if name != "__metadata__"], 2)
    copied = {**header[other]}  # a copy, since it may be put into this very entry
    values = (*VALUES, [-1], [2**40, 2**40], [0.5, 1], [[1]], ["a"], "F99", copied)
    kind = random.randrange(5)
    if kind == 0:
        header[name]["data_offsets"] = header[other]["data_offsets"]
    elif kind == 1:
        offsets = header[name]["data_offsets"]
        header[name]["data_offsets"] = [n + random.choice((-1, 1, 2**33)) for n in offsets]
    else:
        damage.change_value(random, header, values)
    text = json.dumps(header).encode()
    if random.random() < 0.1:
        text = damage.DEEP.encode()
    size = random.choice((len(text),) * 5 + (2**63, 0, len(text) + 1))
    (model / TENSORS).write_bytes(struct.pack("<Q", size) + text + tensor_bytes)


def change_layers(random: Random, model: Path) -> None:
    values = json.loads((model / CONFIG).read_text())
    values["num_hidden_layers"] += random.choice((-1, 1, 5))
    (model / CONFIG).write_text(json.dumps(values))


def pickled(random: Random, model: Path) -> None:
    tensors: Any = load_file(model / TENSORS)
    (model / TENSORS).unlink()
    file = model / "pytorch_model.bin"
    code = {**tensors, "code": damage.Code()}
    no_model = (code, [1], None, {1: 2}, {"a": "b"}, tensors["lm_head.weight"])
    is_damaged = random.random() < 0.5
    torch.save(tensors if is_damaged else random.choice(no_model), file)
    if is_damaged:
        file.write_bytes(damage.damaged(random, file.read_bytes()))


def index(random: Random, model: Path) -> None:
    names = [TENSORS, "../model/" + TENSORS, "/etc/passwd", 3, None, [], "gone", "a\0b", ""]
    maps = {"a": random.choice(names), "b": random.choice(names)}
    whole: Any = random.choice(({"weight_map": maps}, {"weight_map": []}, {}, [], 3))
    (model / INDEX).write_text(json.dumps(whole))


def template(random: Random, model: Path) -> None:
    (model / "chat_template.jinja").unlink(missing_ok=True)
    values = json.loads((model / "tokenizer_config.json").read_text())
    values["chat_template"] = random.choice(TEMPLATES)
    (model / "tokenizer_config.json").write_text(json.dumps(values))


OF_HEADS = (damage.damage_file, change_config, change_config, damage.change_tensors, replace)
OF_MODELS = (
    damage.damage_file, damage.damage_file, replace, change_config, change_config, end_tokens,
    name_code, damage_header, damage_header, damage.change_tensors, change_layers, pickled, index,
    template, template,
)  # fmt: skip
