"""Task cards: one TOML file (`datasets/cards/<name>.toml`) a task.

Reads no prompts and uses no network.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from msgspec import Struct
from msgspec.structs import asdict

from specbench.data.toml_files import read_toml
from specbench.errors import UserError, unknown_name
from specbench.types import ROOTS


class PaperSource(Struct, frozen=True, forbid_unknown_fields=True):
    """A published file: pinned URL, sha256, and path below the cache folder."""

    url: str
    sha256: str
    path: str
    num_prompts: int
    license: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise ValueError(f"sha256 = {self.sha256!r} is not 64 hex digits in lower case")
        if Path(self.path).is_absolute() or ".." in Path(self.path).parts:
            raise ValueError(f"path = {self.path!r} leaves the cache folder")


class HubSource(Struct, frozen=True, forbid_unknown_fields=True):
    """The original data set on the Hugging Face Hub, and the rule that turns a row into a prompt.

    Give either `turns` (one template a turn; `{column}` is replaced) or `turns_field` (a
    column with the list of turns). `is_stripped` strips white space from every turn.
    `default_limit` is the number of rows taken when the user gives no limit. `data_files`
    picks a file of the data set. A row with a turn that begins with `placeholder` does not
    hold its text and is left out.
    """

    id: str
    split: str
    config: str | None = None
    data_files: str | None = None
    revision: str | None = None
    turns: tuple[str, ...] = ()
    turns_field: str | None = None
    id_field: str | None = None
    category: str = ""
    category_field: str | None = None
    is_stripped: bool = False
    default_limit: int | None = None
    placeholder: str | None = None

    def __post_init__(self) -> None:
        if bool(self.turns) == (self.turns_field is not None):
            raise ValueError("give either 'turns' or 'turns_field'")


class Group(Struct, frozen=True, forbid_unknown_fields=True):
    """A sub-task of a suite: the prompts of some categories."""

    name: str
    title: str
    categories: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """One column of the tables. `card` is None for a user's own prompt file.

    `name` is the card's name, or "suite/group". `categories` is empty when all prompts belong.
    """

    name: str
    title: str
    card: "TaskCard | None" = None
    categories: tuple[str, ...] = ()

    @property
    def is_original(self) -> bool:
        """True if the bundled prompts are all there are: they imitate no published ones."""
        return self.card is not None and self.card.sources == ("bundled",)


class CardFields(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A card as it is written in its file. A card with groups is a suite of several tasks."""

    name: str
    title: str
    description: str
    order: int = 1000
    is_default: bool = False
    paper: PaperSource | None = None
    hub: HubSource | None = None
    group: tuple[Group, ...] = ()


class TaskCard(CardFields, frozen=True, kw_only=True):
    """A card with the file of its bundled prompts, if the package has one."""

    bundled_path: Path | None = None

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
        has = {"bundled": self.bundled_path, "paper": self.paper, "hub": self.hub}
        return tuple(name for name, value in has.items() if value is not None)


def load_cards() -> dict[str, TaskCard]:
    """Every card that can be read by name, in column order."""
    cards = {name: card for name, card in _all_cards().items() if isinstance(card, TaskCard)}
    return dict(sorted(cards.items(), key=lambda item: (item[1].order, item[0])))


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


def find_tasks(names: Iterable[str]) -> tuple[Task, ...]:
    """The named tasks in this order, without duplicates. A suite stands for all its sub-tasks.

    A name may be the file of a card anywhere; its prompts may stand beside it, as NAME.jsonl.
    """
    known: dict[str, tuple[Task, ...]] = {}
    for card in load_cards().values():
        known[card.name] = card.tasks
        known.update({task.name: (task,) for task in card.tasks})
    found: dict[str, Task] = {}
    for name in names:
        if error := broken_cards().get(name.partition("/")[0]):
            raise error
        if name.endswith(".toml"):
            card = _read_card(Path(name).expanduser())
            known[name] = card.tasks
        if name not in known:
            raise unknown_name("task", name, known, "`specbench list datasets` describes them.")
        found.update({task.name: task for task in known[name]})
    return tuple(found.values())


def _read_card(path: Path) -> TaskCard:
    hint = "datasets/README.md describes the keys of a card."
    fields = read_toml(path, CardFields, what="Task card", hint=hint)
    if fields.name != path.stem:
        message = f"Task card {path} names the task {fields.name!r}, its file says {path.stem!r}."
        raise UserError(message, "Make the two equal.")
    places = (path.parent.parent / "prompts" / f"{path.stem}.jsonl", path.with_suffix(".jsonl"))
    bundled = next((place for place in places if place.is_file()), None)
    return TaskCard(**asdict(fields), bundled_path=bundled)
