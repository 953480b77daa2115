"""The target: a transformers model that runs over trees of tokens.

Only this module, `kv` and `stack` use the model API of transformers. A drafter that is a language
model itself (SpS) also uses a `Target`.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from specbench.engine import model_parts
from specbench.engine.execution import Execution, Function
from specbench.engine.forward import Forward as Forward
from specbench.engine.forward import Needs as Needs
from specbench.engine.kv import KVCache, layer_shapes
from specbench.engine.layers.models import unsupported_reason
from specbench.engine.layers.operands import CacheSpan, TreeMask, dense_mask
from specbench.engine.layers.stack import Stack
from specbench.engine.layers.torch_attention import attention_kinds, windowed
from specbench.engine.sampler import Sampler
from specbench.engine.state_hooks import States, keep_states
from specbench.engine.tree import DraftTree
from specbench.types import Sampling


class Target:
    """A causal language model with one committed sequence, and room for a tree after it.

    Our own stack runs the models of `layers.models`. Other models run their own forward, for the
    reason in `unfused_reason`. Their steps are captured unless there is an `eager_reason`.
    """

    def __init__(self, model: PreTrainedModel, execution: Execution | None = None) -> None:
        self.model = model.eval()
        self.execution = execution or Execution()
        self.config = model.config.get_text_config()
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.dtype: torch.dtype = model.dtype
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]
        self.context: int = model_parts.context_length(self.config)
        self._kinds = attention_kinds(self.config)
        self.cache = KVCache(layer_shapes(model, self.device))
        self.unfused_reason = unsupported_reason(model)
        self._stack = Stack(model, self.execution.ops) if self.unfused_reason is None else None
        self.devices = tuple(dict.fromkeys(parameter.device for parameter in model.parameters()))
        self.eager_reason = self.unfused_reason if len(self.devices) > 1 else None
        self._samplers: dict[Sampling, Sampler] = {}
        self._prepare()

    def _prepare(self) -> None:
        self._step = self.execution.wrap(self._tree_step)
        self._joined_step = self.execution.wrap(self._step_then)
        self._needs = self._step_needs = Needs()
        self._captured: States = {}

    def first_layers(self, num_layers: int) -> Target:
        """A model of only the first layers of this one, on the same cache.

        Both models share the rows of committed tokens. Before the whole model runs, crop the rows
        that the first layers have appended.
        """
        shallow = copy.copy(self)
        shallow.model = model_parts.with_first_layers(self.model, num_layers)
        shallow._stack = self._stack and self._stack.first_layers(num_layers)
        shallow._prepare()
        return shallow

    @property
    def has_recorded_steps(self) -> bool:
        """True if the execution records its steps."""
        return self.execution.is_static and not self.eager_reason

    def prompt_size(self, num_tokens: int) -> int | None:
        """Number of tokens that a prompt is padded to for a recorded step, or None."""
        return None if self.eager_reason else self.execution.prompt_size(num_tokens)

    @property
    def max_exact_rows(self) -> int:
        """Trees of up to this many nodes all give a node's logits the same bits. 0 if none do."""
        return self.execution.ops.max_exact_rows if self._stack else 0

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder layers, in order."""
        return model_parts.decoder_layers(self.model)

    @contextmanager
    def capture(self, needs: Needs) -> Iterator[None]:
        """Let forwards return the outputs in `needs` while the block runs."""
        handles = [] if self._stack else keep_states(self.model, needs, self._captured)
        self._needs = needs
        self._step_needs = replace(needs, all_prompt_positions=False)  # only prefills have prompts
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._needs = self._step_needs = Needs()
            self._captured.clear()

    def prefill(self, prompt_ids: Sequence[int], num_new: int = 0) -> Forward:
        """Start a new sequence with `prompt_ids`, and reserve room for `num_new` more tokens.

        Returns the logits [1, vocab] of the last position. Hidden states and layer inputs belong to
        that position too. With `Needs.all_prompt_positions`, they belong to the whole prompt,
        padded to its `prompt_size`. With captured graphs, all are valid until the next forward.
        """
        n = len(prompt_ids)
        self.cache.reset()
        self.reserve(n + num_new)
        size = self.prompt_size(n)
        if size is None:
            forward = self._plain_prefill(prompt_ids)
        else:
            forward = self._padded_prefill(prompt_ids, size)
        self.cache.length = n
        logits = forward.logits[:]  # a view is copied; the output would need recordings of its own
        if self._needs.all_prompt_positions:
            return replace(forward, logits=logits)
        hidden = None if forward.hidden is None else forward.hidden[-1:]
        layer_inputs = {layer: states[-1:] for layer, states in forward.layer_inputs.items()}
        return Forward(logits, hidden, layer_inputs)

    def _plain_prefill(self, prompt_ids: Sequence[int]) -> Forward:
        """Run over the prompt without padding. Only the logits are cut to the last position."""
        ids = torch.tensor(prompt_ids, device=self.device)
        rows = torch.arange(len(prompt_ids), device=self.device)
        positions = rows.clamp(max=self.context - 1)  # a draft model may have a shorter context
        if self._stack is None:
            return self._run_model(ids, positions, None, 1)
        needs = self._needs
        cached = self.cache.rows
        hidden, inputs = self._stack(ids, cached, rows, positions, None, needs.layer_inputs)
        logits = self._stack.logits(hidden[-1:])
        return Forward(logits, hidden if needs.hidden else None, inputs)

    def _padded_prefill(self, prompt_ids: Sequence[int], size: int) -> Forward:
        """Run over the prompt and its padding, as a step over a chain of `size` tokens.

        The padding follows the prompt, so no token of the prompt sees it. The logits are of the
        prompt's last position only, as are all outputs without `Needs.all_prompt_positions`.
        """
        n = len(prompt_ids)
        self.reserve(size)
        tokens = torch.tensor([*prompt_ids, *[0] * (size - n)], device=self.device)
        last = torch.full((1,), n - 1, device=self.device)
        span = CacheSpan(size, is_exact=False)
        return self._run_step(DraftTree.chain(tokens), span, self._needs, last)

    def extend(self, tokens: Tensor) -> Tensor:
        """Append and commit `tokens` [n]. Returns the logits [vocab] of the last position."""
        if self.cache.length == 0:
            return self.prefill(tokens.tolist()).logits[0]
        tree = DraftTree.chain(tokens)
        logits = self.forward(tree).logits[-1]
        self.commit(range(tree.num_nodes))
        return logits

    def forward(self, tree: DraftTree) -> Forward:
        """Run once over the tree. Each node sees the committed tokens and its ancestors.

        Commits nothing: the same call on the same state gives the same result.
        """
        n = tree.num_nodes
        length = self.cache.length
        cache_span = self.execution.cache_span(length, n)
        self.reserve(cache_span.rows_with(n))
        if self._stack is None and (self.eager_reason or not self.execution.is_static):
            bias = tree.layout.bias(self.dtype)
            start = torch.full((), length, device=self.device)
            positions = (tree.layout.depths + length).clamp_(max=self.context - 1)
            mask = windowed(dense_mask(start, bias, length + n), positions, start, self._kinds)
            return self._run_model(tree.tokens, positions, mask, 0)
        return self._run_step(tree, cache_span, self._step_needs)

    def _run_step(
        self, tree: DraftTree, cache_span: CacheSpan, needs: Needs, *last: Tensor
    ) -> Forward:
        """Run `_tree_step` after the committed tokens, over a tree or, given `last`, a prompt."""
        layout = tree.layout
        start = torch.full((), self.cache.length, device=self.device)
        inputs = tree.tokens, layout.depths, layout.bias(self.dtype), start, *last
        logits, *captured = self._step(*inputs, cache_span=cache_span, needs=needs)
        hidden = captured.pop(0) if needs.hidden else None
        layer_inputs = dict(zip(needs.layer_inputs, captured, strict=True))
        return Forward(logits, hidden, layer_inputs)

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes of `path` (root first) from the last `forward`, and drop the others."""
        self.cache.commit(path)

    def forward_then(
        self, tree: DraftTree, then: Function, *more: Tensor, **named: Any
    ) -> tuple[Forward, Sequence[Tensor]]:
        """Run `forward` and then `then` in one recording. Needs `has_recorded_steps`.

        `then` gets the logits, the step's inputs (tokens, depths, bias, start), `more` and `named`.
        """
        layout, needs = tree.layout, self._step_needs
        cache_span = self.execution.cache_span(self.cache.length, tree.num_nodes)
        self.reserve(cache_span.rows_with(tree.num_nodes))
        start = torch.full((), self.cache.length, device=self.device)
        inputs = (tree.tokens, layout.depths, layout.bias(self.dtype), start, *more)
        step = partial(self._joined_step, cache_span=cache_span, needs=needs, then=then)
        logits, *others = step(*inputs, **named)
        hidden = others.pop(0) if needs.hidden else None
        layer_inputs = {layer: others.pop(0) for layer in needs.layer_inputs}
        return Forward(logits, hidden, layer_inputs), others

    def crop(self, length: int) -> None:
        """Go back to the first `length` committed tokens."""
        self.cache.crop(length)

    def reserve(self, num_tokens: int) -> None:
        """Make room for a sequence of `num_tokens` tokens."""
        if self.cache.reserve(num_tokens):
            self.execution.discard_graphs()
        if self._stack:
            self._stack.reserve(min(self.cache.capacity, self.context))

    def sampler(self, sampling: Sampling, seed: int) -> Sampler:
        """The sampler for these settings on the target's device, with a new seed."""
        sampler = self._samplers.setdefault(
            sampling, Sampler(sampling, self.device, ops=self.execution.ops)
        )
        sampler.generator.manual_seed(seed)
        return sampler

    def _tree_step(
        self, tokens: Tensor, depths: Tensor, bias: Tensor, start: Tensor, *last: Tensor,
        cache_span: CacheSpan, needs: Needs,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Run over a tree after `start` [] tokens. Returns the logits, then the outputs in `needs`.

        If the `last` row [1] of a prompt is given, the logits are of this row only, as are the
        other outputs, unless they are needed at all positions of the prompt.
        """
        n = tokens.shape[0]
        rows = start + torch.arange(n, device=self.device)
        # A node beyond the context is never emitted, but its position must be valid.
        positions = (depths + start).clamp_(max=self.context - 1)
        if self._stack is None:
            span = cache_span.rows_with(n)
            mask = windowed(dense_mask(start, bias, span), positions, start, self._kinds)
            with self.cache.fixed(rows, span):
                forward = self._run_model(tokens, positions, mask, *last or (0,))
            logits, hidden, inputs = forward.logits, forward.hidden, forward.layer_inputs
        else:
            tree_mask = TreeMask(start, bias, cache_span, positions)
            hidden, inputs = self._stack(
                tokens, self.cache.rows, rows, positions, tree_mask, needs.layer_inputs
            )
            logits = self._stack.logits(hidden.index_select(0, *last) if last else hidden)
        captured = [inputs[layer] for layer in needs.layer_inputs]
        if needs.hidden:
            assert hidden is not None
            captured.insert(0, hidden)
        if last and not needs.all_prompt_positions:
            captured = [states.index_select(0, *last) for states in captured]
        return (logits, *captured)

    def _step_then(
        self, *inputs: Tensor, cache_span: CacheSpan, needs: Needs, then: Function, **named: Any
    ) -> tuple[Tensor, ...]:
        """Run `_tree_step` over the first inputs, then `then` over its logits and all inputs."""
        outputs = self._step(*inputs[:4], cache_span=cache_span, needs=needs)
        return *outputs, *then(outputs[0], *inputs, **named)

    def _run_model(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor | dict[str, Tensor] | None,
        logits_to_keep: int | Tensor,
    ) -> Forward:
        """Run the model's own forward over tokens [n]. Without a mask it is a prefill.

        `logits_to_keep` is the number of last rows with logits (0 for all rows), or their indices.
        """
        out = self.model(
            input_ids=ids[None],
            position_ids=positions[None],
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=logits_to_keep,
        )
        hidden = self._captured["hidden"][0] if self._needs.hidden else None
        states = {layer: self._captured[layer] for layer in self._needs.layer_inputs}
        layer_inputs = model_parts.rows_of(self.model, states, self.device)
        return Forward(out.logits[0], hidden, layer_inputs)
