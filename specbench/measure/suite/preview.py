"""A suite before it runs: samples, downloads, memory, time, and what is missing.

Downloads and loads nothing. Sizes come from cached files or from the model cards' shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.data.prompts import load_prompt_sets, plan_tasks
from specbench.errors import CheckpointError, TooLarge, UserError
from specbench.measure import methods
from specbench.measure.local.device import fitted, pick_device
from specbench.measure.plan import make_plan, new_tokens, with_defaults
from specbench.measure.spec import RunSpec
from specbench.measure.stand_ins import find_weights, stand_in_of
from specbench.measure.suite.recipe import SuiteRun
from specbench.models import memory
from specbench.models.cards import Dtype, ModelCard, find_model, pick_dtype
from specbench.models.hub import resolve_model

if TYPE_CHECKING:
    from specbench.engine.drafter import Method

STORED_BYTES = 2
"""Bytes of a published weight."""
CONTEXT = 2048


@dataclass(frozen=True, slots=True)
class Preview:
    """A run that has not started. What is None is unknown.

    `download_bytes` counts files of known size; with `has_more_files`, there are others.
    `max_seconds` is the time at the speed of a baseline that waits for memory alone, with the
    whole budget used by every answer. `missing` are sentences.
    """

    num_methods: int
    num_samples: int | None
    download_bytes: int
    has_more_files: bool
    memory_bytes: int | None
    max_seconds: float | None
    missing: tuple[str, ...]


@dataclass(slots=True)
class _Files:
    """The sizes of files that are not on this machine, and sentences about what is missing.

    `draft_bytes` counts the methods' own weights in memory, as far as their size is known.
    """

    sizes: list[int | None] = field(default_factory=list)
    draft_bytes: int = 0
    missing: list[str] = field(default_factory=list)


def preview(run: SuiteRun, bytes_per_s: Callable[[str], float]) -> Preview:
    """The preview of a run; `bytes_per_s` measures the memory bandwidth of a device.

    Raises:
        UserError: an unknown name, or a device that this machine does not have.
    """
    if run.spec.backend:  # servers have memory and weights of their own
        plan = make_plan(run.spec, is_offline=True)
        return Preview(len(plan.setup.labels), plan.num_records, 0, False, None, None, ())
    spec = with_defaults(run.spec)
    card, device = find_model(spec.model), pick_device(spec.device).name
    dtype = pick_dtype(card, spec.dtype, device)
    files = _Files()
    need = _target(card, dtype, spec, files)
    named = methods.parse_methods(spec.methods)
    chosen = methods.select_methods(
        spec, card, named, resolve_weights=_finder(spec, card, dtype, files)
    )
    need = need and replace(need, draft_bytes=files.draft_bytes)
    files.missing += [f"{one.label} has no checkpoint." for one in chosen.missing]
    num_answers = _num_answers(spec, files)
    num_samples = max_seconds = None
    if num_answers is not None:
        passes = len(chosen.methods) * len(spec.temperatures) * (spec.repeats or 1)
        num_samples = num_answers * passes
    if need:
        files.missing += _lack_of_memory(need, dtype, spec)
    if need and num_samples is not None:
        max_seconds = num_samples * new_tokens(spec) * need.weight_bytes / bytes_per_s(device)
    return Preview(
        num_methods=len(chosen.methods),
        num_samples=num_samples,
        download_bytes=sum(filter(None, files.sizes)),
        has_more_files=None in files.sizes,
        memory_bytes=need.total_bytes if need else None,
        max_seconds=max_seconds,
        missing=tuple(files.missing),
    )


def _lack_of_memory(need: memory.MemoryNeed, dtype: Dtype, spec: RunSpec) -> list[str]:
    """A sentence if the device, or all GPUs if none is named, have too little memory free."""
    check = partial(memory.check_need, need, dtype, what=f"Model {spec.model}")
    try:
        fitted(spec.device, lambda device: check(device=device.name))
    except TooLarge as error:
        return [error.message]
    return []


def _target(
    card: ModelCard, dtype: Dtype, spec: RunSpec, files: _Files
) -> memory.MemoryNeed | None:
    """The memory of the target; notes its files if they are to be downloaded."""
    what = f"Model {card.name}"
    estimate = partial(memory.estimate, dtype=dtype, context=CONTEXT, what=what)
    if spec.weights == "stand-in":
        return estimate(stand_in_of(card).shape)
    try:
        return estimate(resolve_model(card, offline=True))
    except CheckpointError as error:
        if Path(card.repo).expanduser().is_dir():
            files.missing.append(error.message)
            return None
    if card.shape is None:
        files.sizes.append(None)
        return None
    files.sizes.append(card.shape.num_parameters * STORED_BYTES)
    return estimate(card.shape)


def _finder(
    spec: RunSpec, card: ModelCard, dtype: Dtype, files: _Files
) -> Callable[[Method, Any], methods.ResolvedWeights]:
    """Finds a method's weights; notes their memory, and if they are to be downloaded."""
    stand_in = stand_in_of(card) if spec.weights == "stand-in" else None

    def find(method: Method, options: Any) -> methods.ResolvedWeights:
        if stand_in is not None:
            found = find_weights(stand_in, method, options)
            if not isinstance(found.weights, Path | None):
                files.draft_bytes += found.weights.num_numbers * memory.BYTES[dtype]
            return found
        try:
            found = methods.find_checkpoint(card, method, options, is_offline=True)
            if isinstance(found.weights, Path) and found.weights.is_dir():
                files.draft_bytes += memory.folder_bytes(found.weights, dtype)
            return found
        except CheckpointError:
            name = method.weights_with(options) or method.name
            known = card.weights_of(method.name) or card.weights_of(name)
            count = None
            if known and not getattr(options, "weights", ""):
                count = memory.num_parameters(card, known)
            files.sizes.append(None if count is None else count * STORED_BYTES)
            files.draft_bytes += (count or 0) * memory.BYTES[dtype]
            return methods.ResolvedWeights(None)

    return find


def _num_answers(spec: RunSpec, files: _Files) -> int | None:
    """Answers of one pass of one method; prompts of one turn where they are not on this machine."""
    total = 0
    for task in plan_tasks(spec.tasks, spec.prompts):
        try:
            (found,) = load_prompt_sets([task], spec.prompts, limit=spec.limit, offline=True)
            kept = found.drawn(spec.sample, spec.seed) if spec.sample else found
            total += sum(len(prompt.turns) for prompt in kept.prompts)
        except UserError:
            files.sizes.append(None)
            paper = task.card.paper if task.card and spec.prompts == "paper" else None
            wanted = spec.limit or spec.sample
            if paper is None and wanted is None:
                files.missing.append(f"The number of prompts of {task.name} is not known yet.")
                return None
            total += min(filter(None, (wanted, paper.num_prompts if paper else None)))
    return total
