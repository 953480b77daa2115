"""Run the decoder stack of a supported model, layer by layer, in a few large operations.

`layers.models` reads the layers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from specbench.engine.layers.config_fields import declared
from specbench.engine.layers.layer import Rotary
from specbench.engine.layers.models import CAPPED, fused_layer, norm_of
from specbench.engine.layers.operands import CacheRows, CacheSlots, CacheSpan, TreeMask
from specbench.engine.layers.ops import Ops
from specbench.engine.layers.torch_attention import attention_kinds


class Stack:
    """Embedding, decoder layers and final norm of a supported model (see `layers.models`).

    The arithmetic is that of the model's own forward. Rounding differs, as products are fused.
    """

    def __init__(self, model: PreTrainedModel, ops: Ops) -> None:
        base = getattr(model.model, "language_model", model.model)  # a model may read images too
        config = model.config.get_text_config()
        self._embed = base.embed_tokens
        self._kinds = attention_kinds(config)
        self._ops = ops
        same_kinds = [next(iter(self._kinds))] * len(base.layers)
        self._kind_of = declared(config, "layer_types") or same_kinds
        self._rotaries = _rotaries(base, self._kinds)
        self._norm = norm_of(base.norm)
        ops.place(model)
        self._layers = [fused_layer(layer, config, ops) for layer in base.layers]
        self._head = model.get_output_embeddings()
        is_capped = type(model).__name__ in CAPPED
        self._logit_cap = config.final_logit_softcapping if is_capped else None
        has_one_rotary = len(set(self._rotaries.values())) == 1
        is_joinable = not any(self._kinds.values()) and has_one_rotary  # no layer has a window
        self._joined = ops.join(self._layers) if is_joinable else None

    def reserve(self, num_positions: int) -> None:
        """Make room for positions up to `num_positions`."""
        for rotary in self._rotaries.values():
            rotary.reserve(num_positions)

    def first_layers(self, num_layers: int) -> Stack:
        """A stack of only the first layers of this one."""
        shallow = copy.copy(self)
        shallow._layers = self._layers[:num_layers]
        return shallow

    def __call__(
        self,
        ids: Tensor,
        cached: Callable[[int], CacheRows],
        rows: Tensor,
        positions: Tensor,
        tree_mask: TreeMask | None,
        captured_layers: Collection[int],
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Run over tokens `ids` [n] at `positions` [n].

        Their keys and values go to `rows` [n] of each layer's `cached` rows. Returns hidden states
        [n, hidden] and the inputs of `captured_layers`, in which the number of layers stands for
        the last layer's output, before the final norm. Without `tree_mask`, the tokens begin a
        sequence.

        If few tokens begin a sequence, joined layers run over them as over a chain, so that a token
        has the same bits in a prefill and in a step.
        """
        hidden = self._embed(ids)  # the layers work in place
        rotaries = self._rotaries.values()
        cos_sin = {rotary: rotary.cos_sin(positions) for rotary in dict.fromkeys(rotaries)}
        slots = {kind: CacheSlots(rows, cos_sin[rotary]) for kind, rotary in self._rotaries.items()}
        inputs: dict[int, Tensor] = {}
        num_layers = len(self._layers)
        stops = sorted({0, num_layers, *captured_layers})
        for begin, end in pairwise(stops):
            if begin in captured_layers:
                inputs[begin] = hidden.clone()
            caches = [*map(cached, range(begin, end))]
            if self._joined and len(hidden) <= self._ops.max_exact_rows:
                mask = tree_mask or _first_chain(hidden)
                self._joined(hidden, begin, caches, slots[self._kind_of[0]], mask)
            else:
                for index, layer_rows in enumerate(caches, begin):
                    norm, layer = self._layers[index]
                    kind = self._kind_of[index]
                    window = self._kinds[kind]
                    queries = layer.write_kv(hidden, layer_rows, slots[kind], norm)
                    hidden = layer.attend(hidden, queries, layer_rows, tree_mask, window)
                    hidden = layer.mlp(hidden)
        if num_layers in captured_layers:
            inputs[num_layers] = hidden
        return self._ops.norm(hidden, self._norm), inputs

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocab] of hidden states [n, hidden]."""
        logits = self._ops.project(hidden, self._head.weight, self._head.bias)
        cap = self._logit_cap
        return logits if cap is None else torch.tanh(logits / cap) * cap


def _first_chain(hidden: Tensor) -> TreeMask:
    """The causal mask of rows [n, hidden] that begin a sequence."""
    num_rows = len(hidden)
    lowest = torch.finfo(hidden.dtype).min
    bias = torch.full((num_rows, num_rows), lowest).triu_(1)
    start = torch.tensor(0, device=hidden.device)
    return TreeMask(start, bias.to(hidden.device, hidden.dtype), CacheSpan(0))


def _rotaries(base: Any, kinds: Mapping[str, int | None]) -> dict[str, Rotary]:
    """The rotary table of each kind of attention. Only in Gemma 3 do the tables differ."""
    like = base.embed_tokens.weight
    dim = base.layers[0].self_attn.head_dim
    if not hasattr(base.rotary_emb, "layer_types"):
        return dict.fromkeys(kinds, Rotary(base.rotary_emb, like, dim))
    return {kind: Rotary(base.rotary_emb, like, dim, kind) for kind in kinds}
