"""Several decoder layers as one call of compiled code.

Knows the weights of fused layers, and the structs of `native.c`.
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
from specbench.engine.layers.ops import gelu_tanh

MAX_ROWS = 128
"""More rows are left to torch."""
GATES = {silu: 2, gelu_tanh: 3}
"""Activations, as the numbers of `native.c`."""

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_int64


class _Norm(ctypes.Structure):
    _fields_ = (("weight", _POINTER), ("is_wide", _LONG), ("eps", ctypes.c_double))

    @classmethod
    def of(cls, norm: Norm | HeadNorm | None) -> _Norm:
        if norm is None:
            return cls(None, 0, 0.0)
        return cls(norm.weight.data_ptr(), norm.weight.dtype == torch.float32, norm.eps)


_WEIGHTS = ("qkv", "qkv_bias", "o", "o_bias", "gate_up", "gate_up_bias", "down", "down_bias")
_NORMS, _SIZES = ("norm", "head_norm", "mlp_norm"), ("num_kv", "group", "dim", "inner", "act")


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in _WEIGHTS),
        *((name, _Norm) for name in _NORMS),
        *((name, _LONG) for name in _SIZES),
        ("scale", ctypes.c_double),
    )

    @classmethod
    def of(cls, norm: Norm, layer: FusedLayer, mlp: DenseMlp) -> _Layer:
        heads, scale = layer.heads, layer.scoring.scale
        weights = (
            layer.qkv, layer.qkv_bias, layer.o.weight, layer.o.bias,
            mlp.weight, mlp.bias, mlp.down.weight, mlp.down.bias,
        )  # fmt: skip
        return cls(
            *(None if weight is None else weight.data_ptr() for weight in weights),
            *map(_Norm.of, (norm, layer.head_norm, mlp.norm)),
            heads.num_kv, heads.group, heads.dim, mlp.weight.shape[0] // 2, GATES[mlp.act],
            heads.dim**-0.5 if scale is None else scale,
        )  # fmt: skip


class NativeLayers:
    """Layers, each with the norm before it, that `native.c` runs one after the other."""

    max_rows = MAX_ROWS

    def __init__(self, library: ctypes.CDLL, layers: Sequence[tuple[Norm, FusedLayer]]) -> None:
        self._run = library.run_layers
        self._kept = layers  # the weights must outlive the pointers
        made = [_Layer.of(norm, layer, layer.mlp) for norm, layer in layers]  # type: ignore[arg-type]
        self._layers = (_Layer * len(made))(*made)
        self._width = max(
            max(layer.heads.query_width + layer.qkv.shape[0], one.inner)
            for one, (_, layer) in zip(made, layers, strict=True)
        )

    def __call__(
        self, x: Tensor, first: int, caches: Sequence[CacheRows], slots: CacheSlots,
        tree_mask: TreeMask,
    ) -> None:  # fmt: skip
        """Run the layers from `first` on, one for each of `caches`, over x [n, hidden] in place."""
        n, turns, bias = x.shape[0], slots.cos_sin, tree_mask.bias.contiguous()
        pointers: Any = (_POINTER * len(caches))(*(one.all.data_ptr() for one in caches))
        work = x.new_empty(n * self._width)
        self._run(
            ctypes.byref(self._layers, first * ctypes.sizeof(_Layer)), pointers, len(caches),
            x.data_ptr(), *x.shape, work.data_ptr(), turns.data_ptr(),
            turns[0].numel() if turns.shape[0] > 1 else 0, slots.rows.data_ptr(),
            num_seen(tree_mask), bias.data_ptr(), bias.shape[1], torch.get_num_threads(),
        )  # fmt: skip


def can_run(norm: Norm, layer: FusedLayer, dtype: torch.dtype, width: int) -> bool:
    """True if `native.c`, with vectors of `width` numbers, has all that the layer needs."""
    mlp = layer.mlp
    return (
        isinstance(mlp, DenseMlp) and mlp.act in GATES
        and layer.post_norm is None and mlp.post_norm is None
        and layer.scoring.is_plain and layer.heads.dim % width == 0
        and all(one.dtype == dtype for one in (layer.qkv, layer.o.weight, mlp.weight))
        and layer.o.weight.is_contiguous() and mlp.down.weight.is_contiguous()
        and norm.weight.is_contiguous()
    )  # fmt: skip


def num_seen(tree_mask: TreeMask) -> int:
    """Number of cached rows that all rows see."""
    span = tree_mask.cache_span
    return span.num_rows if span.is_exact else int(tree_mask.start)
