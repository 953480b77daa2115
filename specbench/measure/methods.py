"""The methods of a run: which ones run, with which options and weights, and under which name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specbench import registry
from specbench.errors import CheckpointError, UserError
from specbench.measure.spec import RunSpec
from specbench.models.cards import DraftWeights, ModelCard
from specbench.models.checkpoints import check_checkpoint, safetensors_header
from specbench.models.hub import resolve, resolve_weights
from specbench.settings.run_method import RunMethod, parse_methods
from specbench.types import BASELINE as BASELINE

if TYPE_CHECKING:
    from specbench.engine.drafter import Method
    from specbench.zoo.stand_in.blueprint import Blueprint
    from specbench.zoo.stand_in.plan import StandIn


class ResolvedWeights(NamedTuple):
    """A method's weights for a model. `exists` is False if the model has none for the method.

    `layers` is the option of that name, if the model's card has to say it.
    """

    weights: Path | Blueprint | None
    exists: bool = True
    layers: str = ""


class SelectedMethods(NamedTuple):
    """The methods that run, those without a checkpoint, and the errors of missing files.

    `broken` are sentences about plug-ins that would run if they could be imported.
    """

    methods: tuple[RunMethod, ...]
    missing: tuple[RunMethod, ...]
    broken: tuple[str, ...]
    errors: tuple[CheckpointError, ...]


def check_scopes(spec: RunSpec, methods: Sequence[RunMethod]) -> None:
    """Refuse a memory that would hold the answers at another temperature.

    Raises:
        UserError: a method with `scope=run` in a run with several temperatures.
    """
    for one in methods:
        if one.scope == "run" and len(spec.temperatures) > 1:
            raise UserError(
                f"{one.label} remembers earlier prompts, and --temperature "
                f"{','.join(f'{t:g}' for t in spec.temperatures)} completes each prompt "
                f"{len(spec.temperatures)} times: it would draft from its own earlier answers.",
                "Give one temperature per run, or leave scope=run out.",
            )


ResolveWeights = Callable[["Method", Any], ResolvedWeights]
"""From a method and its options to its weights."""


def select_methods(
    spec: RunSpec,
    card: ModelCard,
    named: Sequence[RunMethod],
    *,
    resolve_weights: ResolveWeights,
) -> SelectedMethods:
    """The methods of a run with their weights: those that are named, or the default ones.

    Args:
        spec: whether the baseline runs too, and the kind of weights.
        card: the model.
        named: the methods that the user named; empty for the default ones.
        resolve_weights: finds a method's weights; its CheckpointError is collected.

    Raises:
        UserError: no named method has weights, or two methods have one label.
    """
    found: list[RunMethod] = []
    missing: list[RunMethod] = []
    errors: list[CheckpointError] = []
    wanted, broken = _wanted(spec, named)
    for method in wanted:
        try:
            resolved = resolve_weights(method.method, method.options)
        except CheckpointError as error:
            errors.append(error)
            resolved = ResolvedWeights(None)
        options = method.options
        if resolved.layers and options.layers == "":
            options = replace(options, layers=resolved.layers)
        one = replace(method, options=options, weights=resolved.weights)
        (found if resolved.exists else missing).append(one)
    if named and missing and all(one.method.name == BASELINE for one in found):
        if spec.weights == "stand-in":
            raise UserError(
                f"{card.name} has no checkpoint for {', '.join(one.label for one in missing)}.",
                "A stand-in has the built-in heads, and the SpS draft of the model card.",
            )
        raise no_weights(card, [one.method.name for one in missing])
    check_labels([one.label for one in found])
    run = {one.method.name for one in found}  # `all,dflash:weights=DIR` names dflash twice
    missing = [one for one in missing if one.method.name not in run]
    told = tuple(missing) if named or card.is_known else ()
    return SelectedMethods(tuple(found), told, broken, tuple(errors))


def no_weights(card: ModelCard, names: Sequence[str]) -> UserError:
    """The error for methods whose weights the user has to name."""
    message = f"{card.name} has no checkpoint for {', '.join(names)}."
    if names[0] == "rest":
        make = f"specbench datastore build FILE.jsonl --model {card.name} --output FILE"
        message = message.replace("checkpoint", "datastore" if len(names) == 1 else "weights")
        return UserError(message, f"Make one: {make}\nThen: --method rest:datastore=FILE")
    hint = f"Name one: --method {names[0]}:weights=DIR_OR_HUB_ID."
    if card.is_known:
        hint += f" `specbench show {card.name}` lists what there is."
    return UserError(message, hint)


def check_labels(labels: Sequence[str]) -> None:
    """Raise UserError if two methods have one label, so that their records would be mixed."""
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(
                f"Two methods would both be called {label!r} in the tables.",
                "Give their checkpoint folders different names.",
            )


def _wanted(spec: RunSpec, named: Sequence[RunMethod]) -> tuple[list[RunMethod], tuple[str, ...]]:
    """The named methods, or the default ones, with the baseline first unless it is turned off.

    The second value has a sentence for each one that is left out because it is broken.
    """
    entries = () if named else registry.default_entries()
    broken = tuple(f"{one.name} was not run. {one.error}" for one in entries if one.error)
    names = [one.name for one in entries if not one.error]
    if not spec.is_baseline_run:
        names = [name for name in names if name != BASELINE]
    wanted = [*named, *parse_methods(names)]
    if spec.is_baseline_run and not any(str(one.asked) == BASELINE for one in wanted):
        wanted = [*parse_methods([BASELINE]), *wanted]
    return sorted(wanted, key=lambda one: one.method.name != BASELINE), broken


def find_datastore(given: str) -> Path | None:
    """The file that the option `datastore` names; None without a name.

    Raises:
        CheckpointError: the file is missing or is not a datastore.
    """
    if not given:
        return None
    path = Path(given).expanduser()
    hint = "specbench datastore build FILE.jsonl --model M --output F."
    if not path.is_file():
        raise CheckpointError(f"Datastore {given} is not a file.", f"Make one: {hint}")
    try:
        lacking = {"token_ids", "order"} - {*safetensors_header(path, "it")}
        problem = f"it has no {', '.join(sorted(lacking))}." if lacking else ""
    except CheckpointError as error:
        problem = error.message
    if problem:
        raise CheckpointError(f"{given} is not a datastore: {problem}", hint)
    return path


def find_checkpoint(
    card: ModelCard,
    method: Method,
    options: Any,
    *,
    is_offline: bool,
    stand_in: StandIn | None = None,
) -> ResolvedWeights:
    """A method's weights: the user's folder, the model card's checkpoint, or the stand-in's."""
    name = method.weights_with(options)
    if name is None:
        return ResolvedWeights(None)
    if datastore := find_datastore(options.datastore):
        return ResolvedWeights(datastore)
    given = options.weights
    if stand_in:
        if given:  # they would not match its shape
            raise UserError(
                f"--method {method.name}:weights={given} names weights, but a stand-in has its "
                "own.",
                "Leave out weights=, or leave out --weights stand-in.",
            )
        made = stand_in.drafters.get(name)
        return ResolvedWeights(made, exists=made is not None)
    if given:
        what = f"The {method.name} checkpoint"
        is_model = DraftWeights(name, given).is_model
        path = resolve(given, offline=is_offline, what=what, needs_tokenizer=is_model)
        check_checkpoint(path, what=what, needs_tokenizer=is_model)
        return ResolvedWeights(path, layers=card.layers.get(given, ""))
    weights = card.weights_of(method.name) or card.weights_of(name)
    if weights is None:
        return ResolvedWeights(None, exists=False)
    path = resolve_weights(card, weights, offline=is_offline)
    return ResolvedWeights(path, layers=card.layers.get(weights.repo, ""))
