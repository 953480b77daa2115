"""Measure methods' mean accepted tokens for settings of many sizes, for `--settings auto`.

`python -m tools.zoo acceptance [--model NAME]` writes the means of `tiny` or another known model.
They come from greedy answers to held-out requests that neither training nor any run uses. No time
is measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from specbench.data.cache import file_sha256
from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.engine.load import load_target
from specbench.measure.local.device import EAGER
from specbench.measure.local.engine_load import make_execution
from specbench.measure.spec import RunSpec
from specbench.models.cards import ModelCard
from specbench.models.chat import load_codec
from specbench.models.hub import resolve_model
from specbench.settings import grids
from specbench.settings.acceptance import FOLDER, Acceptance, AcceptanceFile
from specbench.types import Completion, Request
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
        for level, width in grids.SHIPPED_WINDOWS
    ),
    "medusa": _STATIC,
    "hydra": _STATIC,
    "eagle": _STATIC,
    "eagle2": grids.SHIPPED_TREES,
    "eagle3": grids.SHIPPED_TREES,
    "recycling": _STATIC,
    "sam": tuple({"num_tokens": copied, "nodes": nodes} for copied, nodes in grids.SHIPPED_COPIES),
    "sam:other=eagle3": grids.SHIPPED_SAM_TREES,
    "suffix": _CHAINS,
}
"""Settings of each method besides the paper's. Options in a key apply to all its settings."""


def acceptance(card: ModelCard, folder: Path) -> AcceptanceFile:
    """Return the file of a model whose target is in `folder`."""
    device = torch.device("cpu")
    dtype = torch.float32 if folder == TINY / "target" else torch.bfloat16
    execution = make_execution(EAGER, device, dtype)
    target = load_target(folder, dtype=dtype, device=device, execution=execution)
    codec = load_codec(folder, card, "auto")
    prompts = [codec.render([{"role": "user", "content": request}]) for request in _requests()]
    requests = [Request(ids, _MAX_NEW_TOKENS, eos_ids=codec.eos_ids) for ids in prompts]
    weights = {draft.method: Path(draft.repo) for draft in card.draft_weights if draft.is_shipped}
    hashes = {kind: _hash(path) for kind, path in {"target": folder, **weights}.items()}
    methods: dict[str, tuple[Acceptance, ...]] = {}
    for name, settings in SETTINGS.items():
        [entered] = RunSpec(methods=(name,)).run_methods
        run_method = entered.load()
        method, kind = run_method.method, run_method.checkpoint
        if kind and kind not in weights:
            continue
        context = BuildContext(target, weights.get(kind or ""))
        measured = []
        for options in ({}, *settings):
            drafter = method.build(run_method.options.replaced(**options), context)
            completions = [decode(target, drafter, request) for request in requests]
            accepted = _accepted(options, completions)
            measured.append(accepted)
            print(name, options, accepted.rows, accepted.mat, flush=True)
        methods[name] = tuple(measured)
    about = f"{len(requests)} held-out requests of {len(FAMILIES)} families, T=0"
    return AcceptanceFile(card.name, about, hashes, methods)


def _accepted(options: dict[str, Any], completions: Sequence[Completion]) -> Acceptance:
    """Return the mean nodes and accepted tokens of the steps of all completions."""
    lengths = [length for completion in completions for length in completion.accept_lengths]
    num_nodes = [nodes for completion in completions for nodes in completion.num_nodes]
    mean_nodes = sum(num_nodes) / len(num_nodes)
    mat = sum(lengths) / len(lengths)
    return Acceptance(options, round(mean_nodes, 2), round(mat, 3))


def _requests() -> Iterator[str]:
    """Yield two held-out first requests per family that are not bundled prompts."""
    for family in FAMILIES:
        dialogues = held_out_dialogues(family, 100, SETTINGS_SEED)
        requests = [dialogue.turns[0].user for dialogue in dialogues]
        unbundled = [request for request in requests if request not in bundled_requests()]
        yield from unbundled[:2]


def _hash(folder: Path) -> str:
    largest = max(folder.iterdir(), key=lambda path: path.stat().st_size)
    return file_sha256(largest)


def write_acceptance(model: str, path: Path | None) -> None:
    """Write the file of a known model, with one number per line. Without a path, replace it."""
    card = RunSpec(model=model).card
    path = path or FOLDER / f"{card.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    content = msgspec.json.encode(acceptance(card, resolve_model(card, offline=False)))
    path.write_bytes(msgspec.json.format(content, indent=1) + b"\n")
