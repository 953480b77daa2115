"""EAGLE-3's draft model, P-EAGLE's and DFlash's as their papers and trainers define them.

Without cache or product code: every draft is computed anew from the whole sequence, in float64.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from specbench.engine.target import Target

EPS = 1e-6


@torch.no_grad()
def layer_inputs(target: Target, token_ids: Sequence[int], layers: Sequence[int]) -> list[Tensor]:
    """Inputs of the layers [n, hidden], from transformers."""
    states = target.model(torch.tensor([token_ids]), output_hidden_states=True).hidden_states
    return [states[layer][0] for layer in layers]


def rotate(x: Tensor, theta: float) -> Tensor:
    """Rotary embeddings of x [n, heads, dim] at positions 0 to n - 1."""
    n, _, dim = x.shape
    angles = torch.arange(n)[:, None] * theta ** (-torch.arange(0, dim, 2).double() / dim)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class PlainHead:
    """A head under its internal names, with the switches of its config.

    The target has the embeddings and the projection that it lacks.
    """

    def __init__(
        self, target: Target, tensors: Mapping[str, Tensor], switches: Mapping[str, Any]
    ) -> None:
        projection: Tensor = target.model.get_output_embeddings().weight
        embedding: Tensor = target.model.get_input_embeddings().weight
        self.tensors: Mapping[str, Tensor] = {"lm_head.weight": projection, **tensors}
        self.embedding = tensors.get("embed_tokens.weight", embedding).double()
        self.switches, self.theta = switches, 5000.0
        self.num_heads = target.config.num_attention_heads
        self.num_layers = sum(key.endswith("q_proj.weight") for key in tensors)

    def linear(self, x: Tensor, name: str) -> Tensor:
        out = x @ self.tensors[f"{name}.weight"].double().T
        bias = self.tensors.get(f"{name}.bias")
        return out if bias is None else out + bias.double()

    def norm(self, x: Tensor, name: str) -> Tensor:
        size = (x.square().mean(-1, keepdim=True) + EPS).sqrt()
        return x / size * self.tensors[f"{name}.weight"].double()

    def fused(self, parts: list[Tensor]) -> Tensor:
        """fc over the target's layers, each [n, hidden]."""
        if self.switches.get("fc_norm"):
            parts = [self.norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)]
        joint = torch.cat(parts, -1)
        if self.switches.get("norm_before_fc"):
            joint = self.norm(joint, "input_norm")
        return self.linear(joint, "fc")

    def attention(self, x: Tensor, name: str, context: Tensor | None = None) -> Tensor:
        """Causal attention of x [n, input], or non-causal attention with `context` before it."""
        first = 0 if context is None else len(context)
        x = x if context is None else torch.cat([context, x])

        def heads(part: str) -> Tensor:
            out = self.linear(x, f"{name}.{part}_proj")
            return out.unflatten(-1, (-1, dim))

        dim = len(self.tensors[f"{name}.q_proj.weight"]) // self.num_heads
        queries, keys, values = heads("q"), heads("k"), heads("v")
        if f"{name}.q_norm.weight" in self.tensors:
            queries, keys = self.norm(queries, f"{name}.q_norm"), self.norm(keys, f"{name}.k_norm")
        queries, keys = rotate(queries, self.theta), rotate(keys, self.theta)
        group = self.num_heads // keys.shape[1]
        keys, values = (part.repeat_interleave(group, 1) for part in (keys, values))
        scores = torch.einsum("ihd,jhd->hij", queries, keys) / dim**0.5
        if context is None:
            scores = scores.masked_fill(~torch.ones(scores.shape[1:]).tril().bool(), -torch.inf)
        out = torch.einsum("hij,jhd->ihd", scores.softmax(-1), values)
        return self.linear(out.flatten(1)[first:], f"{name}.o_proj")

    def mlp(self, x: Tensor, name: str) -> Tensor:
        inner = self.norm(x, f"{name}.post_attention_layernorm")
        gate = silu(self.linear(inner, f"{name}.mlp.gate_proj"))
        inner = gate * self.linear(inner, f"{name}.mlp.up_proj")
        return self.linear(inner, f"{name}.mlp.down_proj")

    def outputs(self, features: Tensor, tokens: Tensor) -> Tensor:
        """The last layer's outputs [n, hidden], before the final norm."""
        embedded = self.norm(self.embedding[tokens], "layers.0.input_layernorm")
        normed = self.norm(features, "layers.0.hidden_norm")
        x = normed if self.switches.get("norm_before_residual") else features
        attended = torch.cat([embedded, normed], -1)
        for i in range(self.num_layers):
            if i:
                attended = self.norm(x, f"layers.{i}.input_layernorm")
            x = x + self.attention(attended, f"layers.{i}.self_attn")
            x = x + self.mlp(x, f"layers.{i}")
        return x

    def draft(
        self, parts: list[Tensor], tokens: Tensor, num_tokens: int
    ) -> tuple[list[int], list[float]]:
        """A greedy chain of target ids after `tokens` [n], which follow the rows of `parts`.

        Each comes with the log-probability of the path up to it.
        """
        features = self.fused([part.double() for part in parts])
        drafted: list[int] = []
        log_probs = [0.0]
        for _ in range(num_tokens):
            output = self.outputs(features, tokens)[-1:]
            normed = self.norm(output, "norm")
            best = self.linear(normed, "lm_head").log_softmax(-1).max(-1)
            draft_id = int(best.indices)
            log_probs.append(log_probs[-1] + float(best.values))
            drafted.append(draft_id + int(self.tensors.get("d2t", torch.zeros(10**4))[draft_id]))
            features = torch.cat([features, normed if self.switches.get("norm_output") else output])
            tokens = torch.cat([tokens, torch.tensor(drafted[-1:])])
        return drafted, log_probs[1:]

    def draft_at_once(self, parts: list[Tensor], tokens: Tensor, masks: Tensor) -> list[int]:
        """A greedy chain of 1 + len(masks) tokens, for pairs as in `draft` and P-EAGLE's masks."""
        unknown = self.tensors["mask_hidden"].double().view(1, -1).chunk(len(parts), -1)
        features = [torch.cat([part.double(), mask.expand(len(masks), -1)])
                    for part, mask in zip(parts, unknown, strict=True)]  # fmt: skip
        outputs = self.outputs(self.fused(features), torch.cat([tokens, masks]))
        return self.best(outputs[len(tokens) - 1 :])

    def fill_block(self, parts: list[Tensor], block: Tensor) -> list[int]:
        """DFlash's greedy tokens after a block: the pending token, then masks."""
        fused = self.fused([part.double() for part in parts])
        context, x = self.norm(fused, "hidden_norm"), self.embedding[block]
        for i in range(self.num_layers):
            attended = self.norm(x, f"layers.{i}.input_layernorm")
            x = x + self.attention(attended, f"layers.{i}.self_attn", context)
            x = x + self.mlp(x, f"layers.{i}")
        return self.best(x[1:])

    def best(self, outputs: Tensor) -> list[int]:
        """The most likely target ids after outputs [n, hidden]."""
        ids = self.linear(self.norm(outputs, "norm"), "lm_head").argmax(-1)
        return (ids + self.tensors.get("d2t", torch.zeros(10**4).long())[ids]).tolist()
