"""List the draft sizes of a serving engine's methods that a tune tries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product

from specbench.errors import UserError
from specbench.measure.methods import check_labels
from specbench.measure.server.engine import Engine
from specbench.measure.server.started_methods import NUM_TOKENS, num_tokens_of
from specbench.registry import MethodChoice
from specbench.settings.grids import (
    SERVED_CHAINS,
    SERVED_NODES,
    SERVED_STEPS,
    SERVED_TOP_K,
    up_to,
)
from specbench.settings.run_method import label_of
from specbench.types import BASELINE

TOP_K = "eagle_topk"
"""The option of SGLang for the number of tokens drafted per node of a tree."""
NODES = "num_draft_tokens"
"""The option of SGLang for the number of nodes of a tree, its root included."""
SIZES = (NUM_TOKENS, TOP_K, NODES)
"""The options that set the size of drafts."""
_RESULTS = (TOP_K, NODES, "table")
"""The options whose values a tune finds."""
_LARGEST_BY_DEFAULT = 2
"""Drafts of up to this many times the engine's default length are tried, unless the user gives a
number.
"""


@dataclass(frozen=True, slots=True)
class DraftSize:
    """A method with one size of its drafts, as a server runs it; or plain decoding."""

    method: MethodChoice
    """The method with its options, as on a command line."""
    num_tokens: int
    """The number of draft tokens that a step verifies; 0 for plain decoding."""

    def __hash__(self) -> int:
        return hash(self.label)

    @property
    def label(self) -> str:
        """The name in records."""
        return label_of(self.method)

    @property
    def options(self) -> dict[str, str]:
        """The options that set the size, as texts."""
        given = self.method.given
        return {name: given[name] for name in SIZES if name in given}

    @property
    def is_tree(self) -> bool:
        """True if several tokens are drafted per node."""
        return TOP_K in self.method.given

    @property
    def options_text(self) -> str:
        """The `options` as on the command line, such as "num_tokens=3"; empty without a draft."""
        return ",".join(f"{name}={text}" for name, text in self.options.items())

    @property
    def title(self) -> str:
        """The size as a table shows it.

        It is "K=3" for 3 draft tokens. For a tree, "3x4x16" has the drafting steps, the tokens per
        node and the nodes.
        """
        if self == PLAIN:
            return "plain"
        sizes = [*self.options.values()]
        return f"K={sizes[0]}" if len(sizes) == 1 else "x".join(sizes)


PLAIN = DraftSize(MethodChoice(BASELINE), 0)
"""Plain decoding, on a server without speculation."""


@dataclass(frozen=True, slots=True)
class TunedMethod:
    """A method with the sizes to try."""

    asked: MethodChoice
    """The method as the user named it, without a size."""
    sizes: tuple[DraftSize, ...]
    """The sizes to try, the smallest first. There is at least one."""
    is_chain: bool
    """True if a shorter draft is the beginning of a longer one. Then the acceptance that was
    measured with the largest size is valid for all sizes.
    """

    @property
    def label(self) -> str:
        """The name in texts."""
        return label_of(self.asked)

    @property
    def largest(self) -> DraftSize:
        """The largest size."""
        return self.sizes[-1]


def tuned_methods(choices: Iterable[MethodChoice], engine: Engine) -> list[TunedMethod]:
    """List the methods to tune, each with the draft sizes to try.

    The longest chain has as many draft tokens as the user gave (`num_tokens`), or
    `_LARGEST_BY_DEFAULT` times the engine's default. A tree has at most this many drafting steps.

    Args:
        choices: methods with the options that the user gave, as texts by name; vanilla is ignored.
        engine: a serving engine, with its methods by name.

    Raises:
        UserError: a method decides the length of its drafts itself, an option is wrong or is one
            that a tune finds, a method is named twice, or no method is named.
    """
    methods = []
    for choice in choices:
        if choice.name == BASELINE:  # plain decoding is measured in every tune
            continue
        engine_method = engine.methods[choice.name]
        if not engine_method.num_tokens:  # the engine's default number; 0: the method decides
            raise UserError(
                f"{engine.title}'s {choice.name} decides the length of its drafts itself, so there "
                "is nothing to tune.",
                "Measure it with `specbench run` at several loads: --concurrency 1,4.",
            )
        for name in _RESULTS:
            if name in choice.given:
                raise UserError(f"{choice}: specbench tune finds {name} itself.", "Leave it out.")
        # the options of the user that every size keeps
        kept_options = {name: text for name, text in choice.given.items() if name != NUM_TOKENS}
        asked = MethodChoice(choice.name, kept_options)  # the method without a size
        # tokens of the longest chain: the user's number, or the engine's default
        most_tokens = num_tokens_of(choice, engine_method)
        if NUM_TOKENS not in choice.given:
            most_tokens *= _LARGEST_BY_DEFAULT
        sizes = [
            _sized(asked, {NUM_TOKENS: num_tokens}, num_tokens)
            for num_tokens in up_to(most_tokens, SERVED_CHAINS)
        ]
        if TOP_K in engine_method.options:  # the method can draft trees too
            sizes += _trees(asked, most_steps=most_tokens)
        # A head that drafts all tokens in parallel drafts other tokens if the draft is shorter.
        is_parallel = kept_options.get("parallel_drafting") == "true"
        # True if a shorter draft is the beginning of a longer one.
        is_chain = engine_method.is_chain and not is_parallel
        sizes.sort(key=lambda size: size.num_tokens)
        methods.append(TunedMethod(asked, tuple(sizes), is_chain))
    check_labels([method.label for method in methods])  # raises if two are the same
    if not methods:
        raise UserError(
            "No method to tune is named.", f"Name one of {engine.title}'s: --method eagle3"
        )
    return methods


def _trees(asked: MethodChoice, most_steps: int) -> list[DraftSize]:
    """List the sizes of trees to try for a method, with at most `most_steps` steps of drafting.

    A size is a number of drafting steps, of tokens per node, and of nodes that are verified, the
    root included. Sizes with more nodes than are drafted are left out.
    """
    trees = []
    for num_steps, top_k, num_nodes in product(SERVED_STEPS, SERVED_TOP_K, SERVED_NODES):
        num_drafted = top_k + (num_steps - 1) * top_k**2  # the nodes are chosen among these
        if num_steps <= most_steps and num_nodes <= num_drafted + 1:  # 1: the root
            options = {NUM_TOKENS: num_steps, TOP_K: top_k, NODES: num_nodes}
            trees.append(_sized(asked, options, num_nodes - 1))
    return trees


def _sized(asked: MethodChoice, sizes: Mapping[str, int], num_tokens: int) -> DraftSize:
    """Give a method the options `sizes`, with which a step verifies `num_tokens` draft tokens."""
    given = {**asked.given, **{name: str(size) for name, size in sizes.items()}}
    return DraftSize(MethodChoice(asked.name, given), num_tokens)
