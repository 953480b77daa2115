"""Bigram drafting: after a token comes what came after it the last time."""

from dataclasses import dataclass, field
from itertools import pairwise

from specbench.engine.drafter import BuildContext, Drafter, Method, State
from specbench.engine.target import Forward
from specbench.engine.tree import DraftTree


@dataclass(frozen=True, slots=True)
class Options:
    """Options of bigram drafting."""

    num_tokens: int = field(default=4, metadata={"help": "tokens drafted a step", "min": 1})


class Bigram(Drafter):
    """Follows a table from each token of prompt and output to its latest successor."""

    def __init__(self, options: Options, context: BuildContext) -> None:
        self._options = options
        self._next: dict[int, int] = {}
        self._num_seen = 0

    def start(self, state: State, prefill: Forward) -> None:
        self._next.clear()
        self._num_seen = 0

    def propose(self, state: State) -> DraftTree:
        fresh = state.token_ids[max(self._num_seen - 1, 0) :]
        self._next.update(pairwise(fresh))
        self._num_seen = len(state.token_ids)
        draft_ids: list[int] = []
        token = state.pending
        while len(draft_ids) < self._options.num_tokens and token in self._next:
            token = self._next[token]
            draft_ids.append(token)
        return state.chain(draft_ids)


METHOD = Method(
    name="bigram",
    title="Bigram",
    summary="drafts what came after each token the last time",
    paper="an example",
    options=Options,
    build=Bigram,
)
