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

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.engine.load import load_target
from specbench.measure.local.device import EAGER
from specbench.measure.local.engine_load import make_execution
from specbench.models.cards import ModelCard, find_model
from specbench.models.chat import load_codec
from specbench.models.hub import resolve_model
from specbench.registry import get
from specbench.settings import grids
from specbench.settings.acceptance import FOLDER, Acceptance, AcceptanceFile
from specbench.types import Request
from specbench.zoo import TINY
from tools.zoo.held_out import bundled_requests, held_out_dialogues
from tools.zoo.text import FAMILIES

SETTINGS_SEED = 23
_MAX_NEW_TOKENS = 128
_STATIC = tuple({"nodes": nodes} for nodes in grids.SHIPPED_NODES)
_CHAINS = tuple({"num_tokens": num_tokens} for num_tokens in grids.SHIPPED_CHAINS)
SETTINGS: Mapping[str, tuple[dict[str, Any], ...]] = {
    "sps": tuple({"schedule": "constant", **chain} for chain in _CHAINS),
    "pld": _CHAINS,
    "lookahead": tuple(
        {"level": level, "window": width, "guesses": width}
        for level, width in ((3, 1), (3, 2), (3, 3), (4, 3), (5, 3))
    ),
    "medusa": _STATIC,
    "hydra": _STATIC,
    "eagle": _STATIC,
    "eagle2": grids.SHIPPED_TREES,
    "eagle3": grids.SHIPPED_TREES,
    "recycling": _STATIC,
    "sam": tuple(
        {"num_tokens": copied, "nodes": nodes}
        for copied, nodes in ((2, 2), (4, 2), (4, 3), (6, 4), (8, 6), (12, 12))
    ),
    "suffix": _CHAINS,
}
"""The settings by method, beside the paper's."""


def acceptance(card: ModelCard, folder: Path) -> AcceptanceFile:
    """The file of a model whose target is in `folder`."""
    device = torch.device("cpu")
    dtype = torch.float32 if folder == TINY / "target" else torch.bfloat16
    execution = make_execution(EAGER, device, dtype)
    target = load_target(folder, dtype=dtype, device=device, execution=execution)
    codec = load_codec(folder, card, "auto")
    prompts = [codec.render([{"role": "user", "content": text}]) for text in _requests()]
    requests = [Request(ids, _MAX_NEW_TOKENS, eos_ids=codec.eos_ids) for ids in prompts]
    weights = {one.method: Path(one.repo) for one in card.draft_weights if one.is_shipped}
    hashes = {kind: _hash(path) for kind, path in {"target": folder, **weights}.items()}
    methods = {}
    for name, settings in SETTINGS.items():
        method, found = get(name), []
        if method.weights and method.weights not in weights:
            continue
        for given in ({}, *settings):
            context = BuildContext(target, weights.get(method.weights or ""))
            drafter = method.build(method.options(**given), context)
            done = [decode(target, drafter, request) for request in requests]
            steps = [n for one in done for n in one.accept_lengths]
            rows = [n for one in done for n in one.num_nodes]
            mat, mean = sum(steps) / len(steps), sum(rows) / len(rows)
            found.append(Acceptance(given, round(mean, 2), round(mat, 3)))
            print(name, given, round(mean, 2), round(mat, 3), flush=True)
        methods[name] = tuple(found)
    about = f"{len(requests)} held-out requests of {len(FAMILIES)} families, T=0"
    return AcceptanceFile(card.name, about, hashes, methods)


def _requests() -> Iterator[str]:
    """First turns of two dialogues of each family that no bundled prompt has."""
    for family in FAMILIES:
        texts = [one.turns[0].user for one in held_out_dialogues(family, 100, SETTINGS_SEED)]
        yield from [text for text in texts if text not in bundled_requests()][:2]


def _hash(folder: Path) -> str:
    largest = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    return sha256(largest.read_bytes()).hexdigest()


def write_acceptance(model: str, path: Path | None) -> None:
    """Write the file of a known model, one number a line; by default in its place."""
    card = find_model(model)
    path = path or FOLDER / f"{card.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = acceptance(card, resolve_model(card, offline=False))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")
