"""The contract of a method: a drafter proposes trees and observes the results.

The registry finds the `Method` that describes each method. A method has no loop, stop rule or token
count, and does not write the target's cache. All of these belong to the engine.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

import torch

from specbench.engine.accept import AcceptedPath, Rule, Verdict, lossless
from specbench.engine.load import WeightSource
from specbench.engine.method_options import OWN_WEIGHTS, meaning_of
from specbench.engine.method_options import MethodOptions as MethodOptions
from specbench.engine.sampler import Sampler
from specbench.engine.target import Forward, Needs, Target
from specbench.engine.tree import NUM_NODES, DraftTree, padded_size
from specbench.types import ProfileKind, Request, Scope


class TokenView(Sequence[int]):
    """A read-only view of a growing list of token ids. Its slices are lists."""

    __slots__ = ("_token_ids",)

    def __init__(self, token_ids: list[int]) -> None:
        self._token_ids = token_ids

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        return self._token_ids[index]

    def __len__(self) -> int:
        return len(self._token_ids)


@dataclass(frozen=True, slots=True)
class State:
    """State of a running completion. Drafters only read it."""

    request: Request
    sampler: Sampler
    """Draws tokens with the request's settings and seed, for the target and for drafters."""
    limit: int
    """The largest number of new tokens that the completion may have."""
    _token_ids: list[int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_token_ids", list(self.request.prompt_ids))

    @property
    def token_ids(self) -> TokenView:
        """The prompt and all emitted tokens."""
        return TokenView(self._token_ids)

    def append(self, token_id: int) -> None:
        """Emit a token. Only the decoding loop may call this."""
        self._token_ids.append(token_id)

    @property
    def pending(self) -> int:
        """The last emitted token, which the target has not seen yet. It is the next tree's root."""
        return self._token_ids[-1]

    @property
    def num_committed(self) -> int:
        """Number of tokens in the target's cache: all but the pending token."""
        return len(self._token_ids) - 1

    @property
    def remaining(self) -> int:
        """Number of tokens that may still be emitted."""
        return len(self.request.prompt_ids) + self.limit - len(self._token_ids)

    def chain(self, draft_ids: Sequence[int] = ()) -> DraftTree:
        """A chain of `draft_ids`, which may be empty, below the pending token."""
        device = self.sampler.generator.device
        if not draft_ids:  # filled on the device, because a copy takes longer
            return DraftTree.chain(torch.full((1,), self.pending, device=device))
        return DraftTree.chain(torch.tensor([self.pending, *draft_ids], device=device))


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step, as the drafter observes it. It includes scratch nodes."""

    tree: DraftTree
    forward: Forward
    verdict: Verdict
    accepted_path: AcceptedPath | None = None

    @property
    def accepted(self) -> AcceptedPath:
        """The verdict's path and tokens on the device."""
        return self.accepted_path or AcceptedPath.from_verdict(
            self.verdict, self.tree.tokens.device
        )


class Drafter:
    """Base of all drafters. One object serves many completions, one after the other."""

    needs: Needs = Needs()
    """Outputs of the target that `start` and `observe` read."""

    weights_layout: str = ""
    """The published layout of its checkpoint, if there are several layouts."""

    weights_notes: tuple[str, ...] = ()
    """Notes on its checkpoint that the report shows."""

    weights_facts: tuple[str, ...] = ()
    """Neutral facts about its checkpoint, such as "output layer: its own lm_head"."""

    num_positions: int = 0
    """Number of positions that its checkpoint was made for, or 0 if it is unknown."""

    has_guessed_layers: bool = False
    """True if a formula chose the target layers that it reads, since user and config named none."""

    rule: Rule = staticmethod(lossless)
    """Acceptance rule of its trees."""

    profile: ProfileKind | None = None
    """The kind of data that an acceptance profile stores (docs/how_tuning_works.md). None if drafts
    depend on more than the committed tokens, such as on the trees of earlier steps.
    """

    draws_siblings: bool = False
    """True if it draws several tokens after the same node, above temperature 0."""

    tree_sizes: Collection[int] = NUM_NODES
    """Numbers of nodes that its trees may have, as far as known.

    With captured graphs, trees of several sizes are padded to a few sizes, which are all captured
    before anything is timed. If there is a single size, the first steps capture all that it needs.
    """

    tree_depth: int = 1
    """Upper bound of the depth of its trees."""

    has_chains: bool = False
    """True if all its trees are chains."""

    def start(self, state: State, prefill: Forward) -> None:
        """Begin a completion. Forget the last completion, except for what `remember` kept.

        `state` holds the prompt and the first token. The tensors of `prefill` may be valid only
        until the target's next forward (with captured graphs).
        """

    def propose(self, state: State) -> DraftTree:
        """Propose the next tree, whose root is `state.pending`."""
        raise TypeError(f"{type(self).__name__} does not implement propose()")

    def ranks(self, state: State, token_ids: Sequence[int]) -> list[int]:
        """Rank the answer's tokens after the pending token, `token_ids`, among the draft tokens.

        Profiles of kind "ranks" call this instead of `propose`. Entry d is the rank of
        `token_ids[d]` among the draft tokens at depth d + 1, given the answer's tokens before it.
        If the token has no rank or is missing, the entry is the number of ranks.
        """
        raise TypeError(f"{type(self).__name__} does not implement ranks()")

    def skip(self, state: State) -> None:
        """Update the draft model's cache before a step that uses another drafter's tree, as in SAM.

        This is called instead of `propose`.
        """

    def observe(self, state: State, result: StepResult) -> None:
        """Read the result of a step. `state` already holds the emitted tokens."""

    def remember(self) -> None:
        """Remember the last completion for all later completions, until `forget` is called.

        This is called after a completion is recorded, and only with the option `scope=run`.
        """

    def forget(self) -> None:
        """Drop everything that `remember` kept."""

    @property
    def has_fixed_size(self) -> bool:
        """True if all its trees have the same size."""
        return len(self.tree_sizes) == 1

    def trees_to_record(self, num_tokens: int, sampler: Sampler) -> Iterable[DraftTree]:
        """The trees to capture: one of each size, with `q` if trees are sampled.

        Nothing is captured if all trees have the same size. A completion has at most `num_tokens`.
        """
        device = sampler.generator.device
        sizes = () if self.has_fixed_size else sorted(set(map(padded_size, self.tree_sizes)))
        if self.has_chains:
            return (DraftTree.chain(torch.zeros(n, dtype=torch.long, device=device)) for n in sizes)
        return (DraftTree.star(size, device, self.tree_depth) for size in sizes)

    def capture_graphs(self, num_tokens: int) -> None:
        """Run code that first steps do not reach, to capture its graphs before timing.

        `num_tokens` bounds a completion.
        """

    def capture_draws(self, num_tokens: int, sampler: Sampler) -> None:
        """Like `capture_graphs`, for code that draws from `sampler`. One call per temperature."""

    def bytes_read(self, num_nodes: int) -> float:
        """Bytes of weights that are read to draft a tree of `num_nodes` nodes, including its root.

        A weight counts once per pass that reads it (see `engine.layers.weights`). If a drafter with
        weights does not override this, its bandwidth bound in reports is too high, never too low.
        """
        return 0.0


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Inputs of `Method.build`.

    `weights` is the drafter's own checkpoint folder, or a source that makes its tensors.
    `skipped_depth` is the largest depth of other drafters' trees, in steps that call `skip`.
    """

    target: Target
    weights: Path | WeightSource | None = None
    skipped_depth: int = 0


@dataclass(frozen=True, slots=True)
class Method:
    """A method, as the registry, the log and the reports know it.

    `options` is a frozen dataclass, preferably a `MethodOptions`. Its fields, with their types and
    defaults, are the method's options on the command line, in `specbench show` and in `run.json`.
    `weights` is the name of its checkpoint on a model card: the method's own name, or that of the
    method whose weights it uses. None if it needs none. A module of `methods/` is read without
    being imported, so `weights`, `head` and the fields after it must be constants there.
    """

    name: str
    title: str
    summary: str
    paper: str
    options: type
    build: Callable[[Any, BuildContext], Drafter]
    weights: str | None = None
    is_lossless: bool = True
    head: str = ""
    """The kind of its weights: "model" (a language model with a tokenizer), "medusa", "hydra",
    "eagle" or "eagle3" (heads that `specbench train` makes), or "" for other weights."""
    paper_order: int | None = None
    """The place among the papers' methods, which come first. `--method papers` selects these."""
    is_default: bool = True
    """True if a run that names no method includes it."""
    colour: str = ""
    """The method's colour in plots, as "#RRGGBB"; by default derived from its name."""
    slow_on_cpu: str = ""
    """The reason it is rarely faster than vanilla on a CPU. Reports show it if it was slower."""

    def is_lossless_with(self, options: Any) -> bool:
        """True if its output has the target's own distribution with these options.

        Options with another acceptance rule have a property `is_lossless`.
        """
        return self.is_lossless and meaning_of(options).is_lossless

    def weights_with(self, options: Any) -> str | None:
        """The name of the checkpoint that it needs with these options, or None if it needs none.

        Options that make it use another method have a property `draft_weights`.
        """
        name = meaning_of(options).draft_weights
        return self.weights if name == OWN_WEIGHTS else name

    def scope_with(self, options: Any) -> Scope:
        """The option `scope`: "run" if earlier prompts of a pass are remembered, or "request"."""
        return meaning_of(options).scope

    def is_repeatable_with(self, options: Any) -> bool:
        """True if a prompt gets the same drafts each time at temperature 0."""
        return meaning_of(options).is_repeatable

    def most_nodes_with(self, options: Any) -> int:
        """The most nodes of a step's tree with these options; 0 if unknown."""
        return meaning_of(options).most_nodes()

    def alternatives_with(self, options: Any) -> frozenset[str]:
        """Names of options that determine each other."""
        return meaning_of(options).alternatives

    def tree_sha256_with(self, options: Any) -> str | None:
        """The hash of the static tree that these options name, or None without a static tree."""
        return meaning_of(options).tree_sha256()
