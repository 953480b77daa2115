"""Suffix decoding: continuations of the last tokens in prompt and output, by their frequency."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal, NamedTuple

from specbench.engine.drafter import BuildContext, Drafter, Method, State
from specbench.engine.method_options import MethodOptions
from specbench.engine.target import Forward
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.methods._occurrences import SEPARATOR, Occurrences
from specbench.types import option


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """Options of suffix decoding."""

    depth: int = option(24, "longest match with its continuation, in tokens", min=2)
    num_tokens: int = option(24, "most tokens drafted", min=1)
    factor: float = option(1.0, "draft tokens per matched token", min=0)
    offset: float = option(0.0, "draft tokens in addition", min=0)
    min_prob: float = option(0.1, "smallest probability of a drafted path", min=0)
    shape: Literal["chain", "tree"] = option(
        "chain", "draft the most likely continuation, or several"
    )
    scope: Literal["request", "run"] = option(
        "request", "run: also look in the outputs of earlier prompts"
    )

    def most_nodes(self) -> int:
        return self.num_tokens + 1


class Draft(NamedTuple):
    """Draft tokens, their parents (0 is the root) and the sum of their probabilities."""

    token_ids: list[int]
    parents: list[int]
    score: float


class Suffix(Drafter):
    """Matches the last tokens at every length with earlier text, and drafts what followed.

    The probability of a continuation is its share of the occurrences. A match of each length gives
    a draft. The draft with the largest sum of probabilities is used, and on a tie the draft of the
    longer match. With `scope=run` a second text holds the outputs of earlier prompts and of this
    prompt.

    Source: Oliaro et al. 2024, "SuffixDecoding: Extreme Speculative Decoding for Emerging AI
    Applications"; behaviour checked against ArcticInference's suffix_tree.cc; vLLM's defaults.

    Deviation: an index of the tokens' positions replaces the suffix trees. It finds the same
    matches. Outputs are never evicted (vLLM keeps the outputs of 10,000 requests).
    """

    def __init__(self, options: Options, context: BuildContext) -> None:
        self._options = options
        self.profile = "text" if options.scope == "request" else None
        self._device = context.target.device
        self.tree_depth = min(options.num_tokens, options.depth - 1)
        self.has_chains = options.shape == "chain"
        most_drafted = self.tree_depth if self.has_chains else options.num_tokens
        self.tree_sizes = range(1, 2 + most_drafted)
        self._request = Occurrences()
        self._outputs = Occurrences()
        self._num_kept = 0
        self._state: State

    def start(self, state: State, prefill: Forward) -> None:
        self._state = state
        self._request = Occurrences()
        self._request.extend(state.request.prompt_ids)
        self._outputs.cut(self._num_kept)
        self._outputs.extend([SEPARATOR])

    def remember(self) -> None:
        self._read()
        self._num_kept = len(self._outputs.token_ids)

    def forget(self) -> None:
        self._outputs.cut(0)
        self._num_kept = 0

    def _read(self) -> None:
        """Add the tokens emitted since the last step."""
        emitted = self._state.token_ids[len(self._request.token_ids) :]
        self._request.extend(emitted)
        if self._options.scope == "run":
            self._outputs.extend(emitted)

    def propose(self, state: State) -> DraftTree:
        """Propose the best draft from this request's earlier tokens, or from all outputs."""
        self._read()
        context = state.token_ids[-self._options.depth :]
        best = self._best(self._request, context)
        if self._options.scope == "run":
            of_outputs = self._best(self._outputs, context)
            if of_outputs.score > best.score:
                best = of_outputs
        if self._options.shape == "chain" or not best.token_ids:
            return state.chain(best.token_ids)
        layout = TreeLayout.from_parents([0, *best.parents], self._device)
        return DraftTree(state.chain(best.token_ids).tokens, layout, layout.num_nodes)

    def _best(self, earlier: Occurrences, context: Sequence[int]) -> Draft:
        """The draft with the highest score, from all matches of the last tokens of `context`."""
        best = Draft([], [], 0.0)
        for length, ends in enumerate(earlier.ends(context[1:]), start=1):
            draft = self._draft(earlier.token_ids, ends, length)
            if draft.score >= best.score:
                best = draft
        return best

    def _draft(self, token_ids: Sequence[int], ends: list[int], length: int) -> Draft:
        """The most likely continuations at `ends` of a match of `length` tokens, best first."""
        options = self._options
        draft = Draft([], [], 0.0)
        wanted = int(length * options.factor + options.offset + 1e-6)
        most_tokens = min(options.num_tokens, wanted)
        score = 0.0
        num_pushed = 0
        # Candidates: (-probability, order, token, parent node, depth, ends after the token).
        heap: list[tuple[float, int, int, int, int, list[int]]] = []
        node, depth, prob = 0, length, 1.0  # the node whose successors are pushed next
        while len(draft.token_ids) < most_tokens:
            if depth < options.depth:
                for token, next_ends in self._successors(token_ids, ends):
                    next_prob = prob * len(next_ends) / len(ends)
                    if next_prob >= options.min_prob:
                        num_pushed += 1
                        candidate = (-next_prob, num_pushed, token, node, depth + 1, next_ends)
                        heappush(heap, candidate)
            if not heap:
                break
            negative_prob, _, token, parent, depth, ends = heappop(heap)
            prob = -negative_prob
            draft.token_ids.append(token)
            draft.parents.append(parent)
            score += prob
            node = len(draft.token_ids)
        return draft._replace(score=score)

    def _successors(
        self, token_ids: Sequence[int], ends: list[int]
    ) -> Iterator[tuple[int, list[int]]]:
        """The tokens at `ends`, each with the ends after it, the most frequent token first.

        Among equally frequent tokens, the one whose last occurrence is earliest comes first.
        """
        next_ends: dict[int, list[int]] = {}  # ends after each next token
        for end in ends:
            if end < len(token_ids) and token_ids[end] != SEPARATOR:
                next_ends.setdefault(token_ids[end], []).append(end + 1)
        ranked = sorted(next_ends.items(), key=_most_frequent_first)
        yield from ranked[: 1 if self._options.shape == "chain" else None]


def _most_frequent_first(successor: tuple[int, list[int]]) -> tuple[int, int]:
    """Sort key of a token and the ends after it."""
    _, ends = successor
    return -len(ends), ends[-1]


METHOD = Method(
    name="suffix",
    title="Suffix",
    summary="suffix decoding: drafts the most frequent continuation of the last tokens",
    paper="Oliaro et al. 2024, SuffixDecoding",
    options=Options,
    build=Suffix,
    colour="#A16BA3",
)
