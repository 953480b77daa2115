"""Task cards: one TOML file (`datasets/cards/<name>.toml`) per task.

The module reads no prompts and uses no network.
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
    """A published file."""

    url: str
    """Pinned URL."""
    sha256: str
    """Hash of the file."""
    path: str
    """Its path below the cache folder."""
    num_prompts: int
    """Number of prompts in the file."""
    license: str = ""
    """Licence of the prompts; empty if unknown."""

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
    """Configuration of the data set; None: its only one."""
    data_files: str | None = None
    """A file of the data set; None: all."""
    revision: str | None = None
    """Commit on the Hub; None: main."""
    turns: tuple[str, ...] = ()
    """One template per turn, in which `{column}` is replaced."""
    turns_field: str | None = None
    """Column with the list of turns."""
    id_field: str | None = None
    """Column with the id of a row; None: its number."""
    category: str = ""
    """Category of all rows."""
    category_field: str | None = None
    """Column with the category of a row; None: all have `category`."""
    is_stripped: bool = False
    """Strip white space from every turn."""
    default_limit: int | None = None
    """Rows taken when the user gives no `--limit`; None: all."""
    placeholder: str | None = None
    """Beginning of a turn that stands for missing text. Rows with such a turn are left out."""

    def __post_init__(self) -> None:
        if bool(self.turns) == (self.turns_field is not None):
            raise ValueError("give either 'turns' or 'turns_field'")


class Group(Struct, frozen=True, forbid_unknown_fields=True):
    """A sub-task of a suite: the prompts of some categories."""

    name: str
    """Name, which follows the suite's name and a slash."""
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
    """Its card; None for a user's own prompt file."""
    categories: tuple[str, ...] = ()
    """Categories of its prompts; empty when all prompts belong."""

    @property
    def is_original(self) -> bool:
        """True if the task has only bundled prompts, which imitate no published ones."""
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
    """Place of its column: lower ones are further left."""
    is_default: bool = False
    """It is part of a run without `--dataset`."""
    paper: PaperSource | None = None
    """Its published prompts; None if it has none."""
    hub: HubSource | None = None
    """Its data set; None if it has none."""
    group: tuple[Group, ...] = ()
    """Sub-tasks of a suite; empty for a task."""


class TaskCard(CardFields, frozen=True, kw_only=True):
    """A card as it is used: with the file of its bundled prompts."""

    bundled_path: Path | None = None
    """The file; None if there is none."""

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
        """The values of `--prompts` that this card supports."""
        sources = {"bundled": self.bundled_path, "paper": self.paper, "hub": self.hub}
        return tuple(name for name, source in sources.items() if source is not None)


def load_cards() -> dict[str, TaskCard]:
    """Every card that can be read by name, in column order."""
    cards = {name: card for name, card in _all_cards().items() if isinstance(card, TaskCard)}
    in_order = sorted(cards, key=lambda name: (cards[name].order, name))
    return {name: cards[name] for name in in_order}


def broken_cards() -> dict[str, UserError]:
    """The errors of the cards that cannot be read, by the names of their files."""
    return {name: card for name, card in _all_cards().items() if isinstance(card, UserError)}


def _all_cards() -> dict[str, TaskCard | UserError]:
    """Cards and errors by the names of the files.

    Cards are searched in `datasets/cards` below each of `ROOTS`: beside the package in a
    checkout, inside it in a wheel. The first card of a name wins, as in imports.
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
    """The tasks of a run without `--dataset`."""
    return tuple(task for card in load_cards().values() if card.is_default for task in card.tasks)


def known_names(names: Iterable[str]) -> tuple[str, ...]:
    """The names as cards spell them: "GSM8K" becomes gsm8k. Files and unknown names stay."""
    available = [name for card in load_cards().values() for name in _names_of(card)]
    return tuple(same_name(name, available) for name in names)


def _names_of(card: TaskCard) -> Iterable[str]:
    return (card.name, *(task.name for task in card.tasks))


def find_tasks(names: Iterable[str]) -> tuple[Task, ...]:
    """The named tasks in this order, without duplicates. A suite stands for all its sub-tasks.

    A name may be the file of a card anywhere; its prompts may stand beside it, as NAME.jsonl.
    """
    tasks_by_name: dict[str, tuple[Task, ...]] = {}
    for card in load_cards().values():
        tasks_by_name[card.name] = card.tasks
        tasks_by_name.update({task.name: (task,) for task in card.tasks})
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
