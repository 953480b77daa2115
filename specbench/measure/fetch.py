"""Downloads ahead of time: the papers' prompts, a model and its drafters."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from specbench.data.cache import paper_file
from specbench.data.tasks import TaskCard, find_tasks, load_cards
from specbench.errors import UserError
from specbench.models.cards import find_model
from specbench.models.hub import resolve_model, resolve_weights


@dataclass(frozen=True, slots=True)
class Fetched:
    """One file or folder: its path, or the error why it is missing."""

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

    With the model come its drafters, of `methods` or of all. Yields each download when it is
    done; one that fails does not stop the others. Unknown names raise UserError at the first
    step.
    """
    cards = _cards(tasks)
    card = find_model(model) if model is not None else None
    for task in cards:
        number = f"{task.paper.num_prompts} " if task.paper else ""
        yield _attempt(f"{number}prompts of {task.name}", partial(_prompts, task, offline))
    if card is None:
        return
    yield _attempt(f"model {card.name}", partial(resolve_model, card, offline=offline))
    wanted = [weights.method for weights in card.draft_weights] if methods is None else methods
    for weights in dict.fromkeys(map(card.weights_of, wanted)):
        if weights is not None:
            yield _attempt(
                f"{weights.method} drafter of {card.name}",
                partial(resolve_weights, card, weights, offline=offline),
            )


def _cards(tasks: Sequence[str] | None) -> list[TaskCard]:
    if tasks is None:
        return [card for card in load_cards().values() if card.paper is not None]
    found = {task.card.name: task.card for task in find_tasks(tasks) if task.card is not None}
    return list(found.values())


def _prompts(card: TaskCard, offline: bool) -> Path:
    if card.paper is None:
        raise UserError(
            f"Task {card.name} has no paper prompts.",
            f"`specbench show {card.name}` lists its sources.",
        )
    return paper_file(card.name, card.paper, offline=offline)


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
