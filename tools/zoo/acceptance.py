"""Mean accepted tokens of methods with settings of many sizes, for `--settings auto`.

`python -m tools.zoo acceptance [--model NAME]` writes those of `tiny` or another known model, from
ordinary greedy answers to held-out requests that neither training nor any run uses. No time is
measured.
"""

from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoTokenizer, GenerationConfig

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.engine.load import load_target
from specbench.measure.local.device import EAGER
from specbench.measure.local.engine_load import make_execution
from specbench.models.acceptance import Acceptance, AcceptanceFile
from specbench.registry import get
from specbench.types import Request
from specbench.zoo import TINY
from tools.zoo.held_out import bundled_requests, held_out_dialogues
from tools.zoo.text import FAMILIES

SETTINGS_SEED = 23
_MAX_NEW_TOKENS = 128
_NODES = tuple({"nodes": nodes} for nodes in (2, 3, 4, 6, 8, 12, 16))
_CHAINS = tuple({"num_tokens": number} for number in (1, 2, 3, 4, 6))
_DYNAMIC = tuple(
    {"total_tokens": nodes, "depth": depth, "top_k": top_k}
    for nodes, depth, top_k in (
        (2, 0, 1), (3, 1, 1), (4, 2, 1), (5, 3, 1), (4, 1, 2), (6, 2, 2), (8, 3, 2), (12, 3, 4),
        (16, 4, 4), (24, 5, 6),
    )
)  # fmt: skip
SETTINGS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "sps": tuple({"schedule": "constant", **one} for one in _CHAINS),
    "pld": _CHAINS,
    "lookahead": tuple(
        {"level": level, "window": width, "guesses": width}
        for level, width in ((3, 1), (3, 2), (3, 3), (4, 2), (4, 3), (5, 3))
    ),
    "medusa": _NODES,
    "hydra": _NODES,
    "eagle": _NODES,
    "eagle2": _DYNAMIC,
    "eagle3": _DYNAMIC,
    "recycling": _NODES,
    "sam": tuple(
        {"num_tokens": copied, "nodes": nodes}
        for copied, nodes in ((2, 2), (4, 2), (4, 3), (6, 4), (8, 6), (12, 12))
    ),
    "suffix": _CHAINS,
}
"""The settings by method, beside the paper's."""


def acceptance(models: Path, num_prompts: int) -> AcceptanceFile:
    """The file of a folder with `target` and a folder for each kind of weights, or of one model."""
    folder = models / "target" if (models / "target").is_dir() else models
    device, dtype = torch.device("cpu"), _dtype(folder)
    execution = make_execution(EAGER, device, dtype)
    target = load_target(folder, dtype=dtype, device=device, execution=execution)
    requests = [*_requests(folder, num_prompts)]
    kinds = {kind for name in SETTINGS if (kind := get(name).weights)}
    shipped = sorted(kind for kind in kinds if (models / kind).is_dir())
    hashes = {"target": _hash(folder), **{kind: _hash(models / kind) for kind in shipped}}
    methods = {}
    for name, settings in SETTINGS.items():
        method, found = get(name), []
        weights = models / method.weights if method.weights else None
        if weights and method.weights not in hashes:
            continue
        for given in ({}, *settings):
            drafter = method.build(method.options(**given), BuildContext(target, weights))
            done = [decode(target, drafter, request) for request in requests]
            steps = [n for one in done for n in one.accept_lengths]
            rows = [n for one in done for n in one.num_nodes]
            mat, mean = sum(steps) / len(steps), sum(rows) / len(rows)
            found.append(Acceptance(given, round(mean, 2), round(mat, 3)))
            print(name, given, round(mean, 2), round(mat, 3), flush=True)
        methods[name] = tuple(found)
    prompts = f"{len(requests)} held-out requests of {len(FAMILIES)} families, T=0"
    return AcceptanceFile("", prompts, hashes, methods)


def _dtype(folder: Path) -> torch.dtype:
    is_tiny = folder == TINY / "target"
    return torch.float32 if is_tiny else torch.bfloat16


def _requests(folder: Path, number: int) -> Iterator[Request]:
    """Requests with `number` first turns of each family that no bundled prompt has."""
    tokenizer, known = AutoTokenizer.from_pretrained(folder), bundled_requests()
    ends = GenerationConfig.from_pretrained(folder).eos_token_id
    eos_ids = frozenset(ends if isinstance(ends, list) else [ends])
    for family in FAMILIES:
        texts = [one.turns[0].user for one in held_out_dialogues(family, 100, SETTINGS_SEED)]
        for text in [text for text in texts if text not in known][:number]:
            chat = [{"role": "user", "content": text}]
            prompt = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
            ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
            yield Request(tuple(ids), _MAX_NEW_TOKENS, eos_ids=eos_ids)


def _hash(folder: Path) -> str:
    largest = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    return sha256(largest.read_bytes()).hexdigest()


def write_acceptance(models: Path, path: Path, num_prompts: int) -> None:
    """Write the file, named after its model, one setting a line."""
    found = msgspec.structs.replace(acceptance(models, num_prompts), model=path.stem)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
