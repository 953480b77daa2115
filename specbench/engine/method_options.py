"""Define what a method's options mean to the rest of specbench, without importing torch.

Options are a frozen dataclass whose fields the user sets. Everything that other packages need to
know about them is declared here, with a default for classes that do not declare it themselves.
"""

from dataclasses import asdict, replace
from functools import cache
from typing import Any, Self

from specbench.types import Scope

OWN_WEIGHTS = "own"
"""Stands for the method's own weights, as `Method.weights` names them."""


class MethodOptions:
    """Base of a method's options, which are a frozen dataclass.

    A subclass overrides members with its own fields or properties. All other members keep their
    defaults. A plug-in's options get these defaults too if their class lacks this base.
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
        """Field: layers of the target that the draft model reads. "" leaves this to the model card.

        None if the options have no such field.
        """
        return None

    @property
    def scope(self) -> Scope:
        """Field: how long the method remembers. With "run" it remembers earlier prompts."""
        return "request"

    @property
    def schedule(self) -> str:
        """Field: the rule that sets the length of the next draft from a step's acceptance."""
        return "constant"

    @property
    def is_lossless(self) -> bool:
        """False if the output does not have the target's distribution with these options."""
        return True

    @property
    def draft_weights(self) -> str | None:
        """The checkpoint's name on a model card: `OWN_WEIGHTS`, another method's name, or None."""
        return OWN_WEIGHTS

    @property
    def official_arguments(self) -> str:
        """The options as arguments of the official code, if their names differ there."""
        return ""

    @property
    def is_repeatable(self) -> bool:
        """True if a prompt gets the same drafts each time at temperature 0.

        False for drafts that are drawn at random, or depend on other prompts.
        """
        return self.scope == "request"

    def most_nodes(self) -> int:
        """The largest number of nodes of a tree, root included. 0 if the options do not set it."""
        return 0

    @property
    def alternatives(self) -> frozenset[str]:
        """Options that determine each other, such as a tree and its number of nodes."""
        return frozenset()

    def tree_sha256(self) -> str | None:
        """The hash of the paths of a static tree. None without one, or if it is unreadable."""
        return None

    def sized(self, rows: int) -> Self:
        """A copy with steps of at most `rows` rows, in the paper's shape if possible.

        By default this sets the field `nodes`. Without it, this lowers `num_tokens`. Options with
        neither field do not change.
        """
        values = self.as_dict()
        if "nodes" in values:
            return self.replaced(nodes=rows)
        if "num_tokens" in values:
            return self.replaced(num_tokens=min(values["num_tokens"], max(1, rows - 1)))
        return self

    def for_target(self, num_parameters: float) -> Self:
        """A copy of the options with the paper's values of fields that depend on the target's size.

        `num_parameters` counts all experts. By default nothing depends on the size.
        """
        return self

    def size_text(self) -> str:
        """The size of drafts, if it depends on the target's size, such as "50 nodes, 6 levels"."""
        return ""

    def paper_note(self, num_parameters: float) -> str:
        """The assumption of `for_target` for sizes that the paper lacks, such as "as for 13B"."""
        return ""

    def profiled(self) -> Self:
        """A copy of the options for recording an acceptance profile. Unchanged by default."""
        return self

    def chained(self, num_tokens: int) -> Self:
        """A copy of the options with a chain of exactly `num_tokens` draft tokens in every step."""
        return self.replaced(num_tokens=num_tokens)

    def replaced(self, **changes: Any) -> Self:
        """A copy of the options with other values of some fields."""
        options: Any = self
        replaced: Self = replace(options, **changes)
        return replaced

    def as_dict(self) -> dict[str, Any]:
        """The values of the fields by name."""
        options: Any = self
        return asdict(options)


@cache
def completed(options: type) -> type[MethodOptions]:
    """The class `options`, or a subclass of it that adds the members of `MethodOptions`."""
    if issubclass(options, MethodOptions):
        return options
    members = {"__slots__": (), "__module__": options.__module__, "__doc__": options.__doc__}
    return type(options.__name__, (options, MethodOptions), members)


def meaning_of(options: Any) -> MethodOptions:
    """The options with all members of `MethodOptions`, even if their class lacks that base."""
    if isinstance(options, MethodOptions):
        return options
    kind: type = type(options)
    return completed(kind)(**asdict(options))
