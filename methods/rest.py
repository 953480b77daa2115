"""REST: continuations of the last tokens in a datastore, drafted as a tree by their frequency."""

from collections import Counter
from dataclasses import dataclass

from specbench.engine.drafter import BuildContext, Drafter, Method, State
from specbench.engine.method_options import MethodOptions
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.errors import UserError
from specbench.methods.shared.datastore import SORTED_BY, read_datastore
from specbench.types import option

NUM_MATCHES = 5000
"""Largest number of occurrences that are counted in a step."""

Tokens = tuple[int, ...]
"""Tokens from the root to a node, without the root's token."""


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """Options of REST."""

    datastore: str = option("", "file made by `specbench datastore build`")
    max_span: int = option(16, "longest context looked up", min=1)
    min_span: int = option(2, "shortest context looked up", min=1)
    length: int = option(10, "tokens of a continuation", min=1)
    num_tokens: int = option(64, "most tokens drafted", min=1)

    def most_nodes(self) -> int:
        return self.num_tokens + 1

    def __post_init__(self) -> None:
        if not self.min_span <= self.max_span <= SORTED_BY:
            raise UserError(
                f"rest cannot look up contexts of {self.min_span} to {self.max_span} tokens.",
                f"Give a max_span of at most {SORTED_BY}, and a min_span of at most max_span.",
            )


class Rest(Drafter):
    """Looks up the last tokens in a datastore, the longest context first.

    The first context that has continuations is used. They form a trie, and its most frequent nodes
    are the draft. Then the nodes with the longest paths are dropped, until the numbers of distinct
    tokens on the paths of all nodes add up to at most `num_tokens`.

    Source: He et al. 2023, "REST: Retrieval-Based Speculative Decoding"; behaviour checked against
    FasterDecoding/REST, DraftRetriever/src/lib.rs.

    Deviation: among equally frequent nodes, the shallower is kept, then the one found first. Among
    paths with equally many distinct tokens, the longest is dropped. Officially, both are random.
    Without a match, the step runs only on the pending token. Officially, a dummy token (id 100) is
    drafted. A continuation ends at the end of its text. A context that occurs only at the ends of
    texts has no continuation, so a shorter context is tried.
    """

    profile = "text"

    def __init__(self, options: Options, context: BuildContext) -> None:
        self._options = options
        self._device = context.target.device
        self._datastore = read_datastore(context)
        self.tree_sizes, self.tree_depth = range(1, 2 + options.num_tokens), options.length

    def propose(self, state: State) -> DraftTree:
        """Propose a tree of the most frequent continuations, or only the pending token."""
        paths = self._paths(state)
        if not paths:
            return state.chain()
        node_of = {path: node for node, path in enumerate([(), *paths])}
        parents = [0] + [node_of[path[:-1]] for path in paths]
        layout = TreeLayout.from_parents(parents, self._device)
        tokens = state.chain([path[-1] for path in paths]).tokens
        return DraftTree(tokens, layout, len(node_of))

    def _paths(self, state: State) -> list[Tokens]:
        """The paths of the draft's nodes, parents first."""
        options = self._options
        continuations: list[list[int]] = []
        longest = min(options.max_span, len(state.token_ids))
        for span in range(longest, options.min_span - 1, -1):
            context = state.token_ids[-span:]
            continuations = self._datastore.continuations(context, options.length, NUM_MATCHES)
            if any(continuations):
                break
        counts = Counter(
            tuple(tokens[:end]) for tokens in continuations for end in range(1, len(tokens) + 1)
        )
        most_frequent = sorted(counts, key=lambda path: (-counts[path], len(path)))
        return _cut(most_frequent[: options.num_tokens], options.num_tokens)


def _num_distinct(path: Tokens) -> int:
    return len(set(path))


def _cut(paths: list[Tokens], most_tokens: int) -> list[Tokens]:
    """Drop the longest paths until the numbers of distinct tokens sum to at most `most_tokens`."""
    kept = sorted(paths, key=lambda path: (_num_distinct(path), len(path)))
    num_tokens = sum(map(_num_distinct, kept))
    while num_tokens > most_tokens:
        num_tokens -= _num_distinct(kept.pop())
    return kept


METHOD = Method(
    name="rest",
    title="REST",
    summary="drafts the most frequent continuations of the last tokens in a datastore",
    paper="He et al. 2023, REST: Retrieval-Based Speculative Decoding",
    options=Options,
    build=Rest,
    weights="rest",
    is_default=False,
    colour="#91D861",
)
