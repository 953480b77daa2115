"""From a spec to everything a run needs: names resolved and files checked, no weights loaded.

Whatever the user got wrong is said here, before a run folder exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench import registry
from specbench.bench.checkpoints import (
    check_checkpoint,
    check_same_vocabulary,
    identify,
    read_config,
)
from specbench.bench.hub import resolve, resolve_drafter, resolve_model
from specbench.bench.memory import check_fits
from specbench.bench.models import Dtype, ModelCard, find_model, pick_dtype
from specbench.bench.prompts import Prompt, PromptSet, load_prompt_sets, plan_tasks
from specbench.bench.spec import RunSpec
from specbench.bench.templates import ChatCodec, load_codec, load_tokenizer
from specbench.errors import CheckpointError, UserError

if TYPE_CHECKING:
    from specbench.engine.drafter import Method

BASELINE = "vanilla"
EMBEDDED_BUDGET, DEFAULT_BUDGET = 128, 512
"""New tokens where none are asked for: for `tiny`, and for real models (the papers' in effect)."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A method with its options and checkpoint. `label` is how records and tables call it."""

    label: str
    method: Method
    options: Any
    weights: Path | None = None

    def describe(self) -> dict[str, Any]:
        """What `run.json` keeps of it."""
        return {
            "name": self.method.name,
            "title": self.method.title,
            "options": asdict(self.options),
            "is_lossless": self.method.is_lossless_with(self.options),
            "weights": identify(self.weights).describe() if self.weights else None,
        }


@dataclass(frozen=True, slots=True)
class Device:
    """Where a run computes, and why not on a GPU if it does not."""

    name: str
    why_no_gpu: str = ""


@dataclass(frozen=True, slots=True)
class Setup:
    """A model and its methods, ready to be loaded: every file there, the memory enough."""

    card: ModelCard
    path: Path
    device: Device
    dtype: Dtype
    codec: ChatCodec
    contestants: tuple[Contestant, ...]
    no_checkpoint: tuple[Contestant, ...]

    def describe(self) -> dict[str, Any]:
        """What `run.json` keeps of the model."""
        return {
            "name": self.card.name,
            "label": self.card.title,
            "source": "embedded" if self.card.is_embedded else self.card.repo,
            "dtype": self.dtype,
            "is_stand_in": False,
            "is_embedded": self.card.is_embedded,
            **identify(self.path).describe(),
        }


@dataclass(frozen=True, slots=True)
class Plan:
    """A run that can start."""

    spec: RunSpec
    setup: Setup
    prompt_sets: tuple[PromptSet, ...]
    max_new_tokens: int

    @property
    def prompts(self) -> Mapping[str, Sequence[Prompt]]:
        """Task name -> its prompts, in column order."""
        return {one.task.name: one.prompts for one in self.prompt_sets}

    def describe(self) -> dict[str, Any]:
        """The part of `run.json` that this plan decides."""
        setup = self.setup
        effective = {
            **self.spec.to_json(),
            "methods": [c.label for c in setup.contestants],
            "tasks": [one.task.name for one in self.prompt_sets],
            "device": setup.device.name,
            "dtype": setup.dtype,
            "max_new_tokens": self.max_new_tokens,
            "template": setup.codec.template.name,
        }
        return {
            "effective": effective,
            "model": setup.describe(),
            "methods": {c.label: c.describe() for c in setup.contestants + setup.no_checkpoint},
            "no_checkpoint": [c.label for c in setup.no_checkpoint],
            "columns": {one.task.name: one.task.title for one in self.prompt_sets},
            "prompts": [one.describe() for one in self.prompt_sets],
        }


def make_plan(spec: RunSpec, *, is_offline: bool = False) -> Plan:
    """Resolve and check everything that `spec` names, the cheap things first.

    Raises:
        UserError: a name, value or file that does not hold.
    """
    tasks = plan_tasks(spec.tasks, spec.prompts)
    sets = load_prompt_sets(tasks, spec.prompts, limit=spec.limit, offline=is_offline)
    setup = make_setup(spec, is_offline=is_offline)
    _check_lengths(setup, sets)
    budget = EMBEDDED_BUDGET if setup.card.is_embedded else DEFAULT_BUDGET
    return Plan(spec, setup, sets, spec.max_new_tokens or budget)


def make_setup(spec: RunSpec, *, is_offline: bool = False) -> Setup:
    """Resolve and check the model and the methods that `spec` names.

    Raises:
        UserError: a name, value or file that does not hold.
    """
    choices = [
        (choice, method, registry.make_options(method, choice.given))
        for choice in registry.parse_choices(spec.methods)
        for method in [registry.get(choice.name)]
    ]
    card = find_model(spec.model)
    device = pick_device(spec.device)

    def check_shape() -> None:
        if card.shape is not None:
            dtype = pick_dtype(card, spec.dtype, device.name)
            check_fits(card.shape, dtype, device.name, what=f"Model {card.name}")

    absent: list[CheckpointError] = []
    path = Path()
    try:
        path = resolve_model(card, offline=is_offline, before_download=check_shape)
    except CheckpointError as error:
        absent.append(error)
    contestants, missing = _enter(spec, card, choices, is_offline, absent)
    if absent:
        messages = dict.fromkeys(error.message for error in absent)
        raise CheckpointError("\n".join(messages), absent[0].hint) from absent[0]
    dtype = pick_dtype(card, spec.dtype, device.name, path)
    check_fits(path, dtype, device.name, what=f"Model {card.name}")
    codec = load_codec(path, card, spec.template)
    for contestant in contestants:
        if contestant.weights and (contestant.weights / "tokenizer_config.json").is_file():
            check_same_vocabulary(
                codec.tokenizer, load_tokenizer(contestant.weights), what=str(contestant.weights)
            )
    return Setup(card, path, device, dtype, codec, contestants, missing)


def _check_lengths(setup: Setup, sets: Sequence[PromptSet]) -> None:
    """Refuse a prompt whose first turn fills the model's context."""
    config = read_config(setup.path, setup.card.name)
    context = (config.get("text_config") or config).get("max_position_embeddings")
    if not isinstance(context, int):
        return  # loading the model will say so
    for prompt_set in sets:
        for prompt in prompt_set.prompts:
            length = len(setup.codec.render([{"role": "user", "content": prompt.turns[0]}]))
            if length >= context:
                raise UserError(
                    f"Prompt {prompt.sample_id} has {length} tokens, which fills the context of "
                    f"{setup.card.name} ({context} tokens).",
                    "Leave it out (--limit, --dataset), or use a model with a longer context.",
                )


def pick_device(requested: str) -> Device:
    """The device that `--device` means on this machine.

    Raises:
        UserError: a GPU is asked for that is not there.
    """
    import torch

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    why = "" if count else _why_no_gpu(torch)
    if requested == "cpu" or (requested == "auto" and not count):
        return Device("cpu", why)
    index = requested.partition(":")[2] or "0"
    if not index.isdigit() or int(index) >= count:
        there = f"{count} GPU(s) are there" if count else why
        raise UserError(
            f"--device {requested} cannot be used: {there}.",
            "Use --device cpu, or see `specbench doctor`.",
        )
    return Device(f"cuda:{index}")


def _why_no_gpu(torch: Any) -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this build of torch ({torch.__version__}) is for CPUs only"
    return "torch finds no CUDA device (driver missing, or none visible)"


def _enter(
    spec: RunSpec,
    card: ModelCard,
    choices: Sequence[tuple[registry.MethodChoice, Method, Any]],
    is_offline: bool,
    absent: list[CheckpointError],
) -> tuple[tuple[Contestant, ...], tuple[Contestant, ...]]:
    """The methods that run, the baseline first, and those that have no checkpoint.

    What a checkpoint that exists lacks on this machine is added to `absent`.
    """
    asked = list(choices)
    if not asked:
        methods = [registry.get(entry.name) for entry in registry.entries() if not entry.error]
        asked = [(registry.MethodChoice(m.name), m, m.options()) for m in methods]
    if spec.is_baseline_run and not any(str(choice) == BASELINE for choice, _, _ in asked):
        baseline = registry.get(BASELINE)
        asked.insert(0, (registry.MethodChoice(BASELINE), baseline, baseline.options()))
    asked.sort(key=lambda item: item[1].name != BASELINE)
    if not spec.is_baseline_run and not choices:
        asked = [item for item in asked if item[1].name != BASELINE]
    entered, missing = [], []
    for choice, method, options in asked:
        try:
            weights, is_there = _weights(card, method, options, is_offline)
        except CheckpointError as error:
            absent.append(error)
            weights, is_there = None, True
        if is_there:
            entered.append(Contestant(_label(choice), method, options, weights))
        else:
            missing.append(Contestant(_label(choice), method, options))
    if choices and missing and all(c.method.name == BASELINE for c in entered):
        names = [c.method.name for c in missing]
        raise UserError(
            f"{card.name} has no checkpoint for {', '.join(names)}.",
            f"Name one: --method {names[0]}:weights=DIR_OR_HUB_ID; `specbench show {card.name}` "
            "lists what there is.",
        )
    labels = [c.label for c in entered]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(
                f"Two methods would both be called {label!r} in the tables.",
                "Give their checkpoint folders different names.",
            )
    return tuple(entered), tuple(missing if choices or card.is_known else ())


def _label(choice: registry.MethodChoice) -> str:
    """How records and tables call a choice: a checkpoint by its last name, not its whole path."""
    given = {
        key: Path(value).name if key == "weights" else value for key, value in choice.given.items()
    }
    return str(registry.MethodChoice(choice.name, given))


def _weights(
    card: ModelCard, method: Method, options: Any, is_offline: bool
) -> tuple[Path | None, bool]:
    """A method's checkpoint folder, and whether the method can run on this model at all."""
    if method.weights is None:
        return None, True
    if given := getattr(options, "weights", ""):
        what = f"The {method.name} checkpoint"
        is_model = method.weights == "sps"
        path = resolve(given, offline=is_offline, what=what, needs_tokenizer=is_model)
        check_checkpoint(path, what=what, needs_tokenizer=is_model)
        return path, True
    drafter = card.drafter(method.name) or card.drafter(method.weights)
    if drafter is None:
        return None, False
    return resolve_drafter(card, drafter, offline=is_offline), True
