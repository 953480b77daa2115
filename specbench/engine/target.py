"""The target: a transformers model that runs over trees of tokens.

With `kv` and `stack` the only room that touches transformers' model API. A drafter that is itself a
language model (SpS) drives one of these too. Knows nothing of acceptance or time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from specbench.engine.accept import Accepted, Sampler, Verdict
from specbench.engine.execution import Eager, Execution
from specbench.engine.kv import KVCache, LayerShape
from specbench.engine.ops import Place, Reach, View
from specbench.engine.stack import Stack, why_not
from specbench.engine.tree import DraftTree, TreeLayout, mask_behind
from specbench.errors import CheckpointError
from specbench.types import Sampling


@dataclass(frozen=True, slots=True)
class Needs:
    """What a drafter wants to see of the target's forwards.

    `hidden`: the final hidden states, behind the last norm. `layer_inputs`: the inputs of these
    decoder layers. `all_prompt_positions`: of every prompt token, not only of the last one.
    """

    hidden: bool = False
    layer_inputs: tuple[int, ...] = ()
    all_prompt_positions: bool = False


@dataclass(frozen=True, slots=True)
class Forward:
    """What one target forward produced, a row for each node (prefill: see `Target.prefill`)."""

    logits: Tensor  # [nodes, vocab]
    hidden: Tensor | None = None  # [nodes, hidden]
    layer_inputs: dict[int, Tensor] = field(default_factory=dict)  # layer -> [nodes, hidden]


class Target:
    """A causal language model with one committed sequence and room for a tree behind it.

    A Llama-family model is run by the engine's own stack over its weights, any other one by its
    own forward; `why_not_fused` says why.
    """

    def __init__(self, model: PreTrainedModel, execution: Execution | None = None) -> None:
        self.model = model.eval()
        self.execution = execution or Eager()
        self.config = model.config.get_text_config()
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.dtype: torch.dtype = model.dtype
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]
        self.context: int = _context_length(self.config)
        self.cache = KVCache(_layer_shapes(model, self.device))
        self.why_not_fused = why_not(model)
        self._stack = None if self.why_not_fused else Stack(model, self.execution.ops)
        self._step = self.execution.wrap(self._tree_step)
        self._follow = self.execution.wrap(self._followed)
        self._samplers: dict[Sampling, Sampler] = {}
        self._needs = Needs()
        self._seen: dict[int | str, Tensor] = {}

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder layers, in order."""
        return decoder_layers(self.model)

    @contextmanager
    def watched(self, needs: Needs) -> Iterator[None]:
        """Collect what `needs` names while the block runs."""
        handles = [] if self._stack else self._hooks(needs)
        self._needs = needs
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._needs = Needs()
            self._seen.clear()

    def prefill(self, prompt_ids: Sequence[int], room: int = 0) -> Forward:
        """Start a new sequence with `prompt_ids`, and `room` for as many tokens behind them.

        Returns the last position's logits [1, vocab]; hidden states and layer inputs are of that
        position too, or of every prompt token if the watched `Needs` ask for it.
        """
        n = len(prompt_ids)
        self.cache.reset()
        self.reserve(n + room)
        ids, at = torch.tensor(prompt_ids, device=self.device), torch.arange(n, device=self.device)
        needs = self._needs
        if self._stack is None:
            forward = self._run_model(ids, at, None)
        else:
            place = Place(at, self._stack.rotary.turn(at))
            hidden, inputs = self._stack(ids, self.cache, place, None, needs.layer_inputs)
            forward = Forward(self._head(hidden[-1:]), hidden if needs.hidden else None, inputs)
        self.cache.length = n
        if needs.all_prompt_positions:
            return forward
        return Forward(
            forward.logits,
            forward.hidden if forward.hidden is None else forward.hidden[-1:],
            {layer: rows[-1:] for layer, rows in forward.layer_inputs.items()},
        )

    def extend(self, token_ids: Sequence[int] | Tensor) -> Tensor:
        """Commit `token_ids` behind the sequence; returns the last position's logits [vocab]."""
        if self.cache.length == 0:
            ids = token_ids.tolist() if isinstance(token_ids, Tensor) else token_ids
            return self.prefill(ids).logits[0]
        tokens = torch.as_tensor(token_ids, device=self.device)
        tree = DraftTree.chain(tokens)
        logits = self.forward(tree).logits[-1]
        self.commit(range(tree.num_nodes))
        return logits

    def forward(self, tree: DraftTree) -> Forward:
        """Run once over the tree, each node seeing the committed tokens and its ancestors.

        Nothing is committed: the same call on the same state gives the same result.
        """
        n, length, needs = tree.num_nodes, self.cache.length, self._needs
        reach = self.execution.reach(length, n)
        self.reserve(reach.span(n))
        depths, bias = tree.layout.depths, tree.layout.bias(self.dtype)
        start = torch.full((), length, device=self.device)
        if self._stack is None:
            positions = (depths + length).clamp_(max=self.context - 1)
            return self._run_model(tree.tokens, positions, mask_behind(start, bias, length + n))
        logits, *seen = self._step(tree.tokens, depths, bias, start, reach=reach, needs=needs)
        hidden = seen.pop(0) if needs.hidden else None
        return Forward(logits, hidden, dict(zip(needs.layer_inputs, seen, strict=True)))

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes of `path` (root first) from the last `forward`; drop the others."""
        self.cache.commit(path)

    def settle(self, layout: TreeLayout, chosen: Tensor) -> tuple[Verdict, Accepted | None]:
        """Commit the path that `select` chose in the last `forward`, and copy it to the host.

        Where steps are recorded all work on the device is under way before the host waits, and
        the path can be read there too; a chain's needs no work.
        """
        if not self.execution.is_static or layout.is_chain:
            verdict = Verdict.read(chosen)
            self.commit(verdict.path)
            return verdict, None
        start = torch.full((), self.cache.length, device=self.device)
        path, token_ids, last, *copies = self._follow(chosen, start, room=layout.path_room)
        self.cache.bring(copies)
        verdict = Verdict.read(chosen)
        self.cache.length += len(verdict.path)
        return verdict, Accepted(path, token_ids, last)

    def crop(self, length: int) -> None:
        """Go back to the first `length` committed tokens."""
        self.cache.crop(length)

    def reserve(self, num_tokens: int) -> None:
        """Make room for a sequence of that many tokens."""
        if self.cache.reserve(num_tokens):
            self.execution.forget()
        if self._stack:
            self._stack.rotary.reserve(min(self.cache.capacity, self.context))

    def sampler(self, sampling: Sampling, seed: int) -> Sampler:
        """A sampler on this device; there is one for each sampling, seeded anew."""
        sampler = self._samplers.setdefault(sampling, Sampler(sampling, self.device))
        sampler.generator.manual_seed(seed)
        return sampler

    def _tree_step(
        self, tokens: Tensor, depths: Tensor, bias: Tensor, start: Tensor, *, reach: Reach,
        needs: Needs,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """The stack over a tree behind `start` [] tokens: logits, then what `needs` names."""
        assert self._stack is not None
        n = tokens.shape[0]
        rows = start + torch.arange(n, device=self.device)
        # A node behind the context is cut before it counts; its position must still be valid.
        positions = (depths + start).clamp_(max=self.context - 1)
        place, view = Place(rows, self._stack.rotary.turn(positions)), View(start, bias, reach)
        hidden, inputs = self._stack(tokens, self.cache, place, view, needs.layer_inputs)
        seen = [inputs[layer] for layer in needs.layer_inputs]
        logits = self.execution.ops.project(hidden, self._head.weight, self._head.bias)
        return (logits, *([hidden] if needs.hidden else []), *seen)

    def _followed(self, chosen: Tensor, start: Tensor, *, room: int) -> tuple[Tensor, ...]:
        """The chosen path as `Accepted`, and copies of its rows behind the first `start` []."""
        accepted = Accepted.follow(chosen, room)
        return *accepted, *self.cache.copies(start + accepted.path)

    @property
    def _head(self) -> Any:
        return self.model.get_output_embeddings()

    def _run_model(self, ids: Tensor, positions: Tensor, mask: Tensor | None) -> Forward:
        """The model's own forward over tokens [n]; a prefill is what comes without a mask."""
        out = self.model(
            input_ids=ids[None],
            position_ids=positions[None],
            attention_mask=mask if mask is None else mask[None, None],
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1 if mask is None else 0,
        )
        seen = self._seen
        return Forward(
            out.logits[0],
            seen["hidden"][0] if self._needs.hidden else None,
            {i: seen[i][0] for i in self._needs.layer_inputs},
        )

    def _hooks(self, needs: Needs) -> list[Any]:
        """Hooks on just the modules that `needs` names."""
        handles = []
        if needs.hidden:
            handles.append(self.model.base_model.register_forward_hook(self._keep_hidden))
        for index in needs.layer_inputs:
            hook = _keep_input(self._seen, index)
            handles.append(self.layers[index].register_forward_pre_hook(hook, with_kwargs=True))
        return handles

    def _keep_hidden(self, module: nn.Module, args: object, output: Any) -> None:
        self._seen["hidden"] = output.last_hidden_state


def _keep_input(seen: dict[int | str, Tensor], index: int) -> Any:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen[index] = args[0] if args else kwargs["hidden_states"]

    return hook


def decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder layers of a model; they are called `layers` or `h` in its base model."""
    for name in ("layers", "h"):
        layers = getattr(model.base_model, name, None)
        if isinstance(layers, nn.ModuleList):
            return layers
    raise CheckpointError(
        f"{type(model).__name__} has no list of decoder layers that specbench knows.",
        "Use a decoder-only model such as Llama, Qwen, Mistral or GPT-NeoX.",
    )


def _context_length(config: Any) -> int:
    context = getattr(config, "max_position_embeddings", None)
    if not isinstance(context, int) or context < 1:
        raise CheckpointError(
            f"The model's config tells no context length (max_position_embeddings is {context!r}).",
            "Add max_position_embeddings to its config.json.",
        )
    return context


@torch.inference_mode()
def _layer_shapes(model: PreTrainedModel, device: torch.device) -> list[LayerShape]:
    """What each layer caches, read off a forward over one token: no config field is trusted."""
    cache = DynamicCache()
    model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device), past_key_values=cache)
    return [
        LayerShape(
            (layer.keys.shape[1], layer.keys.shape[3]),
            (layer.values.shape[1], layer.values.shape[3]),
            layer.keys.dtype,
            layer.keys.device,
        )
        for layer in cache.layers
    ]
