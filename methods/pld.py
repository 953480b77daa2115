"""Prompt lookup decoding: the continuation of an earlier occurrence of the last tokens."""

from collections.abc import Sequence
from dataclasses import dataclass

from specbench.engine.drafter import BuildContext, Drafter, Method, State
from specbench.engine.method_options import MethodOptions
from specbench.engine.target import Forward
from specbench.engine.tree import DraftTree
from specbench.errors import UserError
from specbench.types import option


@dataclass(frozen=True, slots=True)
class Options(MethodOptions):
    """Options of prompt lookup decoding."""

    ngram: int = option(3, "longest n-gram looked up", min=1)
    num_tokens: int = option(10, "tokens copied as the draft", min=1)
    min_ngram: int = option(1, "shortest n-gram looked up", min=1)
    allow_shorter: bool = option(False, "copy fewer than num_tokens at the end of the text")

    def most_nodes(self) -> int:
        return self.num_tokens + 1

    def __post_init__(self) -> None:
        if self.min_ngram > self.ngram:
            raise UserError(
                f"pld cannot look up n-grams of {self.min_ngram} to {self.ngram} tokens.",
                f"Give ngram={self.min_ngram} or more, or a smaller min_ngram.",
            )


class PromptLookup(Drafter):
    """Looks up the last n tokens in prompt and output: longest n first, earliest match first.

    A match counts only if its continuation is `num_tokens` long, as in Spec-Bench's model/pld.
    With `allow_shorter` any continuation counts, as in vLLM's "ngram" method. The first
    occurrence of an n-gram has the longest continuation, so a table from each n-gram to its
    first occurrence answers each step in constant time.

    Deviation: without a match, the step runs only on the pending token. Spec-Bench drafts a
    dummy token (id 100).
    """

    profile = "text"
    has_chains = True

    def __init__(self, options: Options, context: BuildContext) -> None:
        self._options = options
        self._shortest = 1 if options.allow_shorter else options.num_tokens
        self.tree_sizes = {1, *range(1 + self._shortest, 2 + options.num_tokens)}
        self._first_end: dict[tuple[int, ...], int] = {}
        self._num_indexed = 0

    def start(self, state: State, prefill: Forward) -> None:
        self._first_end.clear()
        self._num_indexed = 0

    def propose(self, state: State) -> DraftTree:
        """A chain of the tokens after the longest n-gram that is followed by enough tokens."""
        options, tokens = self._options, state.token_ids
        self._index(tokens)
        longest = min(options.ngram, len(tokens))
        for n in range(longest, options.min_ngram - 1, -1):
            end = self._first_end[tuple(tokens[-n:])]
            if end + self._shortest <= len(tokens):
                return state.chain(tokens[end : end + options.num_tokens])
        return state.chain()

    def _index(self, tokens: Sequence[int]) -> None:
        """Add every n-gram that ends in a new token."""
        options = self._options
        for end in range(self._num_indexed + 1, len(tokens) + 1):
            longest = min(options.ngram, end)
            for n in range(options.min_ngram, longest + 1):
                self._first_end.setdefault(tuple(tokens[end - n : end]), end)
        self._num_indexed = len(tokens)


METHOD = Method(
    name="pld",
    title="PLD",
    summary="prompt lookup: drafts the continuation of an earlier occurrence of the last tokens",
    paper="Saxena 2023, Prompt Lookup Decoding",
    options=Options,
    build=PromptLookup,
    paper_order=2,
    colour="#D9D137",
)
