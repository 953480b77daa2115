"""Preview the samples, downloads, memory, time and missing parts of a run before it starts.

Nothing is downloaded or loaded. Sizes come from cached files, or from the shapes in model cards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from specbench.data.prompts import is_here, load_prompt_sets, plan_tasks
from specbench.data.tasks import Task
from specbench.errors import CheckpointError, TooLarge, UserError
from specbench.measure.local.device import fitted, pick_device
from specbench.measure.local.stand_ins import stand_in_of
from specbench.measure.methods import select_methods
from specbench.measure.plan import make_plan, new_tokens, with_defaults
from specbench.measure.spec import SPREAD, RunSpec
from specbench.measure.weights import ResolvedWeights, find_checkpoint, weights_source
from specbench.models import memory
from specbench.models.cards import Dtype, ModelCard, pick_dtype
from specbench.models.hub import resolve_model
from specbench.registry import MethodChoice
from specbench.settings.run_method import RunMethod
from specbench.types import Shape

if TYPE_CHECKING:
    from specbench.zoo.stand_in.plan import StandIn

STORED_BYTES = 2
"""Bytes per parameter in published checkpoints."""
CONTEXT = 2048
"""The memory is estimated for a chat of this length in tokens."""


@dataclass(frozen=True, slots=True)
class Preview:
    """The facts about a run that are known before it starts. Unknown values are None."""

    num_methods: int
    """The number of methods that would run."""
    num_samples: int | None
    """The number of answers that all methods give in all passes at all temperatures (and loads)."""
    memory_bytes: int | None = None
    """The bytes of memory that the models and their caches take."""
    max_seconds: float | None = None
    """Seconds of the run if every answer has the most new tokens, and each token takes only the
    time to read the target's weights once from memory.
    """
    sizes: tuple[int | None, ...] = ()
    """The bytes of each file of prompts or checkpoint to be downloaded, or None if unknown."""
    missing: tuple[str, ...] = ()
    """Sentences about what the run lacks."""
    trees: tuple[str, ...] = ()
    """Lines that compare trees whose size depends on the target's size with the papers' trees."""

    @property
    def download_bytes(self) -> int:
        """Bytes to download, as far as sizes are known."""
        return sum(size for size in self.sizes if size is not None)

    @property
    def has_more_files(self) -> bool:
        """True if files of unknown size are to be downloaded, too."""
        return None in self.sizes


def preview(spec: RunSpec, bytes_per_s: Callable[[str], float]) -> Preview:
    """The preview of a run, with its samples, its memory, its time and its missing parts.

    `bytes_per_s` takes the name of a device, such as "cpu", and measures its memory's bandwidth.

    Raises:
        UserError: a name is unknown, or this machine does not have the device.
    """
    if spec.backend:  # the memory and weights of servers are not known here
        plan = make_plan(spec, is_offline=True)
        return Preview(num_methods=len(plan.setup.labels), num_samples=plan.num_records)
    spec = with_defaults(spec)
    device_name = pick_device(spec.device).name
    # The functions of the survey also note what is missing, and the sizes of files to download.
    survey = _Survey(
        spec=spec,
        card=spec.card,
        dtype=pick_dtype(spec.card, spec.dtype, device_name),
        stand_in=stand_in_of(spec.card) if spec.weights == "stand-in" else None,
    )
    need = survey.target_memory()  # bytes of the target's weights and cache; None if unknown
    # The target's number of parameters; None if unknown.
    num_parameters = memory.target_parameters(spec.card, survey.target)
    # `selected.missing` are the methods for which the model has no checkpoint at all.
    selected = select_methods(
        spec,
        spec.run_methods,
        resolve_weights=survey.resolve_weights,
        num_parameters=num_parameters,
    )
    survey.missing += [f"{method.label} has no checkpoint." for method in selected.missing]
    num_methods = len(selected.methods)
    num_samples = None  # answers of all methods in all passes at all temperatures
    num_answers = survey.num_answers()  # answers of one method in one pass at one temperature
    if num_answers is not None:
        # `repeats` is the number of passes; `with_defaults` has set it.
        num_samples_per_method = num_answers * len(spec.temperatures) * (spec.repeats or 1)
        num_samples = num_samples_per_method * num_methods
    memory_bytes = None
    max_seconds = None
    if need is not None:
        need = replace(need, draft_bytes=survey.draft_bytes)  # bytes of the methods' own weights
        memory_bytes = need.total_bytes
        survey.check_memory(need)  # adds a sentence to `missing` if the models do not fit
        if num_samples is not None:
            max_tokens = num_samples * new_tokens(spec)  # of all answers
            # A step of one token reads the target's weights (`weight_bytes`) once.
            max_seconds = max_tokens * need.weight_bytes / bytes_per_s(device_name)
    return Preview(
        num_methods=num_methods,
        num_samples=num_samples,
        memory_bytes=memory_bytes,
        max_seconds=max_seconds,
        sizes=tuple(survey.sizes),
        missing=tuple(survey.missing),  # sentences
        trees=tuple(_trees(selected.methods, num_parameters)),
    )


def _trees(methods: Sequence[RunMethod], num_parameters: float | None) -> Iterator[str]:
    """A line for each method whose tree depends on the target's size, with the paper's tree.

    An example is "eagle2: 20 nodes, 5 levels; paper: 50 nodes, 6 levels (as for 13B)". If the two
    trees are equal, the line has only the part "paper: ...". If the paper has no target of this
    size, the note in parentheses names the target whose tree is used instead.
    `num_parameters` is the target's number of parameters. If it is None, there are no lines.
    """
    for method in methods:
        options = method.options
        # for example "50 nodes, 6 levels", or "" if drafts do not depend on the target's size
        size_text = options.size_text()
        if not size_text or num_parameters is None:
            continue
        # Without options of the user, a method has the paper's tree for this target.
        paper_method = RunMethod(MethodChoice(method.method.name, {})).for_target(num_parameters)
        paper_size_text = paper_method.options.size_text()
        note = options.paper_note(num_parameters)  # such as "as for 13B"; empty if not needed
        line = f"paper: {paper_size_text}" + (f" ({note})" if note else "")
        if paper_size_text != size_text:
            line = f"{size_text}; {line}"
        yield f"{method.label}: {line}"


@dataclass(slots=True)
class _Survey:
    """Collects the needs of a run one after the other."""

    spec: RunSpec
    """The run, with its defaults."""
    card: ModelCard
    """The model."""
    dtype: Dtype
    """The dtype of all weights."""
    stand_in: StandIn | None
    """The stand-in of the model, or None if it has its own weights."""
    draft_bytes: int = 0
    """Bytes of memory for the methods' weights, as far as their sizes are known."""
    sizes: list[int | None] = field(default_factory=list)
    """The bytes of each file of prompts or checkpoint to be downloaded, or None if unknown."""
    missing: list[str] = field(default_factory=list)
    """Sentences about what the run lacks."""
    target: Path | Shape | None = None
    """The target's folder, or the shape of its stand-in. None if it is not on this machine."""

    def target_memory(self) -> memory.MemoryNeed | None:
        """The memory that the target takes with its cache and a prefill, or None if unknown.

        Sets `target` to the model's folder, or to the shape of its stand-in. If the model's files
        are to be downloaded, their bytes (None if unknown) are added to `sizes`. If a folder or a
        file of the user is damaged, a sentence is added to `missing`.
        """
        what = f"Model {self.card.name}"  # the name in errors
        # Estimates the memory for a shape, or for a checkpoint in a folder.
        estimate = partial(memory.estimate, dtype=self.dtype, context=CONTEXT, what=what)
        if self.stand_in:
            self.target = self.stand_in.shape
            return estimate(self.target)
        try:
            self.target = resolve_model(self.card, offline=True)
            return estimate(self.target)
        except CheckpointError as error:  # the files are not on this machine, or damaged
            if Path(self.card.repo).expanduser().exists():  # a damaged folder or GGUF file
                self.missing.append(error.message)
                return None
        shape = self.card.shape  # the model is to be downloaded; its shape gives the size
        if shape is None:
            self.sizes.append(None)  # unknown
            return None
        self.sizes.append(shape.num_parameters * STORED_BYTES)
        return estimate(shape)

    def resolve_weights(self, method: RunMethod) -> ResolvedWeights:
        """Find a method's weights on this machine.

        The result's `weights` are None if they are not on this machine, the method needs none, or
        the model has none for it. The weights' bytes in memory are added to `draft_bytes`. If the
        weights are missing or damaged, the bytes of their files are also appended to `sizes`:
        STORED_BYTES per parameter, or None if the number of parameters is unknown.

        Raises:
            UserError: the user named weights for a stand-in.
        """
        bytes_per_number = memory.BYTES[self.dtype]  # in memory
        try:
            resolved = find_checkpoint(self.card, method, is_offline=True, stand_in=self.stand_in)
            # A path, or the plan of a stand-in's weights with their number, or None.
            weights = resolved.weights
            if not isinstance(weights, Path | None):
                self.draft_bytes += weights.num_numbers * bytes_per_number
            elif weights and weights.is_dir():  # files, such as datastores, are not estimated
                self.draft_bytes += memory.folder_bytes(weights, self.dtype)
            return resolved
        except CheckpointError:  # the weights are not here, or damaged
            num_parameters = self._num_parameters(method)
            if num_parameters is None:
                self.sizes.append(None)  # unknown
            else:
                self.sizes.append(num_parameters * STORED_BYTES)
                self.draft_bytes += num_parameters * bytes_per_number
            return ResolvedWeights(weights=None)

    def _num_parameters(self, method: RunMethod) -> int | None:
        """The number of parameters of a method's weights, or None if the model's card lacks it."""
        source = weights_source(self.card, method)
        if source.given or not source.on_card:
            return None
        return memory.num_parameters(self.card, source.on_card)

    def num_answers(self) -> int | None:
        """The number of answers of a method in a pass at one temperature, or None if unknown.

        Prompts that are not on this machine count as having one turn. If the number is unknown, a
        sentence is added to `missing`.
        """
        total_answers = 0
        # `spec.prompts` is the source of the prompts, such as "paper".
        for task in plan_tasks(self.spec.tasks, self.spec.prompts):
            num_answers = self._num_answers_of(task)
            if num_answers is None:
                self.missing.append(f"The number of prompts of {task.name} is not known yet.")
                return None
            total_answers += num_answers
        return total_answers

    def _num_answers_of(self, task: Task) -> int | None:
        """The number of answers to a task's prompts, or None if unknown.

        If the prompts are not on this machine, a file of unknown size is added to `sizes`, and each
        prompt counts as one answer. The number of prompts is that of `--limit` or `--sample`, or
        the number in the paper if that is smaller.

        Raises:
            UserError: the prompts are on this machine, but cannot be read.
        """
        spec = self.spec
        try:
            (prompt_set,) = load_prompt_sets(  # a set per task
                [task],
                spec.prompts,
                num_prompts=spec.limit,
                is_spread=spec.limit_order == SPREAD,  # as in a run
                offline=True,
            )
            if spec.sample:  # the number of prompts to draw
                prompt_set = prompt_set.drawn(spec.sample, spec.seed)
            return sum(len(prompt.turns) for prompt in prompt_set.prompts)
        except UserError:  # the prompts are not here, or cannot be read
            if is_here(task, spec.prompts):  # a run refuses the prompts, too
                raise
            self.sizes.append(None)
        num_prompts = spec.limit or spec.sample  # prompts that the user asks for, or None
        # A task from a user's file has no card. `paper` is the file with the prompts that a paper
        # has published, or None.
        if task.card and spec.prompts == "paper" and task.card.paper:
            num_in_paper = task.card.paper.num_prompts
            return min(num_prompts, num_in_paper) if num_prompts else num_in_paper
        return num_prompts

    def check_memory(self, need: memory.MemoryNeed) -> None:
        """Add a sentence to `missing` if the models do not fit into the memory of the device."""
        what = f"Model {self.spec.model}"
        try:
            fitted(
                self.spec.device,
                lambda device: memory.check_need(need, self.dtype, device.name, what=what),
            )
        except TooLarge as error:
            self.missing.append(error.message)
