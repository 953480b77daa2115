"""The target: an unmodified transformers model that runs over trees of tokens.

The only room besides `kv` that touches transformers' model API. A drafter that is itself a
language model (SpS) drives one of these too. Knows nothing of acceptance, sampling or time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from specbench.engine.kv import KVCache, LayerShape
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.errors import CheckpointError


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
    """A causal language model with one committed sequence and room for a tree behind it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model.eval()
        self.config = model.config.get_text_config()
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.dtype: torch.dtype = model.dtype
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]
        self.context: int = _context_length(self.config)
        self.cache = KVCache(_layer_shapes(model, self.device))
        self._mask = torch.zeros(0, 0, dtype=self.dtype, device=self.device)
        self._dirty = (0, 0)  # columns of the mask that hold the last tree
        self._needs = Needs()
        self._seen: dict[int | str, Tensor] = {}

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder layers, in order."""
        return decoder_layers(self.model)

    @contextmanager
    def watched(self, needs: Needs) -> Iterator[None]:
        """Collect what `needs` names, by hooks on just those modules, while the block runs."""
        base = self.model.base_model
        handles = []
        if needs.hidden:
            handles.append(base.register_forward_hook(self._keep_hidden))
        for index in needs.layer_inputs:
            hook = _keep_input(self._seen, index)
            handles.append(self.layers[index].register_forward_pre_hook(hook, with_kwargs=True))
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
        self.cache.reset()
        self.cache.reserve(len(prompt_ids) + room)
        ids = torch.tensor([prompt_ids], device=self.device)
        positions = torch.arange(len(prompt_ids), device=self.device)[None]
        forward = self._run(ids, positions, mask=None, logits_to_keep=1)
        self.cache.length = len(prompt_ids)
        if self._needs.all_prompt_positions:
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
        end = self.cache.length + tree.num_nodes
        self.cache.reserve(end)
        # A node behind the context is cut before it counts; its position must still be valid.
        positions = (tree.layout.depths + self.cache.length).clamp_(max=self.context - 1)
        mask = self._tree_mask(tree.layout)
        return self._run(tree.tokens[None], positions[None], mask, logits_to_keep=0)

    def commit(self, path: Sequence[int]) -> None:
        """Keep the nodes of `path` (root first) from the last `forward`; drop the others."""
        self.cache.commit(path)

    def crop(self, length: int) -> None:
        """Go back to the first `length` committed tokens."""
        self.cache.crop(length)

    def _run(
        self, ids: Tensor, positions: Tensor, mask: Tensor | None, logits_to_keep: int
    ) -> Forward:
        out = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=logits_to_keep,
        )
        seen = self._seen
        return Forward(
            out.logits[0],
            seen["hidden"][0] if self._needs.hidden else None,
            {i: seen[i][0] for i in self._needs.layer_inputs},
        )

    def _tree_mask(self, layout: TreeLayout) -> Tensor:
        """The additive mask [1, 1, nodes, committed + nodes]: 0 where a node attends.

        One buffer serves every step: all zero but for the columns of the tree at hand.
        """
        n, start = layout.num_nodes, self.cache.length
        if n > self._mask.shape[0] or self.cache.capacity > self._mask.shape[1]:
            rows = max(n, self._mask.shape[0])
            self._mask = self._mask.new_zeros(rows, self.cache.capacity)
        elif self._dirty[0] < self._dirty[1]:
            self._mask[:, slice(*self._dirty)] = 0
        self._dirty = (start, start + n) if n > 1 else (0, 0)
        if n > 1:
            block = self._mask[:n, start : start + n]
            block.masked_fill_(~layout.ancestors, torch.finfo(self.dtype).min)
        return self._mask[None, None, :n, : start + n]

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
