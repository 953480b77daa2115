"""The draft models of EAGLE-3, P-EAGLE and DFlash, as their papers and training code define them.

They have no cache and use no code of the methods. Every draft is computed anew from the whole
sequence, in float64.
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
    batch = torch.tensor([token_ids])
    outputs = target.model(batch, output_hidden_states=True)
    return [outputs.hidden_states[layer][0] for layer in layers]


def rotate(x: Tensor, theta: float) -> Tensor:
    """Rotary embeddings of x [n, heads, dim] at positions 0 to n - 1."""
    n, _, dim = x.shape
    positions = torch.arange(n)[:, None]
    # angle of position p and pair i: p * theta ^ (-2 i / dim) [n, dim / 2]
    exponents = -torch.arange(0, dim, 2).double() / dim
    angles = positions * theta**exponents
    cos = angles.cos()[:, None]  # [n, 1, dim / 2]
    sin = angles.sin()[:, None]
    left, right = x.chunk(2, -1)
    rotated_left = left * cos - right * sin
    rotated_right = right * cos + left * sin
    return torch.cat([rotated_left, rotated_right], -1)


class PlainHead:
    """A head: its tensors by internal names, and the switches of its config.

    If the head lacks embeddings or an output projection, the target's are used.
    """

    def __init__(
        self, target: Target, tensors: Mapping[str, Tensor], switches: Mapping[str, Any]
    ) -> None:
        projection: Tensor = target.model.get_output_embeddings().weight
        embedding: Tensor = target.model.get_input_embeddings().weight
        self.tensors: Mapping[str, Tensor] = {"lm_head.weight": projection, **tensors}
        self.embedding = tensors.get("embed_tokens.weight", embedding).double()
        self.switches = switches
        self.theta = 5000.0
        self.num_heads = target.config.num_attention_heads
        self.num_layers = sum(key.endswith("q_proj.weight") for key in tensors)

    def linear(self, x: Tensor, name: str) -> Tensor:
        product = x @ self.tensors[f"{name}.weight"].double().T
        bias = self.tensors.get(f"{name}.bias")
        return product if bias is None else product + bias.double()

    def norm(self, x: Tensor, name: str) -> Tensor:
        """x / sqrt(mean of x^2 + eps) * weight."""
        mean_square = x.square().mean(-1, keepdim=True)
        scale = (mean_square + EPS).sqrt()
        return x / scale * self.tensors[f"{name}.weight"].double()

    def fused(self, states: list[Tensor]) -> Tensor:
        """The head's features [n, hidden]: fc of `states`, inputs of target layers [n, hidden]."""
        states = [state.double() for state in states]
        if self.switches.get("fc_norm"):
            states = [self.norm(state, f"fc_norm.{layer}") for layer, state in enumerate(states)]
        joint = torch.cat(states, -1)
        if self.switches.get("norm_before_fc"):
            joint = self.norm(joint, "input_norm")
        return self.linear(joint, "fc")

    def attention(self, x: Tensor, name: str, context: Tensor | None = None) -> Tensor:
        """Causal attention of x [n, input], or non-causal attention with `context` before it.

        Returns [n, hidden].
        """
        rows = x if context is None else torch.cat([context, x])
        dim = len(self.tensors[f"{name}.q_proj.weight"]) // self.num_heads

        def heads(projection: str) -> Tensor:
            """The projected rows [rows, heads, dim]."""
            return self.linear(rows, f"{name}.{projection}").unflatten(-1, (-1, dim))

        queries = heads("q_proj")
        keys = heads("k_proj")
        values = heads("v_proj")
        if f"{name}.q_norm.weight" in self.tensors:
            queries = self.norm(queries, f"{name}.q_norm")
            keys = self.norm(keys, f"{name}.k_norm")
        queries = rotate(queries, self.theta)
        keys = rotate(keys, self.theta)

        # Each head of keys and values serves several heads of queries.
        num_sharing = self.num_heads // keys.shape[1]
        keys = keys.repeat_interleave(num_sharing, 1)
        values = values.repeat_interleave(num_sharing, 1)
        products = torch.einsum("ihd,jhd->hij", queries, keys)
        scores = products / dim**0.5  # [heads, rows, rows]
        if context is None:
            is_seen = torch.ones(scores.shape[1:]).tril().bool()
            scores = scores.masked_fill(~is_seen, -torch.inf)
        weights = scores.softmax(-1)
        attended = torch.einsum("hij,jhd->ihd", weights, values)
        of_x = attended[-len(x) :].flatten(1)  # [n, heads * dim]
        return self.linear(of_x, f"{name}.o_proj")

    def mlp(self, x: Tensor, name: str) -> Tensor:
        normed = self.norm(x, f"{name}.post_attention_layernorm")
        gate = silu(self.linear(normed, f"{name}.mlp.gate_proj"))
        inner = gate * self.linear(normed, f"{name}.mlp.up_proj")
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
        self, states: list[Tensor], tokens: Tensor, num_tokens: int
    ) -> tuple[list[int], list[float]]:
        """A greedy chain of `num_tokens` target ids, and the log-probability of each one's path.

        `tokens` [n] follow the rows of `states`, inputs of the target's layers [n, hidden].
        """
        features = self.fused(states)
        drafted: list[int] = []
        log_probs: list[float] = []
        log_prob = 0.0  # of the path so far
        for _ in range(num_tokens):
            output = self.outputs(features, tokens)[-1:]
            normed = self.norm(output, "norm")
            logits = self.linear(normed, "lm_head")  # [1, draft vocab]
            best = logits.log_softmax(-1).max(-1)
            log_prob += float(best.values)
            log_probs.append(log_prob)
            token = self.target_ids(best.indices)  # [1]
            drafted.append(int(token))
            feature = normed if self.switches.get("norm_output") else output
            features = torch.cat([features, feature])
            tokens = torch.cat([tokens, token])
        return drafted, log_probs

    def draft_at_once(self, states: list[Tensor], tokens: Tensor, masks: Tensor) -> list[int]:
        """P-EAGLE's greedy chain of 1 + m tokens, from pairs as in `draft` and from `masks` [m]."""
        mask_hidden = self.tensors["mask_hidden"].view(1, -1)
        mask_states = mask_hidden.chunk(len(states), -1)  # [1, hidden] per layer
        with_masks = [
            torch.cat([state, mask_state.expand(len(masks), -1)])
            for state, mask_state in zip(states, mask_states, strict=True)
        ]
        features = self.fused(with_masks)
        outputs = self.outputs(features, torch.cat([tokens, masks]))
        return self.best(outputs[len(tokens) - 1 :])

    def fill_block(self, states: list[Tensor], block: Tensor) -> list[int]:
        """DFlash's greedy tokens for a block of the pending token and masks, one token per mask."""
        context = self.norm(self.fused(states), "hidden_norm")
        x = self.embedding[block]
        for i in range(self.num_layers):
            attended = self.norm(x, f"layers.{i}.input_layernorm")
            x = x + self.attention(attended, f"layers.{i}.self_attn", context)
            x = x + self.mlp(x, f"layers.{i}")
        return self.best(x[1:])

    def best(self, outputs: Tensor) -> list[int]:
        """The most likely target ids after outputs [n, hidden]."""
        normed = self.norm(outputs, "norm")
        best_ids = self.linear(normed, "lm_head").argmax(-1)
        return self.target_ids(best_ids).tolist()

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """The target's ids of the head's tokens. The table has target id - draft id."""
        table = self.tensors.get("d2t")
        return draft_ids if table is None else draft_ids + table[draft_ids]
