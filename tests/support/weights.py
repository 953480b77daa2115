"""Checkpoints from which the contract suite builds each method."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext, Drafter
from specbench.engine.target import Target
from specbench.methods.shared.datastore import Datastore
from specbench.registry import get, make_options
from specbench.types import Request
from tests.methods.checkpoints import MAKERS
from tests.support.models import prompts, random_llama, save


def _sps(target: Target, folder: Path) -> Path:
    return save(random_llama(layers=2, seed=1, vocab_size=target.vocab_size), folder)


def _pard(target: Target, folder: Path) -> Path:
    model = random_llama(layers=2, seed=1, vocab_size=target.vocab_size)
    model.config.pard_token = target.vocab_size - 1
    return save(model, folder)


def _datastore(target: Target, folder: Path) -> Path:
    path = folder.with_suffix(".safetensors")
    texts = [[token % target.vocab_size for token in prompt] for prompt in prompts()]
    Datastore.build([*texts, [3, 4, 5, 6] * 3]).save(path)
    return path


WEIGHTS: dict[str, Callable[..., Path]] = {
    "sps": _sps, "pard": _pard, "rest": _datastore, **MAKERS,
}  # fmt: skip
"""By the model-card key of a method's weights: a maker of a random checkpoint in its format."""


def build(
    name: str, target: Target, folder: Path, maker_args: Any = None, **options: Any
) -> Drafter:
    """A drafter of the method, on a random checkpoint if it needs one. `made` goes to the maker."""
    method = get(name)
    given = make_options(method, {key: str(option) for key, option in options.items()})
    checkpoint = method.weights_with(given)
    weights = (
        WEIGHTS[checkpoint](target, folder / name, **(maker_args or {})) if checkpoint else None
    )
    return method.build(given, BuildContext(target, weights))


def decoded(
    target: Target,
    name: str,
    folder: Path,
    requests: Sequence[Request],
    maker_args: Any = None,
    **options: Any,
) -> list[tuple[object, ...]]:
    """The tokens and steps of completions with a drafter from `build`."""
    drafter = build(name, target, folder, maker_args, **options)
    every = (decode(target, drafter, request) for request in requests)
    return [(done.token_ids, done.steps) for done in every]
