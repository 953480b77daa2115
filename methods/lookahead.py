"""Lookahead decoding: a window of Jacobi iterates fills a pool of n-grams, which are drafted."""

import random
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self

import torch

from specbench.engine.drafter import BuildContext, Drafter, Method, State, StepResult
from specbench.engine.method_options import MethodOptions
from specbench.engine.target import Forward
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.types import option


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """Options of lookahead decoding."""

    level: int = option(5, "n-gram size N", min=3)
    window: int = option(7, "window size W", min=1)
    guesses: int = option(7, "n-grams kept per token G", min=1)

    @property
    def is_repeatable(self) -> bool:
        return False  # the first window is drawn at random, anew for each request

    def sized(self, rows: int) -> Self:
        """A copy of the options with steps of at most about `rows` rows."""
        level = min(self.level, 3 if rows < 24 else 4)
        # The window and the n-grams have level - 1 rows per column each.
        num_columns = max(1, (rows - 1) // (2 * (level - 1)))
        window = min(self.window, num_columns)
        guesses = min(self.guesses, num_columns)
        return replace(self, level=level, window=window, guesses=guesses)


class Lookahead(Drafter):
    """Keeps a 2-D window of Jacobi iterates and a pool of the n-grams formed by its columns.

    The window is part of the tree, as scratch nodes. Level 0 is a chain below the root. In level 1,
    the parent of column i is the i-th of (root, level 0). In later levels, it is column i of the
    level above. The draft is a trie below the root, made of the pool's n-grams for the pending
    token. Its nodes may be accepted. Each step shifts the window by one column, no matter how many
    tokens were accepted.

    Source: Fu et al. 2024, "Break the Sequential Dependency of LLM Inference Using Lookahead
    Decoding"; behaviour checked against Spec-Bench's copy of hao-ai-lab/LookaheadDecoding.

    Deviation: a fully matched n-gram keeps its bonus token here. The official code drops it,
    because its match counter stops one token early. The window's first tokens are drawn from the
    prompt in the first step, with the request's seed. Officially this is done in the prefill, with
    a fixed seed.
    """

    def __init__(self, options: Options, context: BuildContext) -> None:
        self._options = options
        self._device = context.target.device
        self._layouts: dict[tuple[int, ...], TreeLayout] = {}
        self._pool: dict[int, OrderedDict[tuple[int, ...], None]] = {}
        self._levels: list[list[int]] = []
        self._num_nodes = 0
        most_levels = options.level - 1
        length = self._window_length
        self.tree_depth = max(length, most_levels)
        # With n levels, the first has lost n - 1 columns and the others n - 2.
        sizes = [n * (length - n + 2) for n in range(1, most_levels + 1)]
        filled_size = sizes[-1]  # n-grams are drafted beside a window with all levels
        most_drafted = options.guesses * most_levels
        self.tree_sizes = {*sizes, *range(filled_size, filled_size + most_drafted + 1)}

    def start(self, state: State, prefill: Forward) -> None:
        rng = random.Random(state.request.seed)
        self._levels = [rng.choices(state.request.prompt_ids, k=self._window_length)]
        self._pool.clear()

    @property
    def _window_length(self) -> int:
        """Tokens of the first window, which is a single level."""
        return self._options.window + self._options.level - 3

    @property
    def _is_filled(self) -> bool:
        return len(self._levels) == self._options.level - 1

    def propose(self, state: State) -> DraftTree:
        """A tree of the pool's n-grams after the pending token, then the window."""
        ngrams = self._pool.get(state.pending, ()) if self._is_filled else ()
        tokens = [state.pending]
        parents = [0]
        _add_trie(tokens, parents, ngrams)
        num_verify = len(tokens)
        _add_window(tokens, parents, self._levels)
        self._num_nodes = len(tokens)
        layout = self._layouts.get(tuple(parents))
        if layout is None:
            layout = TreeLayout.from_parents(parents, self._device)
            self._layouts[tuple(parents)] = layout
        ids = torch.tensor(tokens, device=self._device)
        return DraftTree(ids, layout, num_verify)

    def observe(self, state: State, result: StepResult) -> None:
        """Take the target's tokens after the window's last level as the next level."""
        end = self._num_nodes
        last_level = slice(end - len(self._levels[-1]), end)
        next_level = list(result.verdict.next_ids[last_level])
        if not state.sampler.sampling.is_greedy:  # the window is greedy at every temperature
            next_level = state.sampler.best_ids(result.forward.logits[last_level]).tolist()
        if not self._is_filled:
            # The window shrinks by one column per step until it has all levels.
            is_first = len(self._levels) == 1
            self._levels = [level[1:] for level in self._levels]
            self._levels.append(next_level if is_first else next_level[1:])
            return
        root = state.token_ids[-len(result.verdict.token_ids) - 1]
        self._fill_pool(root, next_level)
        _, second, *later = self._levels
        self._levels = [second[1:], *later, next_level]

    def _fill_pool(self, root: int, next_level: list[int]) -> None:
        """Add each column's n-gram to the pool, under the token above the column.

        A column has a token of each level, and ends with a token of `next_level`. If a token has
        more n-grams than `guesses`, its oldest n-gram is dropped.
        """
        first, *later = self._levels
        above_columns = [root, *first]
        for token_above, *column in zip(above_columns, *later, next_level, strict=True):
            ngram = tuple(column)
            ngrams = self._pool.setdefault(token_above, OrderedDict())  # oldest first
            ngrams[ngram] = None
            ngrams.move_to_end(ngram)
            if len(ngrams) > self._options.guesses:
                ngrams.popitem(last=False)


def _add_trie(tokens: list[int], parents: list[int], ngrams: Iterable[tuple[int, ...]]) -> None:
    """Append the n-grams below node 0 as a trie, because siblings must carry distinct tokens."""
    node_of: dict[tuple[int, ...], int] = {(): 0}  # by the tokens on its path
    for ngram in ngrams:
        for end in range(1, len(ngram) + 1):
            path = ngram[:end]
            if path not in node_of:
                node_of[path] = len(tokens)
                tokens.append(path[-1])
                parents.append(node_of[path[:-1]])


def _add_window(tokens: list[int], parents: list[int], levels: list[list[int]]) -> None:
    """Append the window's levels: the first as a chain below node 0, others below their columns."""
    first_level, *later_levels = levels
    nodes_above = [0]  # the node above each column
    for token in first_level:
        parents.append(nodes_above[-1])
        nodes_above.append(len(tokens))
        tokens.append(token)
    for level in later_levels:
        nodes = []
        for token, parent in zip(level, nodes_above, strict=False):
            parents.append(parent)
            nodes.append(len(tokens))
            tokens.append(token)
        nodes_above = nodes


METHOD = Method(
    name="lookahead",
    title="Lookahead",
    summary="drafts n-grams that Jacobi iteration in a window collects",
    paper="Fu et al. 2024, Lookahead Decoding",
    options=Options,
    build=Lookahead,
    paper_order=3,
    colour="#86B9A3",
    slow_on_cpu="each step also computes its window, which is never accepted",
)
