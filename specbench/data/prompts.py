"""Load the prompts of a task from one of four sources.

`bundled` ships with the package, `paper` is the published file, `hub` is the original data
set, and any other value is the path of a JSONL file.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from specbench.data.cache import cache_dir, file_sha256, paper_file
from specbench.data.prompt_files import Prompt as Prompt
from specbench.data.prompt_files import parse_prompts
from specbench.data.spread import spread_order
from specbench.data.tasks import Task, TaskCard, default_tasks, find_tasks
from specbench.errors import UserError, printable, unknown_name
from specbench.log.header import PromptsHeader, RunHeader

SOURCES = ("bundled", "paper", "hub")
"""The named sources. Any other value is the path of a file."""


@dataclass(frozen=True, slots=True)
class PromptSet:
    """The prompts of one task and their origin."""

    task: Task
    """The task that the prompts belong to."""
    source: str
    """bundled, paper, hub or file."""
    origin: str
    """File name, URL or data set."""
    file_sha256: str | None
    """Hash of the source file, or None for a data set of the Hub."""
    num_available: int
    """The number of prompts in the source."""
    prompts: tuple[Prompt, ...]
    """All prompts, the first ones up to a limit, or a seeded sample, in the order of the source."""

    @property
    def sha256(self) -> str:
        """Return a hash of the ids, categories and turns of these prompts in order."""
        rows = [[prompt.sample_id, prompt.category, *prompt.turns] for prompt in self.prompts]
        listing = json.dumps(rows, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(listing.encode()).hexdigest()

    def drawn(self, num_prompts: int, seed: int) -> PromptSet:
        """Draw this many prompts with a seed, in their order. If there are fewer, take them all."""
        indices = range(len(self.prompts))
        generator = random.Random(f"{seed}/{self.task.name}")
        drawn_indices = sorted(generator.sample(indices, min(num_prompts, len(indices))))
        return replace(self, prompts=tuple(self.prompts[i] for i in drawn_indices))

    def describe(self) -> PromptsHeader:
        """Return this set's entry in the run's header."""
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
            copies=self._copies(),
        )

    def _categories(self) -> dict[str, tuple[str, ...]]:
        """Return the ids of the prompts by category, or {} if all have the same category."""
        ids_by_category: dict[str, list[str]] = defaultdict(list)
        for prompt in self.prompts:
            ids_by_category[prompt.category].append(prompt.sample_id)
        if len(ids_by_category) == 1:
            return {}
        return {category: tuple(ids) for category, ids in ids_by_category.items()}

    def _copies(self) -> dict[str, str]:
        """Map the id of each repeated prompt to the id of the first prompt with the same turns."""
        # reversed, so that the first of several prompts with the same turns is kept
        first_ids = {prompt.turns: prompt.sample_id for prompt in reversed(self.prompts)}
        return {
            prompt.sample_id: first_ids[prompt.turns]
            for prompt in self.prompts
            if first_ids[prompt.turns] != prompt.sample_id
        }


def plan_tasks(names: Sequence[str], source: str) -> tuple[Task, ...]:
    """Return the tasks with these names, or the default tasks. A prompt file is a task by itself.

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


def is_here(task: Task, source: str) -> bool:
    """Return True if this machine has the file of the prompts. The file is not checked."""
    if source == "paper" and task.card and task.card.paper:
        return (cache_dir() / task.card.paper.path).is_file()
    return source not in ("paper", "hub")


def load_prompts(task: str, source: str, *, offline: bool = False) -> tuple[Prompt, ...]:
    """Load the prompts of one task."""
    prompt_sets = load_prompt_sets(plan_tasks([task], source), source, offline=offline)
    return tuple(prompt for prompt_set in prompt_sets for prompt in prompt_set.prompts)


def load_prompt_sets(
    tasks: Iterable[Task],
    source: str,
    *,
    num_prompts: int | None = None,
    is_spread: bool = False,
    offline: bool = False,
) -> tuple[PromptSet, ...]:
    """Load the prompts of each task, in the order of the source.

    Args:
        tasks: what `plan_tasks` returns.
        source: one of `SOURCES`, or a file.
        num_prompts: largest number per task. By default all, or the card's `default_limit` for
            `hub`.
        is_spread: take the first of `spread_order`, not the first of the file. For `hub`, the
            first rows are always taken.
        offline: use no network.

    Raises:
        UserError: the source is missing or broken.
    """
    return tuple(
        _load_set(task, source, num_prompts=num_prompts, is_spread=is_spread, offline=offline)
        for task in tasks
    )


def prompts_of_run(header: RunHeader, prompts: PromptsHeader) -> PromptSet | None:
    """Load the prompts of a task that a run used, or return None if their file is not here.

    The run's options say which prompts it used. For a merged run, all prompts of the task are
    returned, since the options of its parts may differ.
    """
    if prompts.source not in ("bundled", "paper"):
        return None
    spec_values = header.spec.values
    is_merged = bool(header.origins)
    try:
        tasks = plan_tasks([prompts.task], prompts.source)
        (prompt_set,) = load_prompt_sets(
            tasks,
            prompts.source,
            num_prompts=None if is_merged else spec_values.limit,
            is_spread=spec_values.limit_order == "spread",
            offline=True,
        )
    except (UserError, ValueError):
        return None
    if prompt_set.file_sha256 != prompts.file_sha256:
        return None
    if spec_values.sample is None or is_merged:
        return prompt_set
    return prompt_set.drawn(spec_values.sample, spec_values.seed)


def _load_set(
    task: Task, source: str, *, num_prompts: int | None, is_spread: bool, offline: bool
) -> PromptSet:
    """Load the prompts of a task from the card's source, or from a user's own file."""
    card = _require_source(task, source) if task.card else None
    if card and card.hub and source == "hub":
        from specbench.data.hub_prompts import hub_prompts

        rows = hub_prompts(task.name, card.hub, num_prompts=num_prompts, offline=offline)
        return PromptSet(task, source, rows.origin, None, rows.num_available, rows.prompts)
    if card and card.paper and source == "paper":
        hint = f"With network access, run `specbench fetch --dataset {card.name}`."
        hint += " Runs can use `--prompts bundled`." if "bundled" in card.sources else ""
        path = paper_file(card.name, card.paper, offline=offline, hint=hint)
        origin = card.paper.url
        sha256 = card.paper.sha256
    else:
        path = (card and card.bundled_path) or own_file(source)
        origin = path.name
        sha256 = file_sha256(path)
    prompts = parse_prompts(path, task.name)
    if task.categories:
        prompts = tuple(prompt for prompt in prompts if prompt.category in task.categories)
    if not prompts:
        categories = ", ".join(task.categories)
        raise UserError(f"{path} has no prompt for {task.name}: none has category {categories}.")
    order: Sequence[int] = range(len(prompts))
    if is_spread:
        order = spread_order([prompt.category for prompt in prompts])
    return PromptSet(
        task,
        source if card else "file",
        origin,
        sha256,
        num_available=len(prompts),
        prompts=tuple(prompts[i] for i in sorted(order[:num_prompts])),
    )


def _require_source(task: Task, source: str) -> TaskCard:
    """Return the task's card. Refuse a source that the card does not have."""
    assert task.card is not None
    if source not in task.card.sources:
        available = ", ".join(f"`--prompts {name}`" for name in task.card.sources) or "none"
        message = f"Task {task.card.name!r} has no {source} prompts."
        raise UserError(message, f"It has: {available}. `--dataset` picks other tasks.")
    return task.card


def own_file(source: str) -> Path:
    """Return the file that `--prompts source` names. Raise UserError without such a file."""
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
