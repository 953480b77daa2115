"""Download the papers' prompts, or a model with its drafters, before a run needs them."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from specbench.data.cache import paper_file
from specbench.data.tasks import TaskCard, find_tasks, load_cards
from specbench.errors import UserError
from specbench.measure.spec import RunSpec
from specbench.models.hub import resolve_model, resolve_weights


def downloads(
    tasks: Sequence[str] | None, model: str | None
) -> Iterator[tuple[str, Callable[..., Path]]]:
    """The downloads for a run: first the papers' prompts, then a model with its drafters.

    `tasks` are the names of tasks whose prompts are downloaded; None means all tasks that have a
    paper's prompts. `model` is the name of the model; with None, no model is downloaded. Yields the
    title of each download, and a function of `offline` that returns the path of its file or folder.
    With `offline=False` the function downloads what is not on this machine yet; with `offline=True`
    it raises UserError instead. Unknown names raise UserError before the first download.
    """
    if tasks is None:
        # The cards (descriptions) of all tasks whose prompts a paper has published: `card.paper` is
        # their file.
        task_cards = [card for card in load_cards().values() if card.paper is not None]
    else:
        # A task from a user's file has no card, and nothing to download.
        cards = [task.card for task in find_tasks(tasks) if task.card is not None]
        task_cards = [*{card.name: card for card in cards}.values()]  # without duplicates
    model_card = RunSpec(model=model).card if model is not None else None
    for task_card in task_cards:
        # For a task without paper prompts, the function raises UserError.
        count_text = f"{task_card.paper.num_prompts} " if task_card.paper else ""
        yield f"{count_text}prompts of {task_card.name}", partial(_prompts, task_card)
    if model_card is None:
        return
    yield f"model {model_card.name}", partial(resolve_model, model_card)
    for weights in model_card.draft_weights:  # the checkpoints that the card names for methods
        title = f"{weights.method} drafter of {model_card.name}"
        yield title, partial(resolve_weights, model_card, weights)


def _prompts(card: TaskCard, *, offline: bool) -> Path:
    """The file with the paper's prompts for a task. Raises UserError if the card names none."""
    if card.paper is None:
        raise UserError(
            f"Task {card.name} has no paper prompts.",
            f"`specbench show {card.name}` lists its sources.",
        )
    return paper_file(card.name, card.paper, offline=offline)


def size_of(path: Path) -> int:
    """The size in bytes of a file, or of the files directly in a folder. Links are followed."""
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    return sum(file.stat().st_size for file in files)
