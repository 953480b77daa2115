"""Tasks: what is measured, one card (`datasets/cards/<name>.toml`) each.

Knows names, titles and where a task's prompts come from. Reads no prompts and uses no network.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import specbench
from specbench.errors import UserError, unknown_name


@dataclass(frozen=True, slots=True)
class PaperSource:
    """One published file: pinned URL, its sha256, and its place below the cache folder."""

    url: str
    sha256: str
    path: str
    num_prompts: int
    license: str = ""


@dataclass(frozen=True, slots=True)
class HubSource:
    """The original data set on the Hugging Face Hub, and how a row becomes a prompt.

    Either `turns` (one template a turn, `{column}` is replaced) or `turns_field` (a column holding
    the list of turns). `is_stripped` takes white space off both ends of every turn.
    `default_limit` rows are taken when the user gives no limit.
    """

    id: str
    split: str
    config: str | None = None
    revision: str | None = None
    turns: tuple[str, ...] = ()
    turns_field: str | None = None
    id_field: str | None = None
    category: str = ""
    category_field: str | None = None
    is_stripped: bool = False
    default_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
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


@dataclass(frozen=True, slots=True)
class TaskCard:
    """A card as read from its file. A card with groups is a suite of several tasks."""

    name: str
    title: str
    description: str
    order: int
    is_default: bool
    paper: PaperSource | None
    hub: HubSource | None
    groups: tuple[Group, ...]
    bundled_path: Path | None

    @property
    def tasks(self) -> tuple[Task, ...]:
        if not self.groups:
            return (Task(self.name, self.title, self),)
        return tuple(
            Task(f"{self.name}/{group.name}", group.title, self, group.categories)
            for group in self.groups
        )

    @property
    def sources(self) -> tuple[str, ...]:
        """The values of `--prompts` that this card can serve."""
        has = {"bundled": self.bundled_path, "paper": self.paper, "hub": self.hub}
        return tuple(name for name, value in has.items() if value is not None)


def load_cards() -> dict[str, TaskCard]:
    """Every card, by name, in the order of the tables' columns.

    Cards lie in `datasets/cards` below any folder of the package's search path: beside the package
    in a checkout, inside it in a wheel. The first card of a name wins, as with Python's imports.
    """
    cards: dict[str, TaskCard] = {}
    for root in specbench.__path__:
        for path in sorted(Path(root, "datasets", "cards").glob("*.toml")):
            if path.stem not in cards:
                cards[path.stem] = _read_card(path)
    return dict(sorted(cards.items(), key=lambda item: (item[1].order, item[0])))


def default_tasks() -> tuple[Task, ...]:
    """The tasks of a run that names none."""
    return tuple(task for card in load_cards().values() if card.is_default for task in card.tasks)


def find_tasks(names: Iterable[str]) -> tuple[Task, ...]:
    """The tasks of these names in this order, each once; a suite stands for all its sub-tasks."""
    known: dict[str, tuple[Task, ...]] = {}
    for card in load_cards().values():
        known[card.name] = card.tasks
        known.update({task.name: (task,) for task in card.tasks})
    found: dict[str, Task] = {}
    for name in names:
        if name not in known:
            raise unknown_name("task", name, known, "`specbench list datasets` describes them.")
        found.update({task.name: task for task in known[name]})
    return tuple(found.values())


def _read_card(path: Path) -> TaskCard:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"Task card {path} cannot be read: {error}", _CARD_HINT) from error
    try:
        card = _build_card(path, table)
    except KeyError as error:
        message = f"Task card {path} lacks {error.args[0]!r}."
        raise UserError(message, _CARD_HINT) from error
    except (TypeError, ValueError) as error:
        raise UserError(f"Task card {path} is wrong: {error}", _CARD_HINT) from error
    if card.name != path.stem:
        message = f"Task card {path} names the task {card.name!r}, its file says {path.stem!r}."
        raise UserError(message, "Make the two equal.")
    return card


_CARD_HINT = "datasets/README.md describes the keys of a card."

_HUB_KEYS = set(HubSource.__dataclass_fields__)
_PAPER_KEYS = set(PaperSource.__dataclass_fields__)
_CARD_KEYS = {"name", "title", "description", "order", "is_default", "paper", "hub", "group"}


def _build_card(path: Path, table: Mapping[str, Any]) -> TaskCard:
    _refuse_unknown_keys(table, _CARD_KEYS, "the card")
    bundled = path.parent.parent / "prompts" / f"{path.stem}.jsonl"
    return TaskCard(
        name=table["name"],
        title=table["title"],
        description=table["description"],
        order=int(table.get("order", 1000)),
        is_default=bool(table.get("is_default", False)),
        paper=_build_paper(table["paper"]) if "paper" in table else None,
        hub=_build_hub(table["hub"]) if "hub" in table else None,
        groups=tuple(
            Group(group["name"], group["title"], tuple(group["categories"]))
            for group in table.get("group", ())
        ),
        bundled_path=bundled if bundled.is_file() else None,
    )


def _build_paper(table: Mapping[str, Any]) -> PaperSource:
    _refuse_unknown_keys(table, _PAPER_KEYS, "[paper]")
    source = PaperSource(
        url=table["url"],
        sha256=str(table["sha256"]).lower(),
        path=table["path"],
        num_prompts=int(table["num_prompts"]),
        license=table.get("license", ""),
    )
    if len(source.sha256) != 64 or set(source.sha256) - set("0123456789abcdef"):
        raise ValueError(f"sha256 = {source.sha256!r} is not 64 hex digits")
    if Path(source.path).is_absolute() or ".." in Path(source.path).parts:
        raise ValueError(f"path = {source.path!r} leaves the cache folder")
    return source


def _build_hub(table: Mapping[str, Any]) -> HubSource:
    _refuse_unknown_keys(table, _HUB_KEYS, "[hub]")
    if ("turns" in table) == ("turns_field" in table):
        raise ValueError("[hub] needs either 'turns' or 'turns_field'")
    values = {**table, "turns": tuple(table.get("turns", ()))}
    return HubSource(**{"id": table["id"], "split": table["split"], **values})


def _refuse_unknown_keys(table: Mapping[str, Any], known: set[str], where: str) -> None:
    if unknown := sorted(set(table) - known):
        raise ValueError(f"{where} has unknown keys: {', '.join(unknown)}")
