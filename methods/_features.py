"""The base of drafters whose own layers read features of every committed token."""

from collections.abc import Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from specbench.engine.accept import AcceptedPath
from specbench.engine.drafter import Drafter, State, StepResult
from specbench.engine.execution import Execution
from specbench.engine.layers.operands import CacheSpan
from specbench.engine.target import Forward, Needs
from specbench.engine.tree import padded_path_length
from specbench.methods._draft_stack import DraftStack


class FeatureModel:
    """Decoder layers with their own cache, which read features of the target."""

    layout: str
    notes: tuple[str, ...] = ()
    """Notes on its checkpoint that the report shows."""
    has_guessed_layers = False
    needs: Needs
    stack: DraftStack

    def reserve(self, num_tokens: int) -> bool:
        """Make room for `num_tokens` positions; True if the existing rows moved."""
        return self.stack.reserve(num_tokens)

    def captured(self, forward: Forward) -> tuple[Tensor, ...]:
        """Parts of a forward that features are built from, one row per node."""
        if self.needs.layer_inputs:
            return tuple(forward.layer_inputs[layer] for layer in self.needs.layer_inputs)
        assert forward.hidden is not None
        return (forward.hidden,)

    def features(self, captured: Sequence[Tensor], rows: Tensor) -> Tensor:
        """Features [n, feature] at `rows` [n] of the captured states."""
        parts = [part.index_select(0, rows) for part in captured]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def prefill(self, features: Tensor, tokens: Tensor) -> None:
        """Begin a sequence with features [n, feature]; `tokens` [n] follow them."""
        raise NotImplementedError


ModelT = TypeVar("ModelT", bound=FeatureModel)


class FeatureDrafter(Drafter, Generic[ModelT]):
    """Keeps the features of the last step's accepted path, which its model has not read yet.

    `num_scratch` bounds the rows of a draft in the model's cache, `depth` the depth of all
    trees.
    """

    def __init__(self, model: ModelT, execution: Execution, num_scratch: int, depth: int) -> None:
        self.model = model
        self.needs = model.needs
        self.weights_layout, self.weights_notes = model.layout, model.notes
        self.has_guessed_layers = model.has_guessed_layers
        self._execution = execution
        self._num_scratch = max(num_scratch, padded_path_length(depth))
        self._captured: tuple[Tensor, ...]  # of the last forward
        self._missing: AcceptedPath  # features not yet read, as rows of `_captured`

    def start(self, state: State, prefill: Forward) -> None:
        model = self.model
        cache_span = self._execution.cache_span(
            state.num_committed + state.remaining, self._num_scratch
        )
        if model.reserve(cache_span.rows_with(self._num_scratch)):
            self._execution.discard_graphs()
        tokens = torch.tensor(state.token_ids[1:], device=state.sampler.generator.device)
        captured, rows = model.captured(prefill), torch.arange(len(tokens), device=tokens.device)
        if len(tokens) > 1:
            model.prefill(model.features(captured, rows[:-1]), tokens[:-1])
        self._captured = tuple(part[-1:] for part in captured)
        self._missing = AcceptedPath.single(state.pending, tokens.device)

    def observe(self, state: State, result: StepResult) -> None:
        self._captured = self.model.captured(result.forward)
        self._missing = result.accepted
        if self._execution.is_static:
            self._missing = self._missing.padded(result.tree.layout.padded_path_length)

    def draft_inputs(self, state: State) -> tuple[Tensor, ...]:
        """Inputs of a draft: the committed length, the missing path, and captured states."""
        end = torch.full((), state.num_committed, device=self._missing.last.device)
        return end, *self._missing, *self._captured

    def cache_span(self, state: State) -> CacheSpan:
        """Rows of the model's cache that attention reads."""
        return self._execution.cache_span(state.num_committed, self._num_scratch)
