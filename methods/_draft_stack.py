"""A drafter's own decoder layers with their own cache."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from specbench.engine.kv import KVCache, LayerShape
from specbench.engine.layers.layer import FusedLayer, Rotary, activation
from specbench.engine.layers.mlp import DenseMlp
from specbench.engine.layers.operands import CacheRows, CacheSlots, CacheSpan, Norm, TreeMask
from specbench.engine.layers.ops import JoinedHead, Ops
from specbench.engine.tree import additive
from specbench.methods.shared.checkpoint import Checkpoint

_LLAMA_FIELDS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "hidden_act",
    "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings",
    "mlp_bias",
)  # fmt: skip


def layer_config(
    checkpoint: Checkpoint, fields: Mapping[str, Any], first_layer: str = "layers.0"
) -> LlamaConfig:
    """The config of the layers, made from the config `fields` of a head or a target.

    The first layer's query weight gives the size of an attention head, which need not be the hidden
    size divided by the number of heads.
    """
    query_key = f"{first_layer}.self_attn.q_proj.weight"
    arguments = {name: fields[name] for name in _LLAMA_FIELDS if fields.get(name) is not None}
    for name in ("hidden_size", "intermediate_size", "num_attention_heads"):
        if not isinstance(arguments.get(name), int) or arguments[name] < 1:
            raise checkpoint.error(f"has a config without a valid {name}")
    num_rows = checkpoint.shape(query_key)[0]
    num_heads = arguments["num_attention_heads"]
    head_dim = num_rows // num_heads
    given_dim = fields.get("head_dim")
    if num_rows % (2 * num_heads) or given_dim not in (None, head_dim):
        of_dim = f" of {given_dim} (head_dim)" if given_dim else ""
        name = checkpoint.published(query_key)
        raise checkpoint.error(f"has {name} with {num_rows} rows for {num_heads} heads{of_dim}")
    hidden_act = arguments.get("hidden_act", "silu")
    if str(hidden_act) not in ACT2FN:
        raise checkpoint.error(f"has hidden_act {hidden_act!r}, which is not known")
    with checkpoint.config_errors("a Llama layer"):
        return LlamaConfig(
            **arguments,
            head_dim=head_dim,
            attention_bias=bool(fields.get("qkv_bias") or fields.get("attention_bias")),
            attn_implementation="sdpa",
        )


def rms_norm(
    checkpoint: Checkpoint, name: str, config: LlamaConfig, size: int | None = None
) -> Norm:
    """The norm of this name over `size` numbers. By default, this is the hidden size."""
    return Norm(checkpoint.take(f"{name}.weight", size or config.hidden_size), config.rms_norm_eps)


class DraftStack:
    """Decoder layers, with the keys and values of committed positions.

    A step feeds the missing positions after the cached prefix. It may then run over the levels of a
    tree, whose rows are scratch. For example, if 5 rows are cached and 2 tokens were accepted,
    `feed` writes rows 5 and 6 (`start` is 5). `extend` then writes a level of 3 nodes to rows 7 to
    9 and a level of 4 nodes to rows 10 to 13 (`end` is 7). A node's position is 7 plus its level.
    Its `mask` covers row 7 and the 2 or 6 rows after it. The next step overwrites rows from row 7.

    The caller applies the first layer's input norm. Projections have biases, and queries and keys
    have norms, if they are in the checkpoint (Qwen's heads). Tensors on the device say which cache
    rows are written, so only `CacheSpan` depends on the number of committed tokens.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        names: Sequence[str],
        config: LlamaConfig,
        input_size: int,
        ops: Ops,
    ) -> None:
        """The first layer's attention reads rows of `input_size`; others read hidden states."""
        with checkpoint.config_errors("a Llama layer"):
            rotary = LlamaRotaryEmbedding(config).to(checkpoint.device)
        sizes = [input_size] + [config.hidden_size] * (len(names) - 1)
        self._layers = [
            _layer(checkpoint, name, config, size, ops)
            for name, size in zip(names, sizes, strict=True)
        ]
        self._norms = [
            rms_norm(checkpoint, f"{name}.input_layernorm", config) for name in names[1:]
        ]
        norms_before = [None, *self._norms]  # the caller applies the first layer's norm
        self.joined = ops.join([*zip(norms_before, self._layers, strict=True)])
        self.dtype = checkpoint.dtype
        self._device = checkpoint.device
        self._ops = ops
        self._nothing = torch.zeros(1, 0, dtype=self.dtype, device=self._device)
        self._rotary = Rotary(rotary, self._nothing, config.head_dim)
        shape = (config.num_key_value_heads, config.head_dim)
        layer_shape = LayerShape(shape, shape, self.dtype, self._device)
        self.cache = KVCache([layer_shape] * len(names))

    def reserve(self, num_tokens: int) -> bool:
        """Make room for `num_tokens` positions. Returns True if the existing rows moved."""
        has_moved = self.cache.reserve(num_tokens)
        self._rotary.reserve(self.cache.capacity)
        return has_moved

    @property
    def num_bytes(self) -> int:
        """Bytes of the layers' weights."""
        return sum(layer.num_bytes for layer in self._layers)

    def prefill(self, residual: Tensor, attended: Tensor) -> None:
        """Begin a sequence. The arguments are as in `feed`."""
        slots = self._slots(torch.arange(attended.shape[0], device=self._device))
        for index in range(len(self._layers)):
            queries = self._write_kv(index, residual, attended, slots)
            if index + 1 < len(self._layers):
                residual = self._layer_output(index, residual, queries, None)

    def feed(
        self, residual: Tensor, attended: Tensor, start: Tensor, wanted: Tensor,
        cache_span: CacheSpan,
    ) -> Tensor:  # fmt: skip
        """Append n rows after the first `start` [] rows.

        Returns the outputs [k, hidden] of the rows `wanted` [k], in increasing order. Rows after
        the last wanted row are padding, whose keys and values are scratch. `attended` [n, input]
        are the attention's inputs. Its output is added to `residual` [n, hidden]. `cache_span`
        counts the rows up to the last one that is not scratch.
        """
        n = attended.shape[0]
        last = len(self._layers) - 1
        slots = self._slots(start + torch.arange(n, device=self._device))
        if self.joined and n <= self._ops.max_exact_rows:
            all_rows = torch.arange(n, device=self._device)
            tree_mask = self._causal(all_rows, n, start, cache_span)
            return self._run(residual, attended, slots, tree_mask).index_select(0, wanted)
        for index in range(last):
            queries = self._write_kv(index, residual, attended, slots)
            all_rows = torch.arange(n, device=self._device)
            tree_mask = self._causal(all_rows, n, start, cache_span)
            residual = self._layer_output(index, residual, queries, tree_mask)
        queries = self._write_kv(last, residual, attended, slots)
        residual = residual.index_select(0, wanted)
        queries = queries.index_select(0, wanted)
        if wanted.shape[0] > 1:
            tree_mask = self._causal(wanted, n, start, cache_span)
        else:
            tree_mask = TreeMask(start + wanted + 1, self._nothing, cache_span)
        return self._layer_output(last, residual, queries, tree_mask)

    def extend(
        self, residual: Tensor, attended: Tensor, slots: CacheSlots, end: Tensor, mask: Tensor,
        cache_span: CacheSpan,
    ) -> Tensor:  # fmt: skip
        """Run over one level of a tree. Returns its outputs [n, hidden].

        `slots` is the level's entry of `tree_slots`. All nodes see the first `end` [] rows, which
        come before the tree. `mask` [n, rows of the tree so far + n] is additive.
        """
        return self._run(residual, attended, slots, TreeMask(end, mask, cache_span))

    def grow(
        self, head: JoinedHead, hidden: Tensor, end: Tensor, levels: int, scores: Tensor,
        tokens: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Run over `levels` levels of a tree after the first `end` [] rows, in one `head` call."""
        table = self._rotary.table
        return head(hidden, int(end), self._caches(), table, levels, scores, tokens)

    def _caches(self) -> list[CacheRows]:
        return [self.cache.rows(index) for index in range(len(self._layers))]

    def _run(
        self, residual: Tensor, attended: Tensor, slots: CacheSlots, tree_mask: TreeMask
    ) -> Tensor:
        """Run all layers over n rows. Returns the outputs [n, hidden]."""
        caches = self._caches()
        if self.joined and residual.shape[0] <= self._ops.max_exact_rows:
            self.joined(residual, 0, caches, slots, tree_mask, attended)
            return residual
        for index in range(len(self._layers)):
            queries = self._write_kv(index, residual, attended, slots)
            residual = self._layer_output(index, residual, queries, tree_mask)
        return residual

    def write_context(self, context: Tensor) -> None:
        """Begin a sequence. All layers read the same inputs `context` [n, hidden]."""
        slots = self._slots(torch.arange(context.shape[0], device=self._device))
        for index, layer in enumerate(self._layers):
            layer.write_kv(context, self.cache.rows(index), slots)

    def fill_block(
        self, context: Tensor, residual: Tensor, attended: Tensor, rows: Tensor, end: Tensor,
        cache_span: CacheSpan,
    ) -> Tensor:  # fmt: skip
        """Run over a block of n rows that all see each other. Returns its outputs [n, hidden].

        Before the block, all layers read the same inputs `context` [m, hidden]. `rows` [m + n] are
        the cache rows of context and block, and also their positions. The block sees the first
        `end` [] rows.
        """
        m = context.shape[0]
        n = residual.shape[0]
        slots = self._slots(rows)
        nothing_hidden = residual.new_zeros(n, n)  # an additive mask
        tree_mask = TreeMask(end, nothing_hidden, cache_span)
        for index, layer in enumerate(self._layers):
            if index:
                attended = self._ops.norm(residual, self._norms[index - 1])
            context_and_block = torch.cat([context, attended])  # [m + n, hidden]
            queries = layer.write_kv(context_and_block, self.cache.rows(index), slots)
            residual = self._layer_output(index, residual, queries[m:], tree_mask)
        return residual

    def tree_slots(self, end: Tensor, sizes: Sequence[int]) -> list[CacheSlots]:
        """Cache slots of a tree's levels of `sizes` rows, which follow the first `end` [] rows."""
        rows = end + torch.arange(sum(sizes), device=self._device)
        positions = end + torch.arange(len(sizes), device=self._device)  # one per level
        cos_sin = self._rotary.cos_sin(positions)
        return list(map(CacheSlots, rows.split(sizes), cos_sin.split(1)))

    def _slots(self, rows: Tensor) -> CacheSlots:
        return CacheSlots(rows, self._rotary.cos_sin(rows))

    def _causal(self, rows: Tensor, n: int, start: Tensor, cache_span: CacheSpan) -> TreeMask:
        """The causal mask of `rows` [k], among n new rows that follow the first `start` []."""
        sees = torch.arange(n, device=self._device) <= rows[:, None]
        span = CacheSpan(cache_span.rows_with(n), is_exact=False)  # `start` is on the device
        return TreeMask(start, additive(sees, self.dtype), span)

    def _write_kv(
        self, index: int, residual: Tensor, attended: Tensor, slots: CacheSlots
    ) -> Tensor:
        """Write a layer's keys and values. Returns its queries [n, heads * head_dim]."""
        layer, cached = self._layers[index], self.cache.rows(index)
        if index == 0:
            return layer.write_kv(attended, cached, slots)
        return layer.write_kv(residual, cached, slots, self._norms[index - 1])

    def _layer_output(
        self, index: int, residual: Tensor, queries: Tensor, tree_mask: TreeMask | None
    ) -> Tensor:
        """Output [n, hidden] of a layer: attention of its queries, then its MLP."""
        layer, cached = self._layers[index], self.cache.rows(index)
        return layer.mlp(layer.attend(residual, queries, cached, tree_mask))


def _layer(
    checkpoint: Checkpoint, name: str, config: LlamaConfig, input_size: int, ops: Ops
) -> FusedLayer:
    hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
    query_width = config.num_attention_heads * dim
    kv_width = config.num_key_value_heads * dim
    attention_name, mlp_name = f"{name}.self_attn", f"{name}.mlp"

    def sharing_bias(
        names: list[str], size: int, widths: list[int], needs_bias: bool
    ) -> list[nn.Linear]:
        """Linear layers over `size` numbers that will be fused. Either all or none have a bias."""
        has_bias = needs_bias or any(f"{name}.bias" in checkpoint for name in names)
        return [
            checkpoint.linear(name, size, width, bias=has_bias)
            for name, width in zip(names, widths, strict=True)
        ]

    qkv_names = [f"{attention_name}.{letter}_proj" for letter in "qkv"]
    qkv_widths = [query_width, kv_width, kv_width]
    q, k, v = sharing_bias(qkv_names, input_size, qkv_widths, config.attention_bias)
    o = checkpoint.linear(f"{attention_name}.o_proj", query_width, hidden)
    gate_up_names = [f"{mlp_name}.gate_proj", f"{mlp_name}.up_proj"]
    gate, up = sharing_bias(gate_up_names, hidden, [inner, inner], config.mlp_bias)
    down_bias = config.mlp_bias or None
    down = checkpoint.linear(f"{mlp_name}.down_proj", inner, hidden, bias=down_bias)
    checkpoint.skip(f"{attention_name}.rotary_emb.inv_freq")  # a constant in old files
    q_norm, k_norm = f"{attention_name}.q_norm", f"{attention_name}.k_norm"
    head_norms = None
    if f"{q_norm}.weight" in checkpoint or f"{k_norm}.weight" in checkpoint:
        head_norms = (
            rms_norm(checkpoint, q_norm, config, dim),
            rms_norm(checkpoint, k_norm, config, dim),
        )
    with checkpoint.config_errors("a Llama layer"):
        act = activation(config.hidden_act)
    norm = rms_norm(checkpoint, f"{name}.post_attention_layernorm", config)
    mlp = DenseMlp(gate, up, down, norm, act, ops)
    return FusedLayer(q, k, v, o, mlp, dim, ops, head_norms)
