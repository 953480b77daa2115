"""Run several decoder layers, or several levels of a draft, as one call of `native.c`.

Python takes microseconds between two operations of a step. A single call saves this time.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from specbench.engine.layers.layer import FusedLayer
from specbench.engine.layers.mlp import DenseMlp
from specbench.engine.layers.operands import CacheRows, CacheSlots, HeadNorm, Norm, TreeMask
from specbench.engine.layers.ops import DraftHead, gelu_tanh

GATES = {silu: 2, gelu_tanh: 3}
"""The number of each activation in `native.c`."""

_POINTER = ctypes.c_void_p
_LONG = ctypes.c_int64
_WEIGHTS = ("qkv", "qkv_bias", "o", "o_bias", "gate_up", "gate_up_bias", "down", "down_bias")
_NORMS = ("norm", "head_norm", "mlp_norm")
_SIZES = ("num_kv", "group", "dim", "inner", "act")
_HEAD_WEIGHTS = ("embedding", "fc", "fc_bias", "head", "head_bias")
_HEAD_NORMS = ("token_norm", "output_norm", "feature_norm", "norm")
_HEAD_SIZES = ("hidden", "vocab_size", "is_residual_normed")


class _Norm(ctypes.Structure):
    _fields_ = (("weight", _POINTER), ("is_wide", _LONG), ("eps", ctypes.c_double))


def norm_arguments(norm: Norm | HeadNorm | None) -> tuple[int | None, bool, float]:
    """A norm for `native.c`: the address of its weight, True if that is float32, its epsilon."""
    if norm is None:
        return None, False, 0.0
    return norm.weight.data_ptr(), norm.weight.dtype == torch.float32, norm.eps


def address(tensor: Tensor | None) -> int | None:
    """The address of a tensor's memory. None, which is NULL in C, if there is no tensor."""
    return None if tensor is None else tensor.data_ptr()


def _addresses_of(caches: Sequence[CacheRows]) -> Any:
    """The addresses of the rows of several layers."""
    return (_POINTER * len(caches))(*(cache.all.data_ptr() for cache in caches))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in _WEIGHTS),
        *((name, _Norm) for name in _NORMS),
        *((name, _LONG) for name in _SIZES),
        ("scale", ctypes.c_double),
    )

    @classmethod
    def of(cls, norm: Norm | None, layer: FusedLayer, mlp: DenseMlp) -> _Layer:
        """A layer as `native.c` reads it, with the `norm` before its attention."""
        weights = [layer.qkv, layer.qkv_bias, layer.o.weight, layer.o.bias]
        weights += [mlp.weight, mlp.bias, mlp.down.weight, mlp.down.bias]
        norms = [_Norm(*norm_arguments(n)) for n in (norm, layer.head_norm, mlp.norm)]
        heads = layer.heads
        inner = mlp.weight.shape[0] // 2  # gate and up are one matrix
        sizes = (heads.num_kv, heads.group, heads.dim, inner, GATES[mlp.act])
        scale = layer.scoring.scale_of(heads.dim)
        return cls(*map(address, weights), *norms, *sizes, scale)


class NativeLayers:
    """Layers with the norms before them, which `native.c` runs one after the other."""

    def __init__(
        self, library: ctypes.CDLL, layers: Sequence[tuple[Norm | None, FusedLayer]]
    ) -> None:
        self._run = library.run_layers
        self._kept = layers  # the weights must outlive the pointers
        structures = [_Layer.of(norm, layer, layer.mlp) for norm, layer in layers]  # type: ignore[arg-type]
        self.layers = (_Layer * len(structures))(*structures)
        # For each row, a layer holds its queries and qkv, and later the inner values of its MLP.
        attention_widths = [layer.heads.query_width + layer.qkv.shape[0] for _, layer in layers]
        self._width = max(*attention_widths, *(structure.inner for structure in structures))

    def __call__(
        self, x: Tensor, first_layer: int, caches: Sequence[CacheRows], slots: CacheSlots,
        tree_mask: TreeMask, attended: Tensor | None = None,
    ) -> None:  # fmt: skip
        bias = tree_mask.bias.contiguous()
        layers = ctypes.byref(self.layers, first_layer * ctypes.sizeof(_Layer))
        work = x.new_empty(x.shape[0] * self._width)
        self._run(
            layers, _addresses_of(caches), len(caches),
            x.data_ptr(), *x.shape,
            address(attended), 0 if attended is None else attended.shape[1],
            work.data_ptr(),
            slots.cos_sin.data_ptr(), cos_sin_stride(slots), slots.rows.data_ptr(),
            num_seen(tree_mask), bias.data_ptr(), bias.shape[1],
            torch.get_num_threads(),
        )  # fmt: skip


class _Head(ctypes.Structure):
    _fields_ = (
        ("layers", _POINTER),
        ("count", _LONG),
        *((name, _POINTER) for name in _HEAD_WEIGHTS),
        ("token_ids", _POINTER),
        *((name, _Norm) for name in _HEAD_NORMS),
        *((name, _LONG) for name in _HEAD_SIZES),
    )


class NativeHead:
    """A draft model whose levels `native.c` drafts in one call."""

    def __init__(self, library: ctypes.CDLL, head: DraftHead, layers: NativeLayers) -> None:
        self._run = library.draft_levels
        self._kept = head  # the weights must outlive the pointers
        fc, projection = head.fc, head.head
        fc_weight, fc_bias = (None, None) if fc is None else (fc.weight, fc.bias)
        tensors = [head.embedding, fc_weight, fc_bias, projection.weight, projection.bias]
        norms = [_Norm(*norm_arguments(getattr(head, name))) for name in _HEAD_NORMS]
        self._head = _Head(
            ctypes.addressof(layers.layers), len(layers.layers),
            *map(address, [*tensors, head.token_ids]), *norms,
            head.embedding.shape[1], len(projection.weight), head.is_residual_normed,
        )  # fmt: skip

    def __call__(
        self, hidden: Tensor, end: int, caches: Sequence[CacheRows], cos_sin: Tensor, levels: int,
        scores: Tensor, tokens: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        k = len(scores)
        num_more = levels * k * k  # further candidates: k children of k nodes in each level
        scores = torch.cat([scores, scores.new_empty(num_more)])
        tokens = torch.cat([tokens, tokens.new_empty(num_more)])
        nodes = tokens.new_empty(levels * k)
        self._run(
            ctypes.byref(self._head), _addresses_of(caches),
            levels, k, end,
            hidden.data_ptr(), cos_sin.data_ptr(),
            scores.data_ptr(), tokens.data_ptr(), nodes.data_ptr(),
            torch.get_num_threads(),
        )  # fmt: skip
        return scores, tokens, nodes


def can_run(norm: Norm | None, layer: FusedLayer, dtype: torch.dtype, width: int) -> bool:
    """True if `native.c` can run the layer with its norm. `width` is the size of its vectors."""
    mlp = layer.mlp
    if not isinstance(mlp, DenseMlp) or mlp.act not in GATES:
        return False
    if layer.post_norm is not None or mlp.post_norm is not None:
        return False
    if not layer.scoring.is_plain or layer.heads.dim % width:
        return False
    if any(weight.dtype != dtype for weight in (layer.qkv, layer.o.weight, mlp.weight)):
        return False
    if not layer.o.weight.is_contiguous() or not mlp.down.weight.is_contiguous():
        return False
    return norm is None or norm.weight.is_contiguous()


def cos_sin_stride(slots: CacheSlots) -> int:
    """Number of elements between the rotary embeddings of two rows. 0 if all rows share one."""
    cos_sin = slots.cos_sin
    return cos_sin[0].numel() if cos_sin.shape[0] > 1 else 0


def num_seen(tree_mask: TreeMask) -> int:
    """Number of cached rows that all rows of a forward see."""
    span = tree_mask.cache_span
    return span.num_rows if span.is_exact else int(tree_mask.start)
