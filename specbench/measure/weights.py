"""Find out who names a method's weights for a model, and where they are.

A `WeightsSource` can be made without importing the method, so files on this machine are checked
before torch is loaded. `find_checkpoint` then finds or downloads the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from specbench.errors import CheckpointError, UserError
from specbench.methods import described
from specbench.models.cards import DraftWeights, ModelCard
from specbench.models.checkpoints import check_checkpoint, config_if_readable
from specbench.models.hub import local_folder, resolve, resolve_weights
from specbench.models.other_checkpoints import other_head
from specbench.models.tensor_header import safetensors_header
from specbench.registry import MethodChoice, option_names

if TYPE_CHECKING:
    from specbench.settings.run_method import RunMethod
    from specbench.zoo.stand_in.blueprint import Blueprint
    from specbench.zoo.stand_in.plan import StandIn


class ResolvedWeights(NamedTuple):
    """The weights of a method for a model."""

    weights: Path | Blueprint | None
    """The path of a checkpoint or of a datastore, or the plan of a stand-in's weights. None if the
    method needs none, or if none was found.
    """
    exists: bool = True
    """False if the model has no weights for the method."""
    layers: str = ""
    """The value of the method's option `layers`, if the model's card has one for these weights."""


class WeightsSource(NamedTuple):
    """The sources that the user and the model's card name for a method's weights."""

    method: str
    """The method's name."""
    checkpoint: str | None
    """The name that model cards give to the checkpoint it needs, or None if it needs none."""
    given: str | None
    """The folder or Hub id that the user gave; None without one."""
    datastore: str
    """The file that the user gave in place of weights; empty without one."""
    on_card: DraftWeights | None
    """The checkpoint on the model's card; None without one."""

    @property
    def what(self) -> str:
        """The name of the checkpoint in messages."""
        return f"The {self.method} checkpoint"

    @property
    def is_missing(self) -> bool:
        """True if the method needs weights, and neither the user nor the card names any."""
        is_named = self.given is not None or self.datastore or self.on_card
        return self.checkpoint is not None and not is_named

    @property
    def needs_tokenizer(self) -> bool:
        """True if the given weights belong to a language model, not to a head."""
        return DraftWeights(self.checkpoint or self.method, self.given or "").is_model

    def check(self, folder: Path) -> None:
        """Check the folder with the given weights.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        check_checkpoint(
            folder,
            what=self.what,
            needs_tokenizer=self.needs_tokenizer,
            kind=self.checkpoint or "",
        )

    def check_local(self) -> None:
        """Check those of the given files that are on this machine. Nothing is downloaded.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        if self.given is not None and (folder := local_folder(self.given, what=self.what)):
            # If the folder has a head for another method, what it is, in words; else empty.
            other_kind = other_head(config_if_readable(folder), self.checkpoint or self.method)
            if other_kind:
                raise CheckpointError(
                    f"{self.what}: {folder} holds {other_kind}, which {self.method} cannot use.",
                    f"Give the folder of a checkpoint for {self.method}.",
                )
            self.check(folder)
        find_datastore(self.datastore)


def declared_source(card: ModelCard, asked: MethodChoice) -> WeightsSource:
    """The source of a method's weights, made from its description and options without an import."""
    about = described().get(asked.name)
    return WeightsSource(
        method=asked.name,
        checkpoint=(about.weights or None) if about else None,
        given=asked.given.get("weights"),
        datastore=asked.given.get("datastore", ""),
        on_card=card.weights_of(asked.name),
    )


def weights_source(card: ModelCard, method: RunMethod) -> WeightsSource:
    """The source of a method's weights. The options may name another method's checkpoint."""
    name = method.method.name
    checkpoint = method.checkpoint  # the name of the checkpoint that it needs; None for none
    on_card = card.weights_of(name)
    if on_card is None and checkpoint:
        on_card = card.weights_of(checkpoint)
    return WeightsSource(
        method=name,
        checkpoint=checkpoint,
        given=method.options.weights or None,
        datastore=method.options.datastore,
        on_card=on_card,
    )


def find_checkpoint(
    card: ModelCard, method: RunMethod, *, is_offline: bool, stand_in: StandIn | None = None
) -> ResolvedWeights:
    """Find a method's weights for a model: the user's, the card's, or those of a stand-in.

    The first of these is taken: a datastore that the user named, the weights of a stand-in, a
    folder or Hub id that the user named, the checkpoint on the card. If the method needs weights
    but has none, the result's `exists` is False. `stand_in` has the plans of weights in the
    shapes of a real model and its drafters; None if the target has real weights. `method` has the
    user's options. With `is_offline`, nothing is downloaded.

    Raises:
        UserError: the user named weights for a stand-in.
        CheckpointError: a file is missing or damaged.
    """
    source = weights_source(card, method)  # what the user and the card name
    if source.checkpoint is None:  # the method needs no weights
        return ResolvedWeights(weights=None)
    if datastore := find_datastore(source.datastore):  # the path of the file
        return ResolvedWeights(datastore)
    if stand_in:
        return _weights_of_stand_in(source, source.checkpoint, stand_in)
    if source.given:
        folder = resolve(  # the folder on this machine, downloaded if `given` is a Hub id
            source.given,
            offline=is_offline,
            what=source.what,  # the checkpoint's name in messages
            needs_tokenizer=source.needs_tokenizer,  # True for a language model, not for a head
        )
        source.check(folder)
        # `card.layers` has values of the option `layers` by folder or Hub id, for the few heads
        # whose config does not say which layers of the target they read.
        return ResolvedWeights(folder, layers=card.layers.get(source.given, ""))
    if source.on_card is None:
        return ResolvedWeights(weights=None, exists=False)
    folder = resolve_weights(card, source.on_card, offline=is_offline)
    return ResolvedWeights(folder, layers=card.layers.get(source.on_card.repo, ""))


def _weights_of_stand_in(
    source: WeightsSource, checkpoint: str, stand_in: StandIn
) -> ResolvedWeights:
    """A stand-in's weights for a method. `checkpoint` is their name on model cards."""
    if source.given:  # they would not match its shape
        raise UserError(
            f"--method {source.method}:weights={source.given} names weights, but a stand-in has "
            "its own.",
            "Leave out weights=, or leave out --weights stand-in.",
        )
    blueprint = stand_in.drafters.get(checkpoint)
    return ResolvedWeights(blueprint, exists=blueprint is not None)


def find_datastore(given: str) -> Path | None:
    """The file that the option `datastore` names, or None if its text `given` is empty.

    A datastore is a safetensors file with the token ids of texts.

    Raises:
        CheckpointError: the file is missing or is not a datastore.
    """
    if not given:
        return None
    path = Path(given).expanduser()
    build_command = "specbench datastore build FILE.jsonl --model M --output F."
    if not path.is_file():
        raise CheckpointError(f"Datastore {given} is not a file.", f"Make one: {build_command}")
    try:
        tensor_names = {*safetensors_header(path, "it")}  # messages call the file "it"
        # A datastore has the token ids of its texts, and the order of their suffixes when sorted.
        missing_tensors = {"token_ids", "order"} - tensor_names
        problem = f"it has no {', '.join(sorted(missing_tensors))}." if missing_tensors else ""
    except CheckpointError as error:
        problem = error.message
    if problem:
        raise CheckpointError(f"{given} is not a datastore: {problem}", build_command)
    return path


def no_weights(card: ModelCard, methods: Sequence[str]) -> UserError:
    """The error that asks the user to name the weights of methods.

    `card` is the model's card, `methods` are the names of the methods. The hint shows how to name
    the weights, or how to make and name a datastore, for the first of these methods.
    """
    names = ", ".join(methods)
    options_of_first = option_names(methods[0])
    # A method that reads only a datastore.
    if "datastore" in options_of_first and "weights" not in options_of_first:
        command = f"specbench datastore build FILE.jsonl --model {card.name} --output FILE"
        # If there are several methods, the others may need weights instead.
        noun = "datastore" if len(methods) == 1 else "weights"
        usage = f"--method {methods[0]}:datastore=FILE"
        return UserError(
            f"{card.name} has no {noun} for {names}.", f"Make one: {command}\nThen: {usage}"
        )
    hint = f"Name one: --method {methods[0]}:weights=DIR_OR_HUB_ID."
    if card.is_known:  # the card is one of specbench's, and was not made for a user's model
        hint += f" `specbench show {card.name}` lists what there is."
    return UserError(f"{card.name} has no checkpoint for {names}.", hint)
