"""Choose the methods of a serving engine for a run, with their options and draft weights."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from specbench.errors import CheckpointError, UserError, unknown_name
from specbench.measure.methods import BASELINE, check_labels
from specbench.measure.server.engine import WHOLE, Engine, EngineMethod, Launch, OptionValue
from specbench.measure.server.engine_version import (
    check_options,
    check_version,
    is_in_version,
)
from specbench.measure.server.served_settings import ServedSettings, SizedChoice
from specbench.measure.server.speculation_files import (
    file_facts,
    read_configuration,
    read_table,
)
from specbench.measure.spec import RunSpec
from specbench.measure.weights import no_weights
from specbench.models.cards import ModelCard
from specbench.models.hub import resolve, resolve_weights
from specbench.registry import GROUPS, MethodChoice, expand_groups
from specbench.settings.run_method import label_of
from specbench.types import Scope

NUM_TOKENS = "num_tokens"
"""The name of the option for the most tokens of a draft."""
SCOPE = "scope"
"""The name of the option for how long a method remembers tokens."""
WEIGHTS = "weights"
"""The name of the option for a folder of draft weights."""
_TABLE_KEY = "num_speculative_tokens_per_batch_size"
"""vLLM's name for a table of draft tokens by load. Its rows include both ends of a range."""
_KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
"""Words for the types of options."""


def engine_choices(spec: RunSpec, engine: Engine) -> list[MethodChoice]:
    """The methods that run, which are those named, or the engine's defaults. Vanilla is first.

    A choice is a method's name with the options that the user gave. `spec.choices` are the named
    methods, empty without any. `spec.is_baseline_run` is True if vanilla, the baseline, is
    to run even if it is not named. `engine.methods` has the methods of the engine, by name.

    Raises:
        UserError: the engine lacks a method or an option, or two methods have the same label.
    """
    choices = list(spec.choices)
    for choice in choices:
        _check_choice(choice, engine)  # raises if the engine lacks it
    if not choices:
        choices = [
            MethodChoice(name) for name, method in engine.methods.items() if method.is_default
        ]
    # Only vanilla without options is the baseline. As text, a choice with options is
    # `name:option=value`.
    if spec.is_baseline_run and not any(str(choice) == BASELINE for choice in choices):
        choices.insert(0, MethodChoice(BASELINE))
    check_labels([label_of(choice) for choice in choices])  # raises if two are the same
    return sorted(choices, key=lambda choice: choice.name != BASELINE)  # False comes first


def choices_in_version(
    choices: Sequence[MethodChoice], engine: Engine, version: str, *, is_named: bool
) -> list[MethodChoice]:
    """The methods that this version of the engine has, or all if the version is unknown ("").

    Raises:
        UserError: the version lacks a method that the user named (`is_named`), or its option.
    """
    if is_named:
        for choice in choices:
            check_version(engine, choice.name, version)
            check_options(engine, choice, version)
    return [choice for choice in choices if is_in_version(engine.methods[choice.name], version)]


def _check_choice(choice: MethodChoice, engine: Engine) -> None:
    """Raise UserError for a group of methods, or if an engine lacks a method or one of its options.

    `choice` is the method's name, with the texts that the user gave for its options (`given`, by
    option). `engine.methods` has the engine's methods by name.
    """
    if choice.name in GROUPS:  # a name for several methods
        members = [member.name for member in expand_groups([choice])]  # names of its methods
        shared = [name for name in members if name in engine.methods]
        raise UserError(
            f"The group {choice.name} holds specbench's own methods ({', '.join(members)}), and "
            f"{engine.title} runs its own: {', '.join(engine.methods)}.",
            f"Name the engine's methods: --method {','.join(shared)}. Without --method, its "
            "default methods run.",
        )
    if choice.name not in engine.methods:
        raise unknown_name("method", choice.name, engine.methods, of=engine.title)
    method = engine.methods[choice.name]
    allowed = [NUM_TOKENS]  # names of options; all methods have this one
    if method.weights:  # it reads draft weights
        allowed.append(WEIGHTS)
    if method.scopes:  # the user can choose how long the method remembers tokens
        allowed.append(SCOPE)
    allowed += method.options  # the engine's own options: types by name
    for option in choice.given:
        if option not in allowed:
            raise unknown_name("option", option, allowed, of=f"{engine.title}'s {choice.name}")


class Launches(NamedTuple):
    """The servers to start, and the methods that are left out."""

    servers: dict[str, Launch]
    """The servers by label."""
    missing: list[MethodChoice]
    """Methods without draft weights for the model."""
    refused: list[str]
    """Warnings about methods whose weights the engine cannot read."""


def make_launches(
    choices: Sequence[MethodChoice],
    engine: Engine,
    card: ModelCard,
    vanilla: Launch,
    settings: ServedSettings | None,
    *,
    is_named: bool,
    is_offline: bool,
) -> Launches:
    """The servers to start for a run's methods, by label, and the methods that are left out.

    Methods without draft weights are `missing`. `refused` has a warning about each method whose
    weights the engine cannot read.

    Args:
        choices: names of methods with the options that the user gave.
        engine: the engine, which has these methods.
        card: the model, with the repositories of its draft weights.
        vanilla: the server without speculation, from which the others are made.
        settings: draft sizes from a file, for methods whose size the user did not give; or None.
        is_named: True if the user named the methods. Then a method that cannot run is an error.
        is_offline: True to use no network.

    Raises:
        UserError: a named method cannot run, or its settings do not fit.
    """
    launches = Launches(servers={}, missing=[], refused=[])
    for choice in choices:
        method = engine.methods[choice.name]
        weights = _weights(card, choice, method, is_offline=is_offline)  # a folder, or None
        # `method.weights` is the name of the method whose weights it reads, or None.
        if method.weights and method.needs_weights and weights is None:
            launches.missing.append(choice)
            continue
        try:
            if weights is not None:
                engine.check_folder(weights, choice.name)  # raises if it cannot read them
        except CheckpointError as error:
            if is_named:
                raise
            launches.refused.append(error.message)
            continue
        # The method with its draft size from the file, and the file (None if it adds nothing).
        sized, source = settings.of(choice, method) if settings else SizedChoice(choice, None)
        engine_options = _engine_options(sized, method)
        num_tokens = num_tokens_of(sized, method)  # most tokens of a draft; 0: the method decides
        launches.servers[label_of(choice)] = replace(
            vanilla,
            method=choice.name,
            weights=weights,
            num_tokens=engine_options.most_tokens or num_tokens,
            scope=_scope(choice, method),  # how long it remembers tokens
            options=engine_options.options,
            facts=engine_options.facts,
            settings=source,
        )
    if is_named and launches.missing:
        raise no_weights(card, [choice.name for choice in launches.missing])
    return launches


def _weights(
    card: ModelCard, choice: MethodChoice, method: EngineMethod, *, is_offline: bool
) -> Path | None:
    """The folder of a method's draft weights, as the user gave it, or from the model card.

    None if the method reads no weights, or the card has none. Raises CheckpointError.

    Args:
        card: the model, with the repositories of draft weights by method.
        choice: the method's name, with the options that the user gave, by name.
        method: the method in the engine. `method.weights` is the name of the method whose weights
            it reads.
        is_offline: True to download nothing.
    """
    if method.weights is None:  # it reads none
        return None
    if given_weights := choice.given.get(WEIGHTS, ""):  # a path, or an id of the Hub
        what = f"The {choice.name} checkpoint"  # for messages
        return resolve(given_weights, offline=is_offline, what=what, needs_tokenizer=False)
    weights_on_card = card.weights_of(method.weights)  # their repository, or None
    if weights_on_card is None:
        return None
    return resolve_weights(card, weights_on_card, offline=is_offline)


def num_tokens_of(choice: MethodChoice, method: EngineMethod) -> int:
    """The most tokens of a draft, or 0 if the method decides.

    Raises:
        UserError: the text that the user gave is not a number of tokens.
    """
    number = choice.given.get(NUM_TOKENS, str(method.num_tokens))  # as text
    is_zero_allowed = method.num_tokens == 0  # the method may decide
    if not number.isdigit() or (int(number) == 0 and not is_zero_allowed):
        raise UserError(
            f"{choice}: {NUM_TOKENS} {number!r} is not a number of tokens.", "Give 1 or more."
        )
    return int(number)


class _EngineOptions(NamedTuple):
    """The engine's own options that the user gave for a method."""

    options: dict[str, Any]
    """The options in the form that the engine gets, by the engine's names."""
    facts: dict[str, Any]
    """The same options in the form of a run's header: a file has its name, hash and content."""
    most_tokens: int = 0
    """The largest number of draft tokens in a table; 0 without a table."""


def _engine_options(choice: MethodChoice, method: EngineMethod) -> _EngineOptions:
    """The engine's own options that the user gave for a method.

    An option may name a file, whose content the engine gets: a table of draft tokens by load, or
    for the method WHOLE the engine's whole configuration of speculation.

    Args:
        choice: the method's name, with the texts that the user gave for its options (`given`).
        method: the method in the engine, with the types of its own options by name.

    Raises:
        UserError: a text does not have the option's type, a file is wrong, or WHOLE has no file.
    """
    options: dict[str, Any] = {  # values in the options' types, by name
        name: _option_value(choice, name, kind)
        for name, kind in method.options.items()
        if name in choice.given
    }
    if choice.name == WHOLE:
        if "file" not in options:
            raise UserError(
                f"{choice} has no file.", f"Give one: {WHOLE}:file=FILE.json,name=NAME."
            )
        configuration = read_configuration(options["file"])  # settings by the engine's names
        facts = {"name": options.get("name", ""), **file_facts(options["file"], configuration)}
        return _EngineOptions(configuration, facts)
    table_file = options.pop("table", "")  # a path, or the rows themselves
    if not table_file:
        return _EngineOptions(options, options)
    rows = read_table(table_file)  # first and last number of requests at once, draft tokens
    return _EngineOptions(
        {**options, _TABLE_KEY: rows},
        {**options, "table": file_facts(table_file, rows)},
        most_tokens=max(num_tokens for _, _, num_tokens in rows),
    )


def _option_value(choice: MethodChoice, name: str, kind: type[OptionValue]) -> OptionValue:
    """The value that the user gave for an engine's option, in the option's type.

    `choice.given` has the user's texts by option. `name` is the option, and `kind` is its type.

    Raises:
        UserError: the text does not fit the type, or is a number that is not finite.
    """
    given_text = choice.given[name]
    if kind is bool and given_text in ("true", "false"):
        return given_text == "true"
    if kind is not bool:
        with suppress(ValueError):  # the text is not a number of this type
            setting = kind(given_text)
            if not isinstance(setting, float) or math.isfinite(setting):
                return setting
    raise UserError(f"{choice}: {name} {given_text!r} is not {_KINDS[kind]}.", "Give one.")


def _scope(choice: MethodChoice, method: EngineMethod) -> Scope:
    """The scope of a method's memory of tokens: the user's, or else the engine's default."""
    scopes: tuple[Scope, ...] = method.scopes or ("request",)
    requested = choice.given.get(SCOPE, scopes[0])
    for scope in scopes:
        if scope == requested:
            return scope
    raise unknown_name("scope", requested, method.scopes, of=choice.name)
