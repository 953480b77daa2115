"""A suite before it runs: samples, downloads, memory, time, and what is missing.

Downloads and loads nothing. Sizes come from cached files or from the model cards' shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.data.prompts import load_prompt_sets, plan_tasks
from specbench.errors import CheckpointError, TooLarge, UserError
from specbench.measure.local.engine_load import fitted, pick_device
from specbench.measure.local.engine_setup import stand_in_of
from specbench.measure.methods import select_methods
from specbench.measure.plan import make_plan, new_tokens, with_defaults
from specbench.measure.spec import RunSpec
from specbench.measure.weights import ResolvedWeights, find_checkpoint, weights_source
from specbench.models import memory
from specbench.models.cards import Dtype, ModelCard, pick_dtype
from specbench.models.hub import resolve_model
from specbench.settings.run_method import RunMethod

if TYPE_CHECKING:
    from specbench.zoo.stand_in.plan import StandIn

STORED_BYTES = 2
"""Bytes of a published weight."""
CONTEXT = 2048


@dataclass(slots=True)
class Preview:
    """A run that has not started. What is None is unknown.

    `max_seconds` is the time at the speed of a baseline that waits for memory alone, with the
    whole budget used by every answer. `missing` are sentences, `sizes` those of files that are
    not on this machine. `draft_bytes` counts the methods' own weights in memory, as far as
    their size is known.
    """

    num_methods: int = 0
    num_samples: int | None = None
    memory_bytes: int | None = None
    max_seconds: float | None = None
    draft_bytes: int = 0
    sizes: list[int | None] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def download_bytes(self) -> int:
        """Bytes of the files of known size."""
        return sum(filter(None, self.sizes))

    @property
    def has_more_files(self) -> bool:
        """True if there are files of unknown size."""
        return None in self.sizes


def preview(spec: RunSpec, bytes_per_s: Callable[[str], float]) -> Preview:
    """The preview of a run; `bytes_per_s` measures the memory bandwidth of a device.

    Raises:
        UserError: an unknown name, or a device that this machine does not have.
    """
    if spec.backend:  # servers have memory and weights of their own
        plan = make_plan(spec, is_offline=True)
        return Preview(len(plan.setup.labels), plan.num_records)
    spec = with_defaults(spec)
    card, device = spec.card, pick_device(spec.device).name
    dtype = pick_dtype(card, spec.dtype, device)
    found = Preview()
    stand_in = stand_in_of(card) if spec.weights == "stand-in" else None
    need = _target(card, dtype, stand_in, found)
    find = partial(_find, card, dtype, stand_in, found)
    chosen = select_methods(spec, card, spec.run_methods, resolve_weights=find)
    found.num_methods = len(chosen.methods)
    found.missing += [f"{one.label} has no checkpoint." for one in chosen.missing]
    num_answers = _num_answers(spec, found)
    if num_answers is not None:
        passes = len(spec.temperatures) * (spec.repeats or 1)
        found.num_samples = num_answers * passes * found.num_methods
    if need is None:
        return found
    need = replace(need, draft_bytes=found.draft_bytes)
    found.memory_bytes = need.total_bytes
    check = partial(memory.check_need, need, dtype, what=f"Model {spec.model}")
    try:
        fitted(spec.device, lambda device: check(device=device.name))
    except TooLarge as error:
        found.missing.append(error.message)
    if found.num_samples is not None:
        num_tokens = found.num_samples * new_tokens(spec)
        found.max_seconds = num_tokens * need.weight_bytes / bytes_per_s(device)
    return found


def _target(
    card: ModelCard, dtype: Dtype, stand_in: StandIn | None, noted: Preview
) -> memory.MemoryNeed | None:
    """The memory of the target; notes its files if they are to be downloaded."""
    what = f"Model {card.name}"
    estimate = partial(memory.estimate, dtype=dtype, context=CONTEXT, what=what)
    if stand_in:
        return estimate(stand_in.shape)
    try:
        return estimate(resolve_model(card, offline=True))
    except CheckpointError as error:
        if Path(card.repo).expanduser().is_dir():
            noted.missing.append(error.message)
            return None
    shape = card.shape
    noted.sizes.append(shape.num_parameters * STORED_BYTES if shape else None)
    return estimate(shape) if shape else None


def _find(
    card: ModelCard,
    dtype: Dtype,
    stand_in: StandIn | None,
    noted: Preview,
    method: RunMethod,
) -> ResolvedWeights:
    """A method's weights; notes their memory, and if they are to be downloaded."""
    size = memory.BYTES[dtype]
    try:
        found = find_checkpoint(card, method, is_offline=True, stand_in=stand_in)
        if not isinstance(found.weights, Path | None):
            noted.draft_bytes += found.weights.num_numbers * size
        elif found.weights and found.weights.is_dir():
            noted.draft_bytes += memory.folder_bytes(found.weights, dtype)
        return found
    except CheckpointError:
        source = weights_source(card, method)
        count = None
        if source.on_card and not source.given:
            count = memory.num_parameters(card, source.on_card)
        noted.sizes.append(None if count is None else count * STORED_BYTES)
        noted.draft_bytes += (count or 0) * size
        return ResolvedWeights(None)


def _num_answers(spec: RunSpec, noted: Preview) -> int | None:
    """Answers of one pass of one method; prompts of one turn where they are not on this machine."""
    total = 0
    for task in plan_tasks(spec.tasks, spec.prompts):
        try:
            (found,) = load_prompt_sets([task], spec.prompts, limit=spec.limit, offline=True)
            kept = found.drawn(spec.sample, spec.seed) if spec.sample else found
            total += sum(len(prompt.turns) for prompt in kept.prompts)
        except UserError:
            noted.sizes.append(None)
            paper = task.card.paper if task.card and spec.prompts == "paper" else None
            wanted = spec.limit or spec.sample
            if paper is None and wanted is None:
                noted.missing.append(f"The number of prompts of {task.name} is not known yet.")
                return None
            total += min(filter(None, (wanted, paper.num_prompts if paper else None)))
    return total
