"""Methods without weights on a small target, and the drafts they make after a text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.engine.drafter import BuildContext
from specbench.methods.shared.datastore import Datastore
from specbench.registry import get, make_options
from tests.support.models import random_target
from tests.training.head_models import started

TARGET = random_target(layers=1)


def built(spelling: str, datastore: Path | None = None) -> Any:
    """The drafter of a method, spelled as on the command line."""
    name, _, options_text = spelling.partition(":")
    options = dict(option.split("=") for option in options_text.split(",") if option)
    if datastore:
        options["datastore"] = str(datastore)
    method = get(name)
    return method.build(make_options(method, options), BuildContext(TARGET, datastore))


def stored(folder: Path, corpus: list[list[int]]) -> Path:
    """Write the datastore of these texts to a file."""
    path = folder / "store.safetensors"
    Datastore.build(corpus).save(path)
    return path


def drafted_after(drafter: Any, text: Sequence[int]) -> list[tuple[int, int]]:
    """The parent and the token of each draft node."""
    tree = drafter.propose(started(drafter, TARGET, list(text)))
    parents = tree.layout.parents.tolist()
    tokens = tree.tokens.tolist()
    return list(zip(parents[1:], tokens[1:], strict=True))


def chain(*tokens: int) -> list[tuple[int, int]]:
    """The parent and the token of each node of a chain. The parent is the previous node."""
    return [*enumerate(tokens)]
