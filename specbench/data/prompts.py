"""Prompts of a task, from one of four sources.

`bundled` ships with the package, `paper` is the published file, `hub` is the original data
set, and any other value is the path of a JSONL file.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.data.cache import file_sha256, paper_file
from specbench.data.prompt_files import Prompt as Prompt
from specbench.data.prompt_files import parse_prompts
from specbench.data.tasks import Task, TaskCard, default_tasks, find_tasks
from specbench.errors import UserError, printable, unknown_name
from specbench.log.header import PromptsHeader, RunHeader

SOURCES = ("bundled", "paper", "hub")
"""The named sources. Any other value is the path of a file."""


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of one task and their origin.

    `file_sha256` is the hash of the source file (None for the hub). `num_available` is the
    number of prompts in the source; the set holds the first `len(prompts)` of them.
    """

    task: Task
    source: str
    origin: str
    file_sha256: str | None
    num_available: int
    prompts: tuple[Prompt, ...]

    @property
    def sha256(self) -> str:
        """Hash of exactly the prompts in this set: ids, categories and turns, in order."""
        rows = [[prompt.sample_id, prompt.category, *prompt.turns] for prompt in self.prompts]
        text = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def drawn(self, number: int, seed: int) -> PromptSet:
        """This many prompts, drawn with a seed and in their order; all if there are fewer."""
        places = range(len(self.prompts))
        generator = random.Random(f"{seed}/{self.task.name}")
        kept = sorted(generator.sample(places, min(number, len(places))))
        return replace(self, prompts=tuple(self.prompts[i] for i in kept))

    def describe(self) -> PromptsHeader:
        """The set's part of the header."""
        return PromptsHeader(
            task=self.task.name,
            title=self.task.title,
            source=self.source,
            origin=self.origin,
            file_sha256=self.file_sha256,
            num_available=self.num_available,
            num_prompts=len(self.prompts),
            sha256=self.sha256,
            categories=self._categories(),
            is_original=self.source == "bundled" and self.task.is_original,
        )

    def _categories(self) -> dict[str, tuple[str, ...]]:
        """The ids of the prompts by category; empty if all have the same one."""
        found: dict[str, tuple[str, ...]] = {}
        for prompt in self.prompts:
            found[prompt.category] = (*found.get(prompt.category, ()), prompt.sample_id)
        return found if len(found) > 1 else {}


def plan_tasks(names: Sequence[str], source: str) -> tuple[Task, ...]:
    """The tasks of a run: `names`, or the default tasks. A prompt file is a task of its own.

    Nothing is loaded yet.

    Raises:
        UserError: an unknown task or source, a missing file, or a task without this source.
    """
    if source not in SOURCES:
        name = printable(own_file(source).stem)
        return (Task(name, name),)
    tasks = find_tasks(names) if names else default_tasks()
    for task in tasks:
        _require_source(task, source)
    return tasks


def load_prompts(task: str, source: str, *, offline: bool = False) -> tuple[Prompt, ...]:
    """The prompts of a task."""
    sets = load_prompt_sets(plan_tasks([task], source), source, offline=offline)
    return tuple(prompt for one in sets for prompt in one.prompts)


def load_prompt_sets(
    tasks: Iterable[Task], source: str, *, limit: int | None = None, offline: bool = False
) -> tuple[PromptSet, ...]:
    """The first `limit` prompts of each task, in the order of the source.

    With `hub` and no limit, the card's `default_limit` applies.

    Raises:
        UserError: the source is missing or broken.
    """
    return tuple(_load_set(task, source, limit, offline) for task in tasks)


def known_prompts(header: RunHeader, one: PromptsHeader) -> PromptSet | None:
    """The prompts of a task as the run's options choose them; None without the run's file."""
    values = header.spec.values
    if one.source not in ("bundled", "paper"):
        return None
    limit = None if header.origins else values.limit
    try:
        tasks = plan_tasks([one.task], one.source)
        (found,) = load_prompt_sets(tasks, one.source, limit=limit, offline=True)
    except (UserError, ValueError):
        return None
    if found.file_sha256 != one.file_sha256:
        return None
    is_drawn = values.sample is not None and not header.origins
    return found.drawn(values.sample or 0, values.seed) if is_drawn else found


def _load_set(task: Task, source: str, limit: int | None, offline: bool) -> PromptSet:
    card = _require_source(task, source) if task.card else None
    if card and card.hub and source == "hub":
        from specbench.data.hub_prompts import hub_prompts

        rows = hub_prompts(task.name, card.hub, limit=limit, offline=offline)
        return PromptSet(task, source, rows.origin, None, rows.num_available, rows.prompts)
    if card and card.paper and source == "paper":
        hint = f"Where there is network: `specbench fetch --dataset {card.name}`."
        hint += " Or use `--prompts bundled`." if "bundled" in card.sources else ""
        path = paper_file(card.name, card.paper, offline=offline, hint=hint)
        origin, sha256 = card.paper.url, card.paper.sha256
    else:
        path = (card and card.bundled_path) or own_file(source)
        origin, sha256 = path.name, file_sha256(path)
    prompts = parse_prompts(path, task.name)
    if task.categories:
        prompts = tuple(prompt for prompt in prompts if prompt.category in task.categories)
    if not prompts:
        wanted = ", ".join(task.categories)
        raise UserError(f"{path} holds no prompt of {task.name}: no category is {wanted}.")
    kind = source if card else "file"
    return PromptSet(task, kind, origin, sha256, len(prompts), prompts[:limit])


def _require_source(task: Task, source: str) -> TaskCard:
    """The task's card, if it can serve this source."""
    assert task.card is not None
    if source not in task.card.sources:
        available = ", ".join(f"`--prompts {name}`" for name in task.card.sources) or "none"
        message = f"Task {task.card.name!r} has no {source} prompts."
        raise UserError(message, f"It has: {available}. `--dataset` picks other tasks.")
    return task.card


def own_file(source: str) -> Path:
    """The file that `--prompts source` names. Raises UserError if there is none."""
    path = Path(source).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        raise UserError(f"--prompts {source} is a folder.", "Name one JSONL file in it.")
    if path.suffix or len(path.parts) > 1:
        raise UserError(
            f"--prompts {source}: the file does not exist.",
            f"Give a file that exists, or one of {', '.join(SOURCES)}.",
        )
    raise unknown_name("prompt source", source, SOURCES, "Or the path of a JSONL file.")
