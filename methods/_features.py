"""Base classes of drafters that read the target's states. Some have a cache of their own."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from specbench.engine.accept import AcceptedPath
from specbench.engine.buckets import buckets
from specbench.engine.drafter import BuildContext, Drafter, State, StepResult
from specbench.engine.execution import Execution, Function
from specbench.engine.layers.operands import CacheSpan
from specbench.engine.target import Forward, Needs
from specbench.engine.tree import padded_path_length
from specbench.methods._draft_stack import DraftStack


class FeatureModel:
    """Decoder layers with their own cache, which read features of the target."""

    layout: str
    """The published layout of the checkpoint."""
    notes: tuple[str, ...] = ()
    """Notes on the checkpoint that the report shows as warnings."""
    facts: tuple[str, ...] = ()
    """Neutral facts about the checkpoint."""
    num_positions = 0
    """Number of positions that the checkpoint was made for, or 0 if it is unknown."""
    has_guessed_layers = False
    """True if a formula chose the target layers that it reads."""
    needs: Needs
    stack: DraftStack

    def reserve(self, num_tokens: int) -> bool:
        """Make room for `num_tokens` positions. Returns True if the existing rows moved."""
        return self.stack.reserve(num_tokens)

    def features(self, captured: Sequence[Tensor], rows: Tensor) -> Tensor:
        """Join `rows` [n] of the captured states, side by side, into features [n, feature]."""
        by_layer = [states.index_select(0, rows) for states in captured]  # [n, hidden] each
        return by_layer[0] if len(by_layer) == 1 else torch.cat(by_layer, -1)

    def prefill(self, features: Tensor, tokens: Tensor) -> None:
        """Begin a sequence with features [n, feature]. `tokens` [n] are the tokens after them."""
        raise NotImplementedError


class PathDrafter(Drafter):
    """Keeps the target's states on the last accepted path until a draft reads them."""

    _execution: Execution
    _prompt_size: Callable[[int], int | None]
    """`Target.prompt_size`."""
    _num_scratch: int
    """Most rows of a draft in the drafter's own cache."""
    _captured: tuple[Tensor, ...]
    """The states of the last forward. Each layer has a tensor [nodes, hidden]."""
    _missing: AcceptedPath
    """The path of the states that no draft has read yet, as rows of `_captured`."""

    def start(self, state: State, prefill: Forward) -> None:
        # The prefill has the states of all tokens of the prompt, or only of the last token.
        last = state.num_committed - 1 if self.needs.all_prompt_positions else 0
        self._captured = tuple(states[last : last + 1] for states in self.captured(prefill))
        self._missing = AcceptedPath.single(state.pending, self._captured[0].device)

    def observe(self, state: State, result: StepResult) -> None:
        self._captured = self.captured(result.forward)
        self._missing = result.accepted
        padded_length = result.tree.layout.padded_path_length
        if self._execution.is_static and len(self._missing.path) < padded_length:
            self._missing = self._missing.padded(padded_length)

    def captured(self, forward: Forward) -> tuple[Tensor, ...]:
        """The states of a forward that drafts read. Each tensor is [nodes, hidden]."""
        if self.needs.layer_inputs:
            return tuple(forward.layer_inputs[layer] for layer in self.needs.layer_inputs)
        assert forward.hidden is not None
        return (forward.hidden,)

    def draft_inputs(self, state: State) -> tuple[Tensor, ...]:
        """Inputs of a draft: the committed length [], the missing path, and captured states.

        Their order is end, path, token ids, last, and then the states of each layer.
        """
        end = torch.full((), state.num_committed, device=self._missing.last.device)
        return end, *self._missing, *self._captured

    def cache_span(self, state: State) -> CacheSpan:
        """Rows of the drafter's own cache that attention reads."""
        return self._execution.cache_span(state.num_committed, self._num_scratch)

    def read_prompt(self, state: State, prefill: Forward, read: Function) -> None:
        """Call `read` with the states of the prompt's first n tokens, and the token after each [n].

        The first draft reads the last token's states, so they are left out here. A graph reads
        all padded states, and drafts overwrite the rows that are not committed.
        """
        num_prompt = state.num_committed
        padded_size = self._prompt_size(num_prompt)  # None: the prompt was not padded
        num_read = padded_size or num_prompt - 1
        if num_read == 0:
            return
        # [num_read] the token after each token that is read, padded with zeros
        token_ids = [*state.token_ids[1:], *[0] * (num_read - num_prompt)][:num_read]
        tokens = torch.tensor(token_ids, device=state.sampler.generator.device)
        run = self._execution.wrap(read) if padded_size else read
        run(tokens, *self.captured(prefill))

    def make_room(self, state: State, reserve: Callable[[int], bool]) -> None:
        """Call `reserve` to make room in the drafter's own cache for the whole completion."""
        most_committed = state.num_committed + state.remaining
        span = self._execution.cache_span(most_committed, self._num_scratch)
        if reserve(span.rows_with(self._num_scratch)):  # graphs still use the old rows
            self._execution.discard_graphs()


ModelT = TypeVar("ModelT", bound=FeatureModel)


class FeatureDrafter(PathDrafter, Generic[ModelT]):
    """Feeds features of every committed token to a model with a cache of its own.

    `num_scratch` bounds the rows of a draft in the model's cache. `depth` bounds the depth of the
    drafter's own trees.
    """

    def __init__(self, model: ModelT, context: BuildContext, num_scratch: int, depth: int) -> None:
        self.model = model
        self.needs = model.needs
        self.weights_layout, self.weights_notes = model.layout, model.notes
        self.weights_facts, self.num_positions = model.facts, model.num_positions
        self.has_guessed_layers = model.has_guessed_layers
        self._execution = context.target.execution
        self._prompt_size = context.target.prompt_size
        longest = padded_path_length(max(depth, context.skipped_depth))
        self._num_scratch = max(num_scratch, longest)

    def start(self, state: State, prefill: Forward) -> None:
        """Make room in the model's cache, and let it read the prompt's features."""
        super().start(state, prefill)
        self.make_room(state, self.model.reserve)
        self.read_prompt(state, prefill, self._read)

    def lengths_to_record(self, num_tokens: int) -> list[int]:
        """A number of committed tokens for each size of the model's cache, the largest first.

        `num_tokens` bounds the tokens of a sequence.
        """
        sizes = buckets(num_tokens + self._num_scratch)
        # A size is read with up to size - num_scratch committed tokens.
        return [max(2, min(size - self._num_scratch, num_tokens - 1)) for size in reversed(sizes)]

    def _read(self, tokens: Tensor, *captured: Tensor) -> tuple[Tensor, ...]:
        """Begin a sequence with the first n rows of `captured`, which `tokens` [n] follow."""
        rows = torch.arange(tokens.shape[0], device=tokens.device)
        self.model.prefill(self.model.features(captured, rows), tokens)
        return ()
