"""The methods of a run: which ones enter, with which options and weights, and under which name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench import registry
from specbench.bench.checkpoints import check_checkpoint, identify
from specbench.bench.hub import resolve, resolve_drafter
from specbench.bench.models import ModelCard
from specbench.bench.spec import RunSpec
from specbench.errors import CheckpointError, UserError

if TYPE_CHECKING:
    from specbench.engine.drafter import Method
    from specbench.zoo.stand_in.blueprint import Blueprint

BASELINE = "vanilla"


class Found(NamedTuple):
    """A method's weights on a model, and whether the method can run on it at all."""

    weights: Path | Blueprint | None
    is_there: bool = True


Finder = Callable[["Method", Any], Found]
"""From a method and its options to its weights."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A method with its options and checkpoint. `label` is how records and tables call it."""

    label: str
    method: Method
    options: Any
    weights: Path | Blueprint | None = None

    def describe(self) -> dict[str, Any]:
        """What `run.json` keeps of it."""
        return {
            "name": self.method.name,
            "title": self.method.title,
            "options": asdict(self.options),
            "is_lossless": self.method.is_lossless_with(self.options),
            "weights": self._weights(),
        }

    def _weights(self) -> dict[str, Any] | None:
        if self.weights is None or isinstance(self.weights, Path):
            return identify(self.weights).describe() if self.weights else None
        return self.weights.describe() | identify(self.weights.folder).describe()


@dataclass(frozen=True, slots=True)
class Choice:
    """A method as the user asked for it."""

    asked: registry.MethodChoice
    method: Method
    options: Any

    @property
    def label(self) -> str:
        """How records and tables call it: a checkpoint by its last name, not its whole path."""
        given = {
            key: Path(value).name if key == "weights" else value
            for key, value in self.asked.given.items()
        }
        return str(registry.MethodChoice(self.asked.name, given))


def choose(spellings: Sequence[str]) -> list[Choice]:
    """The methods that the user named, their options read."""
    return [
        Choice(asked, method, registry.make_options(method, asked.given))
        for asked in registry.parse_choices(spellings)
        for method in [registry.get(asked.name)]
    ]


def enter(
    spec: RunSpec,
    card: ModelCard,
    choices: Sequence[Choice],
    find: Finder,
    absent: list[CheckpointError],
) -> tuple[tuple[Contestant, ...], tuple[Contestant, ...]]:
    """The methods that run, the baseline first, and those that have no checkpoint.

    What a checkpoint that exists lacks on this machine is added to `absent`.
    """
    entered: list[Contestant] = []
    missing: list[Contestant] = []
    for choice in _entrants(spec, choices):
        try:
            found = find(choice.method, choice.options)
        except CheckpointError as error:
            absent.append(error)
            found = Found(None)
        contestant = Contestant(choice.label, choice.method, choice.options, found.weights)
        (entered if found.is_there else missing).append(contestant)
    if choices and missing and all(c.method.name == BASELINE for c in entered):
        names = [c.method.name for c in missing]
        if spec.weights == "stand-in":
            hint = "A stand-in has the built-in heads, and the SpS draft of the model card."
        else:
            hint = f"Name one: --method {names[0]}:weights=DIR_OR_HUB_ID; `specbench show "
            hint += f"{card.name}` lists what there is."
        raise UserError(f"{card.name} has no checkpoint for {', '.join(names)}.", hint)
    labels = [c.label for c in entered]
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(
                f"Two methods would both be called {label!r} in the tables.",
                "Give their checkpoint folders different names.",
            )
    return tuple(entered), tuple(missing if choices or card.is_known else ())


def _entrants(spec: RunSpec, choices: Sequence[Choice]) -> list[Choice]:
    """What is asked for, or every method, and the baseline unless it is turned off."""
    asked = list(choices)
    if not asked:
        methods = [registry.get(entry.name) for entry in registry.entries() if not entry.error]
        asked = [Choice(registry.MethodChoice(m.name), m, m.options()) for m in methods]
    if spec.is_baseline_run and not any(str(choice.asked) == BASELINE for choice in asked):
        baseline = registry.get(BASELINE)
        asked.insert(0, Choice(registry.MethodChoice(BASELINE), baseline, baseline.options()))
    asked.sort(key=lambda choice: choice.method.name != BASELINE)
    if not spec.is_baseline_run and not choices:
        asked = [choice for choice in asked if choice.method.name != BASELINE]
    return asked


def find_checkpoint(card: ModelCard, method: Method, options: Any, *, is_offline: bool) -> Found:
    """A method's checkpoint folder: the one that is given, or the model card's."""
    if method.weights is None:
        return Found(None)
    if given := getattr(options, "weights", ""):
        what = f"The {method.name} checkpoint"
        is_model = method.weights == "sps"
        path = resolve(given, offline=is_offline, what=what, needs_tokenizer=is_model)
        check_checkpoint(path, what=what, needs_tokenizer=is_model)
        return Found(path)
    drafter = card.drafter(method.name) or card.drafter(method.weights)
    if drafter is None:
        return Found(None, is_there=False)
    return Found(resolve_drafter(card, drafter, offline=is_offline))
