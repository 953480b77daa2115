"""From a spec to everything a run needs: names resolved and files checked, no weights loaded.

Whatever the user got wrong is said here, before a run folder exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.bench.checkpoints import check_same_vocabulary, identify, read_config
from specbench.bench.contestants import Choice, Contestant, choose, enter, find_checkpoint
from specbench.bench.hub import resolve_model
from specbench.bench.memory import check_fits
from specbench.bench.models import Dtype, ModelCard, find_model, pick_dtype
from specbench.bench.prompts import Prompt, PromptSet, load_prompt_sets, plan_tasks
from specbench.bench.spec import RunSpec
from specbench.bench.stand_ins import check_stand_in_fits, find_weights, stand_in_of
from specbench.bench.templates import ChatCodec, load_codec, load_tokenizer
from specbench.errors import CheckpointError, UserError

if TYPE_CHECKING:
    from specbench.zoo.stand_in.plan import StandIn

EMBEDDED_BUDGET, DEFAULT_BUDGET = 128, 512
"""New tokens where none are asked for: of `tiny` and stand-ins, and of real models (papers')."""


@dataclass(frozen=True, slots=True)
class Device:
    """Where a run computes, and why not on a GPU if it does not."""

    name: str
    why_no_gpu: str = ""


@dataclass(frozen=True, slots=True)
class Mode:
    """How steps are run: "eager" or "graph", and why not as graphs if they are not."""

    name: str
    why_no_graphs: str = ""


@dataclass(frozen=True, slots=True)
class Setup:
    """A model and its methods, ready to be loaded: every file there, the memory enough.

    A stand-in has the card of the model whose shape it takes, and tiny's folder as its `path`.
    """

    card: ModelCard
    path: Path
    device: Device
    dtype: Dtype
    codec: ChatCodec
    contestants: tuple[Contestant, ...]
    no_checkpoint: tuple[Contestant, ...]
    stand_in: StandIn | None = None
    mode: Mode = Mode("eager")

    def describe(self) -> dict[str, Any]:
        """What `run.json` keeps of the model."""
        shape = self.stand_in and {"shape": asdict(self.stand_in.shape)}
        return {
            "name": self.card.name,
            "label": self.card.title,
            "source": "embedded" if shape or self.card.is_embedded else self.card.repo,
            "dtype": self.dtype,
            "is_stand_in": self.stand_in is not None,
            "is_embedded": self.card.is_embedded,
            **(shape or {}),
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
            "execution": setup.mode.name,
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
    is_embedded = setup.card.is_embedded or setup.stand_in
    budget = EMBEDDED_BUDGET if is_embedded else DEFAULT_BUDGET
    return Plan(spec, setup, sets, spec.max_new_tokens or budget)


def make_setup(spec: RunSpec, *, is_offline: bool = False) -> Setup:
    """Resolve and check the model and the methods that `spec` names.

    Raises:
        UserError: a name, value or file that does not hold.
    """
    choices = choose(spec.methods)
    card = find_model(spec.model)
    device = pick_device(spec.device)
    mode = pick_mode(spec.execution, device)
    if spec.weights == "stand-in":
        return replace(_stand_in_setup(spec, card, device, choices), mode=mode)

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
    find = partial(find_checkpoint, card, is_offline=is_offline)
    contestants, missing = enter(spec, card, choices, find, absent)
    if absent:
        messages = dict.fromkeys(error.message for error in absent)
        raise CheckpointError("\n".join(messages), absent[0].hint) from absent[0]
    dtype = pick_dtype(card, spec.dtype, device.name, path)
    check_fits(path, dtype, device.name, what=f"Model {card.name}")
    codec = load_codec(path, card, spec.template)
    for contestant in contestants:
        weights = contestant.weights
        if isinstance(weights, Path) and (weights / "tokenizer_config.json").is_file():
            check_same_vocabulary(codec.tokenizer, load_tokenizer(weights), what=str(weights))
    return Setup(card, path, device, dtype, codec, contestants, missing, mode=mode)


def _stand_in_setup(
    spec: RunSpec, card: ModelCard, device: Device, choices: Sequence[Choice]
) -> Setup:
    """The setup of tiny, tokenizer and template included, in the shape of the card's model."""
    stand_in = stand_in_of(card)
    contestants, missing = enter(spec, card, choices, partial(find_weights, stand_in), [])
    folder = Path(card.repo) if Path(card.repo).is_dir() else None
    dtype = pick_dtype(card, spec.dtype, device.name, folder)
    check_stand_in_fits(stand_in, contestants, dtype, device.name)
    path = stand_in.target.folder
    codec = load_codec(path, find_model("tiny"), spec.template)
    return Setup(card, path, device, dtype, codec, contestants, missing, stand_in)


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


def pick_mode(requested: str, device: Device) -> Mode:
    """How steps are run under `--execution` on this device.

    Raises:
        UserError: graphs are asked for on a CPU.
    """
    if device.name != "cpu" and requested != "eager":
        return Mode("graph")
    if requested == "graph":
        raise UserError(
            "--execution graph needs a CUDA device, and this run is on the CPU.",
            "Leave it out, or use --device cuda.",
        )
    return Mode("eager", "" if requested == "eager" else "CUDA graphs need a CUDA device")


def _why_no_gpu(torch: Any) -> str:
    if torch.version.cuda is None and torch.version.hip is None:
        return f"this build of torch ({torch.__version__}) is for CPUs only"
    return "torch finds no CUDA device (driver missing, or none visible)"
