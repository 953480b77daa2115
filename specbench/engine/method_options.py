"""The meaning of a method's options to the rest of specbench. The module imports no torch.

Options are a frozen dataclass, whose fields the user sets. All that other packages need to
know about them is declared here once, with a default for classes that do not declare it.
"""

from dataclasses import asdict, replace
from functools import cache
from typing import Any, Self

from specbench.types import Scope

OWN_WEIGHTS = "own"
"""Stands for the weights of the method itself, as `Method.weights` names them."""


class MethodOptions:
    """Base of a method's options, which are a frozen dataclass.

    A subclass overrides members with fields or properties of its own, and keeps the defaults of
    all others. A plug-in's options without this base get those defaults too.
    """

    __slots__ = ()

    @property
    def weights(self) -> str:
        """Field: the checkpoint that the user names, a folder or a Hub id."""
        return ""

    @property
    def datastore(self) -> str:
        """Field: the file of `specbench datastore build` to draft from, in place of weights."""
        return ""

    @property
    def layers(self) -> str | None:
        """Field: layers of the target that the draft model reads; "": as the model card says.

        None if there is no such field.
        """
        return None

    @property
    def scope(self) -> Scope:
        """Field: lifetime of the method's memory; with "run" it remembers earlier prompts."""
        return "request"

    @property
    def schedule(self) -> str:
        """Field: the rule for the length of the next draft after a step's acceptance."""
        return "constant"

    @property
    def is_lossless(self) -> bool:
        """False if, with these options, the output does not have the target's distribution."""
        return True

    @property
    def draft_weights(self) -> str | None:
        """Name of the checkpoint on a model card: `OWN_WEIGHTS`, another method's name, or None."""
        return OWN_WEIGHTS

    @property
    def official_arguments(self) -> str:
        """The options as arguments of the official code, where their names differ."""
        return ""

    @property
    def is_repeatable(self) -> bool:
        """True if a prompt gets the same drafts each time at temperature 0.

        False for drafts that are drawn at random, or depend on other prompts.
        """
        return self.scope == "request"

    def most_nodes(self) -> int:
        """The most nodes of a step's tree, its root included; 0 if these options do not say."""
        return 0

    @property
    def alternatives(self) -> frozenset[str]:
        """Options that determine each other, such as a tree and its number of nodes."""
        return frozenset()

    def tree_sha256(self) -> str | None:
        """The hash of a static tree's paths; None without one, or if it cannot be read."""
        return None

    def sized(self, rows: int) -> Self:
        """These options with steps of at most `rows` rows, in the paper's shape if possible.

        By default this sets the field `nodes`, or else lowers `num_tokens`. Without either,
        nothing changes.
        """
        values = self.as_dict()
        if "nodes" in values:
            return self.replaced(nodes=rows)
        if "num_tokens" in values:
            return self.replaced(num_tokens=min(values["num_tokens"], max(1, rows - 1)))
        return self

    def for_target(self, num_parameters: float) -> Self:
        """These options with the paper's values of fields that depend on the target's size.

        Parameters of all experts count. By default nothing depends on the size.
        """
        return self

    def size_text(self) -> str:
        """The size of drafts in words, if it depends on the target's: "50 nodes, 6 levels"."""
        return ""

    def paper_note(self, num_parameters: float) -> str:
        """Assumption of `for_target` for a target of a size that the paper lacks: "as for 13B"."""
        return ""

    def profiled(self) -> Self:
        """These options, changed for recording an acceptance profile; by default unchanged."""
        return self

    def chained(self, num_tokens: int) -> Self:
        """These options with a chain of exactly `num_tokens` draft tokens in every step."""
        return self.replaced(num_tokens=num_tokens)

    def replaced(self, **changes: Any) -> Self:
        """These options with other values of some fields."""
        options: Any = self
        replaced: Self = replace(options, **changes)
        return replaced

    def as_dict(self) -> dict[str, Any]:
        """The values of the fields by name."""
        options: Any = self
        return asdict(options)


@cache
def completed(options: type) -> type[MethodOptions]:
    """The class `options` itself, or a subclass with the members of `MethodOptions` it lacks."""
    if issubclass(options, MethodOptions):
        return options
    members = {"__slots__": (), "__module__": options.__module__, "__doc__": options.__doc__}
    return type(options.__name__, (options, MethodOptions), members)


def meaning_of(options: Any) -> MethodOptions:
    """Options with all members of `MethodOptions`, even if their class lacks that base."""
    if isinstance(options, MethodOptions):
        return options
    kind: type = type(options)
    return completed(kind)(**asdict(options))
