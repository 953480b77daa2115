"""Read task cards, one TOML file (`datasets/cards/<name>.toml`) per task.

This module reads no prompts and uses no network.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from specbench.data.toml_files import read_toml
from specbench.errors import UserError, same_name, unknown_name
from specbench.types import ROOTS


class PaperSource(Struct, frozen=True, forbid_unknown_fields=True):
    """The published prompt file of a task."""

    url: str
    """URL, pinned to a version."""
    sha256: str
    """SHA-256 of the file."""
    path: str
    """The file's path below the cache folder."""
    num_prompts: int
    """Number of prompts in the file."""
    license: str = ""
    """Licence of the prompts, or "" if it is unknown."""

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError(f"sha256 = {self.sha256!r} is not 64 hex digits in lower case")
        if Path(self.path).is_absolute() or ".." in Path(self.path).parts:
            raise ValueError(f"path = {self.path!r} leaves the cache folder")


class HubSource(Struct, frozen=True, forbid_unknown_fields=True):
    """The original data set on the Hugging Face Hub, and the rule that turns a row into a prompt.

    A card gives either `turns` or `turns_field`.
    """

    id: str
    """Id of the data set."""
    split: str
    """Split of the data set."""
    config: str | None = None
    """Configuration of the data set, or None if it has only one."""
    data_files: str | None = None
    """The only file of the data set to read, or None for all."""
    revision: str | None = None
    """Commit on the Hub, or None for main."""
    turns: tuple[str, ...] = ()
    """One template per turn, in which `{column}` is replaced."""
    turns_field: str | None = None
    """Column that holds the list of turns."""
    id_field: str | None = None
    """Column with the id of a row, or None to use the row's number."""
    category: str = ""
    """Category of all rows."""
    category_field: str | None = None
    """Column with the category of a row, or None if all rows have `category`."""
    is_stripped: bool = False
    """True if white space is stripped from both ends of every turn."""
    default_limit: int | None = None
    """Number of rows to take without `--limit`, or None for all."""
    placeholder: str | None = None
    """The beginning of turns that are placeholders. Rows with such a turn are left out."""

    def __post_init__(self) -> None:
        if bool(self.turns) == (self.turns_field is not None):
            raise ValueError("give either 'turns' or 'turns_field'")


class Group(Struct, frozen=True, forbid_unknown_fields=True):
    """A sub-task of a suite: the prompts of some categories."""

    name: str
    """Name, which is written after the suite's name and a slash."""
    title: str
    """Title of its column."""
    categories: tuple[str, ...]
    """Categories of its prompts."""


@dataclass(frozen=True, slots=True)
class Task:
    """One column of the tables."""

    name: str
    """The card's name, or "suite/group"."""
    title: str
    """Title of the column."""
    card: "TaskCard | None" = None
    """The task's card, or None for a user's own prompt file."""
    categories: tuple[str, ...] = ()
    """Categories of its prompts, or () if all prompts of the card belong to it."""

    @property
    def is_original(self) -> bool:
        """Return True if the task has only bundled prompts, which do not imitate published ones."""
        return self.card is not None and self.card.sources == ("bundled",)


class CardFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A card as it is written in its file. A card with groups is a suite of several tasks."""

    name: str
    """Name of the task, and of the file."""
    title: str
    """Title of its column."""
    description: str
    """A sentence about the task."""
    order: int = 1000
    """Place of its column. Columns with smaller numbers are further left."""
    is_default: bool = False
    """True if a run without `--dataset` includes it."""
    paper: PaperSource | None = None
    """The task's published prompts, if any."""
    hub: HubSource | None = None
    """The task's data set on the Hub, if any."""
    group: tuple[Group, ...] = ()
    """The sub-tasks of a suite, or () for a single task."""


class TaskCard(CardFields, frozen=True, kw_only=True):
    """A card as the program uses it, which also has the file of its bundled prompts."""

    bundled_path: Path | None = None
    """The file of its bundled prompts, if any."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        if not self.group:
            return (Task(self.name, self.title, self),)
        return tuple(
            Task(f"{self.name}/{group.name}", group.title, self, group.categories)
            for group in self.group
        )

    @property
    def sources(self) -> tuple[str, ...]:
        """Return the values of `--prompts` that this card supports."""
        sources = {"bundled": self.bundled_path, "paper": self.paper, "hub": self.hub}
        return tuple(name for name, source in sources.items() if source is not None)


def load_cards() -> dict[str, TaskCard]:
    """Return every readable card by name, in the order of columns."""
    cards = {name: card for name, card in _all_cards().items() if isinstance(card, TaskCard)}
    in_order = sorted(cards, key=lambda name: (cards[name].order, name))
    return {name: cards[name] for name in in_order}


def broken_cards() -> dict[str, UserError]:
    """Return the errors of unreadable cards by the names of their files."""
    return {name: card for name, card in _all_cards().items() if isinstance(card, UserError)}


def _all_cards() -> dict[str, TaskCard | UserError]:
    """Return every card, or the error that it causes, by the name of its file.

    Cards are in `datasets/cards` below each of `ROOTS`, which is beside the package in a checkout
    and inside it in a wheel. The first card of a name wins, as in imports.
    """
    cards: dict[str, TaskCard | UserError] = {}
    for root in ROOTS:
        for path in sorted(Path(root, "datasets", "cards").glob("*.toml")):
            try:
                cards.setdefault(path.stem, _read_card(path))
            except UserError as error:
                cards.setdefault(path.stem, error)
    return cards


def default_tasks() -> tuple[Task, ...]:
    """Return the tasks of a run without `--dataset`."""
    return tuple(task for card in load_cards().values() if card.is_default for task in card.tasks)


def known_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return names as cards spell them, so "GSM8K" becomes gsm8k. Files and unknown names stay."""
    available = _tasks_by_name()
    return tuple(same_name(name, available) for name in names)


def _tasks_by_name() -> dict[str, tuple[Task, ...]]:
    """Return the tasks of each card and each sub-task, by its name."""
    cards = load_cards().values()
    tasks_of_cards = {card.name: card.tasks for card in cards}
    return tasks_of_cards | {task.name: (task,) for card in cards for task in card.tasks}


def find_tasks(names: Iterable[str]) -> tuple[Task, ...]:
    """Return the named tasks in this order, without duplicates. A suite means all its sub-tasks.

    A name may also be the path of a card's file. Its prompts may be beside it, as NAME.jsonl.
    """
    tasks_by_name = _tasks_by_name()
    chosen: dict[str, Task] = {}
    for name in known_names(names):
        error = broken_cards().get(name.partition("/")[0])
        if error:
            raise error
        if name.endswith(".toml"):
            card = _read_card(Path(name).expanduser())
            tasks_by_name[name] = card.tasks
        if name not in tasks_by_name:
            hint = "`specbench list datasets` describes them."
            raise unknown_name("task", name, tasks_by_name, hint)
        chosen.update({task.name: task for task in tasks_by_name[name]})
    return tuple(chosen.values())


def _read_card(path: Path) -> TaskCard:
    hint = "datasets/README.md describes the keys of a card."
    fields = read_toml(path, CardFields, what="Task card", hint=hint)
    if fields.name != path.stem:
        message = f"Task card {path} names the task {fields.name!r}, but its file is {path.stem!r}."
        raise UserError(message, "Make the two equal.")
    in_prompts_folder = path.parent.parent / "prompts" / f"{path.stem}.jsonl"
    beside_card = path.with_suffix(".jsonl")
    prompt_files = [file for file in (in_prompts_folder, beside_card) if file.is_file()]
    return TaskCard(**asdict(fields), bundled_path=prompt_files[0] if prompt_files else None)
