"""SAM-Decoding: copies what followed a long match, and drafts with another method otherwise."""

from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Literal, Self

from specbench.engine.drafter import BuildContext, Drafter, Method, State, StepResult
from specbench.engine.method_options import MethodOptions
from specbench.engine.sampler import Sampler
from specbench.engine.target import Forward
from specbench.engine.tree import DraftTree
from specbench.engine.verify import verify
from specbench.errors import UserError
from specbench.methods import _dynamic_tree, eagle2, eagle3, recycling
from specbench.methods._eagle import EagleDrafter
from specbench.methods._occurrences import Occurrences
from specbench.methods.shared.datastore import read_datastore
from specbench.types import Request, option


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """Options of SAM-Decoding."""

    other: Literal["recycling", "eagle2", "eagle3"] = option(
        "recycling", "method that drafts where no match is long enough"
    )
    nodes: int = option(61, "most nodes in the other method's tree", min=2)
    depth: int = option(5, "expansions of the tree, for eagle2 and eagle3", min=0)
    num_tokens: int = option(39, "most tokens copied", min=1)
    threshold: int = option(5, "tokens that must match", min=1)
    scope: Literal["request", "run"] = option("request", "run: recycling keeps its table")
    weights: str = option("", "the other method's checkpoint, a folder or hub id")
    datastore: str = option("", "datastore to copy from too, made by `specbench datastore build`")
    bias: int = option(5, "extra tokens that a match in the datastore must have over the text's")

    def most_nodes(self) -> int:
        return max(self.num_tokens + 1, self.nodes)

    def __post_init__(self) -> None:
        if self.datastore and self.other != "recycling":
            raise UserError(
                f"sam cannot read a datastore and {self.other}'s weights together.",
                "Give other=recycling, or leave datastore= out.",
            )

    @property
    def draft_weights(self) -> str | None:
        if self.datastore:
            return "datastore"
        if self.other == "recycling":
            return None
        return _EAGLES[self.other].METHOD.weights

    def sized(self, rows: int) -> Self:
        """A copy of the options with steps of at most `rows` rows."""
        tree = _dynamic_tree.Options(total_tokens=self.nodes, depth=self.depth).sized(rows)
        num_copied = min(self.num_tokens, max(1, rows - 1))
        return replace(self, num_tokens=num_copied, nodes=tree.total_tokens, depth=tree.depth)


_EAGLES = {"eagle2": eagle2, "eagle3": eagle3}


class SamDecoding(Drafter):
    """Copies the continuation of the longest earlier match, or lets another drafter propose.

    The match ends with the pending token. Its earliest occurrence counts. If fewer than
    `num_tokens` tokens follow this occurrence, shorter matches may have an earlier one. A match in
    the datastore that is longer by `bias` tokens is copied instead. The other drafter observes
    every step.

    Source: Hu et al. 2024, "SAM Decoding: Speculative Decoding via Suffix Automaton"; behaviour
    checked against hyx1999/SAM-Decoding, samd/draft.py.

    Deviation: an index of the tokens' positions replaces the suffix automaton, and a datastore
    replaces the automaton of a corpus. They find the same matches. A copy ends with its text.
    Officially it goes on with zeros or, in a corpus, with the next text. Officially a corpus can be
    combined with EAGLE-2, and the table is kept from prompt to prompt, which is `scope=run` here.
    """

    def __init__(self, options: Options, context: BuildContext) -> None:
        self._options = options
        self._target = context.target
        context = replace(context, skipped_depth=options.num_tokens)
        if options.other == "recycling":
            table_options = recycling.Options(tree="sam_60", prompt=True, nodes=options.nodes)
            self._other: Drafter = recycling.Recycling(table_options, context)
        else:
            eagle = _EAGLES[options.other]
            tree_options = eagle.METHOD.options(total_tokens=options.nodes, depth=options.depth)
            self._other = eagle.build(tree_options, context)
        self.needs, self.rule = self._other.needs, self._other.rule
        self.weights_notes = self._other.weights_notes
        self.weights_layout = self._other.weights_layout
        self.weights_facts = self._other.weights_facts
        self.num_positions = self._other.num_positions
        self.has_guessed_layers = self._other.has_guessed_layers
        self.tree_sizes = {*range(2, 2 + options.num_tokens), *self._other.tree_sizes}
        self.tree_depth = max(options.num_tokens, self._other.tree_depth)
        self._occurrences = Occurrences()
        self._store = read_datastore(context) if options.datastore else None

    def start(self, state: State, prefill: Forward) -> None:
        self._occurrences = Occurrences()
        self._other.start(state, prefill)

    def propose(self, state: State) -> DraftTree:
        self._occurrences.extend(state.token_ids[len(self._occurrences.token_ids) :])
        if copied := self._copied():
            self._other.skip(state)
            return state.chain(copied)
        return self._other.propose(state)

    def _copied(self) -> list[int]:
        """The continuation of the longest match, empty if it is not long enough."""
        options, token_ids = self._options, self._occurrences.token_ids
        # The earliest end of a match of each length, as long as a token follows it.
        first_ends = (ends[0] for ends in self._occurrences.ends(token_ids))
        earliest = [*takewhile(lambda end: end < len(token_ids), first_ends)]
        if self._store:
            size, continuation = self._store.longest_match(token_ids, options.num_tokens)
            if size - options.bias >= max(options.threshold, len(earliest) + 1):
                return continuation
        if len(earliest) < options.threshold:
            return []
        last_begin = len(token_ids) - options.num_tokens  # where a whole copy can begin
        begin = next((end for end in reversed(earliest) if end <= last_begin), earliest[0])
        return token_ids[begin : begin + options.num_tokens]

    def observe(self, state: State, result: StepResult) -> None:
        self._other.observe(state, result)

    def remember(self) -> None:
        self._other.remember()

    def forget(self) -> None:
        self._other.forget()

    def bytes_read(self, num_nodes: int) -> float:
        """Bytes that the other drafter reads in a step over `num_nodes` nodes.

        If none of its trees has this size, the step is a copy. EAGLE's layers then still read the
        tokens, but its head is not used.
        """
        if num_nodes in self._other.tree_sizes:
            return self._other.bytes_read(num_nodes)
        if isinstance(self._other, EagleDrafter):
            return self._other.model.stack.num_bytes
        return 0.0

    def capture_graphs(self, num_tokens: int) -> None:
        self._other.capture_graphs(num_tokens)

    def capture_draws(self, num_tokens: int, sampler: Sampler) -> None:
        """Let EAGLE draft after a step over a tree of each size, at each size of its cache.

        EAGLE's trees are verified too: they have scores, unlike those of `trees_to_record`.
        """
        if not isinstance(self._other, EagleDrafter) or self._target.execution.is_paused:
            return
        for star in self.trees_to_record(num_tokens, sampler):
            for length in self._other.lengths_to_record(num_tokens):
                self._target.cache.length = length - 2  # a star's path has one or two nodes
                drafted = self._draft_after(star, sampler)
                self._verified(drafted, sampler)

    def _verified(self, tree: DraftTree, sampler: Sampler) -> StepResult:
        """The result of a step over `tree`, as the decoding loop makes it."""
        target = self._target
        tree = tree.padded(target.execution.num_nodes(tree.num_nodes))
        is_joined = target.execution.is_joined
        forward, verdict, path = verify(target, tree, self, sampler, is_joined=is_joined)
        return StepResult(tree, forward, verdict, path)

    def _draft_after(self, tree: DraftTree, sampler: Sampler) -> DraftTree:
        """The other drafter's tree after a step over `tree`."""
        result = self._verified(tree, sampler)
        committed = (0,) * self._target.cache.length
        state = State(Request(committed, 1, sampler.sampling), sampler, limit=1)
        state.append(0)
        self._other.observe(state, result)
        return self._other.propose(state)


METHOD = Method(
    name="sam",
    title="SAM",
    summary="SAM-Decoding: copies what followed a long match, else drafts with another method",
    paper="Hu et al. 2024, SAM Decoding",
    options=Options,
    build=SamDecoding,
    colour="#2E7DFF",
    slow_on_cpu="it drafts a tree where nothing matches, and a tree cheap enough here gains little",
)
