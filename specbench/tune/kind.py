"""A kind of profile: how drafts are recorded, and how settings are replayed from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

from specbench.analysis.stats.arrays import IntArray
from specbench.engine.drafter import Drafter
from specbench.engine.method_options import MethodOptions
from specbench.errors import unknown_name
from specbench.methods.shared.static_tree import Ranks
from specbench.settings.run_method import RunMethod
from specbench.tune.drafts import DraftAt
from specbench.tune.profile_file import Answer, Profile
from specbench.tune.recorder import Recorder


class SizedDraft(NamedTuple):
    """A size of a method's drafts that a cost curve times."""

    knot: dict[str, int]
    """The size, as a value on each axis of the kind."""
    options: MethodOptions
    """The options that make drafts of this size."""


class Kind(ABC):
    """The base of all kinds. One object serves all methods of the kind."""

    name: str
    """The name of the module. `Drafter.profile` and the files of profiles use it."""
    free_options: Collection[str] = ()
    """Options whose values may differ from the recorded ones. A tune tries other values."""
    bounded_options: Collection[str] = ()
    """The free options whose recorded value is the largest that can be replayed."""
    has_candidates: bool = False
    """True if the candidates of trees are recorded, so that `longest_path` can measure them."""
    array_names: Collection[str] = ()
    """The names of the arrays that a profile stores for a method's drafts."""
    is_recorded: bool = True
    """False if drafts are made again from the tokens. Then any option may differ."""

    def record(self, drafter: Drafter, answer: Sequence[int]) -> Recorder:
        """Make a drafter that records what `drafter` proposes along the tokens of an answer."""
        raise TypeError(f"{type(self).__name__} does not implement record()")

    @abstractmethod
    def replay(self, profile: Profile, label: str, method: RunMethod) -> DraftAt:
        """Make a function that returns the draft of a setting at a position of a stored answer.

        Args:
            profile: has the method, if its drafts are recorded.
            label: the method as it was profiled.
            method: the method with the options of the setting.

        Raises:
            UserError: the setting needs more than was recorded.
        """

    @abstractmethod
    def sizes(self, options: Any, drafter: Drafter) -> Iterator[SizedDraft]:
        """Yield the sizes of drafts that a cost curve measures, with `options` as the largest.

        They are all combinations of values on the axes, with the last axis fastest.
        """

    @abstractmethod
    def grid(self, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the settings that a tune tries, besides the paper's.

        `options` are the recorded options. Settings that the profile does not cover are left out
        later.
        """

    def longest_path(self, answer: Answer, label: str, position: int) -> int:
        """Count the next tokens of an answer that form a path among the candidates."""
        raise TypeError(f"{type(self).__name__} does not implement longest_path()")

    def best_trees(
        self, profile: Profile, label: str, prompts: Collection[str]
    ) -> dict[int, list[Ranks]]:
        """Make static trees for a method from the answers to these prompts, by number of rows."""
        return {}

    def knots(self, sizes: Sequence[SizedDraft]) -> list[dict[str, int]]:
        """List the knots of a method's cost, given the sizes that were measured."""
        return [size.knot for size in sizes]

    def knot_numbers(self, size_numbers: IntArray, rows: IntArray) -> IntArray:
        """Find the index of each step's knot, from the index of its size and its rows [steps]."""
        return size_numbers


def find_kind(name: str) -> Kind:
    """Import the kind with this name.

    Raises:
        UserError: no kind has the name.
    """
    from specbench.tune.kinds import NAMES

    if name not in NAMES:
        raise unknown_name("kind of profile", name, NAMES)
    kind: Kind = import_module(f"specbench.tune.kinds.{name}").KIND
    return kind
