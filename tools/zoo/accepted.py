"""Mean accepted tokens of tiny's drafters on the bundled prompts, with specbench's engine.

It counts the tokens and steps of greedy answers to the first turns, without timing them.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext, Method
from specbench.engine.load import load_target
from specbench.engine.target import Target
from specbench.registry import get, make_options, names
from specbench.types import Request
from tools.zoo.text import FAMILIES
from tools.zoo.tokenizer import EOS_ID, load_tokenizer

_MAX_NEW_TOKENS = 128


def mean_accepted(
    models: Path, prompts: Path, limit: int, methods: Sequence[str] = ()
) -> dict[str, dict[str, float]]:
    """The emitted tokens per step of each method, for each family and over all, in float32.

    `models` holds `target` and a folder for each kind of weights; methods without theirs are left
    out. `prompts` holds a file for each family, of which the first `limit` lines are taken.
    `methods` are all by default.
    """
    folder = models / "target"
    target = load_target(folder, dtype=torch.float32, device=torch.device("cpu"))
    requests = {
        family: _requests(folder, prompts / f"{family}.jsonl", limit) for family in FAMILIES
    }
    return {
        method.name: _accepted(target, method, models, requests)
        for method in map(get, methods or names())
        if method.weights is None or (models / method.weights).is_dir()
    }


def _accepted(
    target: Target, method: Method, models: Path, requests: Mapping[str, list[Request]]
) -> dict[str, float]:
    weights = models / method.weights if method.weights else None
    drafter = method.build(make_options(method, {}), BuildContext(target, weights))
    lengths = {
        family: [n for request in some for n in decode(target, drafter, request).accept_lengths]
        for family, some in requests.items()
    }
    lengths["all"] = [n for some in lengths.values() for n in some]
    return {family: round(sum(some) / len(some), 3) for family, some in lengths.items()}


def _requests(target_folder: Path, file: Path, limit: int) -> list[Request]:
    tokenizer = load_tokenizer(target_folder)
    requests = []
    for line in file.read_text(encoding="utf-8").splitlines()[:limit]:
        chat = [{"role": "user", "content": json.loads(line)["turns"][0]}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        requests.append(Request(tuple(ids), _MAX_NEW_TOKENS, eos_ids=frozenset({EOS_ID})))
    return requests
