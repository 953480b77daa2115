"""Fetching ahead of time: the papers' prompts, a model and its drafters, for a machine offline.

Knows what belongs together. The downloads themselves are `cache`'s and `hub`'s.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from specbench.bench.cache import paper_file
from specbench.bench.hub import resolve_drafter, resolve_model
from specbench.bench.models import ModelCard, find_model
from specbench.bench.tasks import TaskCard, find_tasks, load_cards
from specbench.errors import UserError


@dataclass(frozen=True, slots=True)
class Fetched:
    """One thing that was asked for: where it is now, or why it could not be had."""

    what: str
    path: Path | None
    num_bytes: int
    error: UserError | None = None

    @property
    def is_ok(self) -> bool:
        return self.error is None


def fetch(
    tasks: Sequence[str] | None = None,
    model: str | None = None,
    methods: Sequence[str] | None = None,
    *,
    offline: bool = False,
) -> Iterator[Fetched]:
    """Download paper prompts (of `tasks`; all with None, none with ()), then a model.

    With the model come its drafters, of `methods` or of all. Yields each thing when it is there;
    one that fails does not stop the others. Unknown names raise UserError at the first step.
    """
    cards = _cards(tasks)
    card = find_model(model) if model is not None else None
    for task in cards:
        yield _attempt(f"{task.name} prompts", partial(_prompts, task, offline))
    if card is not None:
        yield from _fetch_model(card, methods, offline)


def _cards(tasks: Sequence[str] | None) -> list[TaskCard]:
    if tasks is None:
        return [card for card in load_cards().values() if card.paper is not None]
    found = {task.card.name: task.card for task in find_tasks(tasks) if task.card is not None}
    return list(found.values())


def _fetch_model(
    card: ModelCard, methods: Sequence[str] | None, offline: bool
) -> Iterator[Fetched]:
    yield _attempt(f"model {card.name}", partial(resolve_model, card, offline=offline))
    wanted = [drafter.method for drafter in card.drafters] if methods is None else methods
    drafters = dict.fromkeys(
        drafter for method in wanted if (drafter := card.drafter(method)) is not None
    )
    for drafter in drafters:
        yield _attempt(
            f"{drafter.method} drafter of {card.name}",
            partial(resolve_drafter, card, drafter, offline=offline),
        )


def _prompts(card: TaskCard, offline: bool) -> Path:
    if card.paper is None:
        raise UserError(f"Task {card.name} has no paper prompts.", "`specbench show` tells what.")
    return paper_file(card.name, card.paper, offline=offline).path


def _attempt(what: str, get: Callable[[], Path]) -> Fetched:
    try:
        path = get()
    except UserError as error:
        return Fetched(what, None, 0, error)
    return Fetched(what, path, _size(path))


def _size(path: Path) -> int:
    """Bytes of a file, or of the files right in a folder, links followed."""
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    return sum(file.stat().st_size for file in files)
