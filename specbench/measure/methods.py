"""Choose the methods of a run, and find their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from specbench import registry
from specbench.errors import CheckpointError, UserError
from specbench.measure.spec import RunSpec
from specbench.measure.weights import ResolvedWeights, declared_source, no_weights
from specbench.models.cards import ModelCard
from specbench.registry import MethodChoice
from specbench.settings.run_method import RunMethod
from specbench.types import BASELINE as BASELINE


class SelectedMethods(NamedTuple):
    """The methods of a run that can run, and those that cannot."""

    methods: tuple[RunMethod, ...]
    """Methods that run, with their weights."""
    missing: tuple[RunMethod, ...]
    """Methods without a checkpoint for the model."""
    broken: tuple[str, ...]
    """Warnings about plug-ins that would run if they could be imported."""
    errors: tuple[CheckpointError, ...]
    """Errors in the files of `methods`."""


ResolveWeights = Callable[[RunMethod], ResolvedWeights]
"""Finds the weights of a method. In the result, `weights` is a path, or a plan of a stand-in's
weights. It is None if the method needs none, if the model has none for the method (`exists` is
False), or if a preview does not find them on this machine. Raises CheckpointError if a file is
missing or damaged.
"""


def check_choices(choices: Sequence[MethodChoice]) -> None:
    """Check the names and options of methods and groups, before torch is imported.

    Raises:
        UserError: an unknown name or option, or a wrong value.
    """
    for choice in choices:
        if choice.name in registry.GROUPS:
            registry.check_group(choice)
        else:
            registry.check_choice(choice)


def check_sources(card: ModelCard, choices: Sequence[MethodChoice]) -> None:
    """Check the local files of methods, before torch is imported.

    `card` is the model's card; `choices` are the methods that the user named, with their options.
    If the user named a group, such as `all`, its members are not checked.

    Raises:
        UserError: all named methods except vanilla lack weights, or a file is missing or damaged.
    """
    # The weights that the user, or else the model's card, names for a method. Vanilla needs none.
    sources = [declared_source(card, choice) for choice in choices if choice.name != BASELINE]
    for source in sources:
        source.check_local()  # raises for files that are missing or damaged
    # Names of the methods that need weights, where neither the user nor the card names any.
    missing = [source.method for source in sources if source.is_missing]
    if missing and len(missing) == len(sources):
        raise no_weights(card, missing)


def check_scopes(spec: RunSpec, methods: Sequence[RunMethod]) -> None:
    """Refuse a method that would draft from its own answers at other temperatures.

    Raises:
        UserError: a method with `scope=run` in a run with several temperatures.
    """
    num_temperatures = len(spec.temperatures)
    for method in methods:
        if method.scope == "run" and num_temperatures > 1:
            temperatures = ",".join(f"{temperature:g}" for temperature in spec.temperatures)
            raise UserError(
                f"{method.label} remembers earlier prompts, and --temperature {temperatures} "
                f"completes each prompt {num_temperatures} times: it would draft from its own "
                "earlier answers.",
                "Give one temperature per run, or leave scope=run out.",
            )


def select_methods(
    spec: RunSpec,
    named: Sequence[RunMethod],
    *,
    resolve_weights: ResolveWeights,
    num_parameters: float | None = None,
) -> SelectedMethods:
    """Find the weights of a run's methods, which are the named methods or else the defaults.

    A RunMethod is a method with its options. Its `label` is the name in tables, and
    `method.method.name` is the name without options.

    Args:
        spec: has the model, the kind of weights ("stand-in" for generated weights), and
            `is_baseline_run`, which is True if vanilla runs too.
        named: the methods that the user named; empty for the default methods.
        resolve_weights: finds a method's weights. A CheckpointError is collected in `errors`.
        num_parameters: the target's number of parameters, for options that depend on it; None if
            unknown.

    Raises:
        UserError: no named method has weights, or two methods have the same label.
    """
    card = spec.card
    running: list[RunMethod] = []
    missing: list[RunMethod] = []  # methods without weights
    errors: list[CheckpointError] = []
    wanted, broken = _wanted(spec, named)  # methods, and sentences about broken methods
    for method in wanted:
        try:
            resolved = resolve_weights(method)
        except CheckpointError as error:
            errors.append(error)  # raised by the caller; until then the method counts as running
            resolved = ResolvedWeights(weights=None)  # `exists` is True by default
        # The model's card may say which layers of the target the method reads. The user's
        # option `layers` takes precedence; it is "" if it was not given.
        if resolved.layers and method.options.layers == "":
            method = method.with_options(method.options.replaced(layers=resolved.layers))
        if num_parameters is not None:
            # The paper's options for this size; options that the user gave stay.
            method = method.for_target(num_parameters)
        method = replace(method, weights=resolved.weights)  # may be None (see `ResolveWeights`)
        # `exists` is False if the method needs weights, and the model has none for it.
        (running if resolved.exists else missing).append(method)
    # None of the methods that the user named can run, except vanilla: nothing is left to compare.
    if named and missing and all(method.method.name == BASELINE for method in running):
        if spec.weights == "stand-in":
            raise UserError(
                f"{card.name} has no checkpoint for "
                f"{', '.join(method.label for method in missing)}.",
                "A stand-in has the built-in heads, and the model card's draft model for SpS.",
            )
        raise no_weights(card, [method.method.name for method in missing])
    check_labels([method.label for method in running])  # raises for two equal labels
    if not named and not card.is_known:  # a user's own model, whose card lists no checkpoints
        missing = []
    # `all,dflash:weights=DIR` names dflash twice: it runs with DIR, so it is not missing.
    running_names = {method.method.name for method in running}
    missing = [method for method in missing if method.method.name not in running_names]
    return SelectedMethods(tuple(running), tuple(missing), broken, tuple(errors))


def check_labels(labels: Sequence[str]) -> None:
    """Raise UserError if two methods have the same label: their records would be mixed."""
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(
                f"Two methods would both be called {label!r} in the tables.",
                "Name it once, or give checkpoint folders different names.",
            )


class _Wanted(NamedTuple):
    """The methods that a run should have, if they have weights."""

    methods: list[RunMethod]
    broken: tuple[str, ...]
    """A sentence about each default method that is left out because it is broken."""


def _wanted(spec: RunSpec, named: Sequence[RunMethod]) -> _Wanted:
    """The named methods, or the default methods if none is named. If vanilla runs, it is first.

    `spec.is_baseline_run` is False if the user turned vanilla off. A method's `asked` is its name
    with the given options, as in `pld:num_tokens=5`. Only default methods can be `broken`.

    Raises:
        UserError: a named method cannot be imported.
    """
    methods = list(named)
    broken: tuple[str, ...] = ()
    if not named:
        # The default methods as they are registered. `error` is the reason why a method cannot be
        # imported; empty if it can.
        entries = registry.default_entries()
        broken = tuple(
            f"{entry.name} was not run. {entry.error}" for entry in entries if entry.error
        )
        names = [entry.name for entry in entries if not entry.error]
        if not spec.is_baseline_run:
            names = [name for name in names if name != BASELINE]
        methods = [_entered(name) for name in names]
    # Vanilla without options is the baseline. With options it is a method like the others.
    if spec.is_baseline_run and not any(str(method.asked) == BASELINE for method in methods):
        methods = [_entered(BASELINE), *methods]
    methods.sort(key=lambda method: method.method.name != BASELINE)  # vanilla first
    return _Wanted(methods, broken)


def _entered(name: str) -> RunMethod:
    """A registered method with its default options."""
    return RunMethod(MethodChoice(name)).load()
