"""Operations on a CPU as compiled code of our own, for few rows of tokens.

A step of a small model takes some hundred operations of microseconds, and torch needs as long
to begin one. Each of these does the work of several. A row's result does not depend on the
rows beside it, so a tree's logits equal vanilla's bit by bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from specbench.engine import huge_pages
from specbench.engine.kernels.native_build import BuildError, load_library
from specbench.engine.layers.experts import Act
from specbench.engine.layers.layer import FusedLayer
from specbench.engine.layers.mlp import DenseMlp
from specbench.engine.layers.operands import CacheRows, CacheSlots, HeadNorm, Heads, Norm, TreeMask
from specbench.engine.layers.ops import DraftHead, JoinedHead, JoinedLayers, Ops, gelu_tanh
from specbench.engine.layers.torch_attention import PLAIN, Scoring

MAX_ROWS = 128
"""More rows are left to torch."""
MOST_BEST = 64
"""Best tokens of a row that `native.c` finds at most."""
GATES = {silu: 2, gelu_tanh: 3}
"""Activations, as the numbers of `native.c`."""

_POINTER, _LONG = ctypes.c_void_p, ctypes.c_int64
_WEIGHTS = ("qkv", "qkv_bias", "o", "o_bias", "gate_up", "gate_up_bias", "down", "down_bias")
_NORMS, _SIZES = ("norm", "head_norm", "mlp_norm"), ("num_kv", "group", "dim", "inner", "act")
_HEAD_NORMS = ("token_norm", "output_norm", "feature_norm", "norm")
_PLAIN, _ADDED = 0, 1


class _Norm(ctypes.Structure):
    _fields_ = (("weight", _POINTER), ("is_wide", _LONG), ("eps", ctypes.c_double))


def _parts(norm: Norm | HeadNorm | None) -> tuple[int | None, bool, float]:
    """A norm as `native.c` receives it: its weight, True if that is float32, and its epsilon."""
    if norm is None:
        return None, False, 0.0
    return norm.weight.data_ptr(), norm.weight.dtype == torch.float32, norm.eps


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _rows_of(caches: Sequence[CacheRows]) -> Any:
    """The addresses of the rows of several layers."""
    return (_POINTER * len(caches))(*(one.all.data_ptr() for one in caches))


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _POINTER) for name in _WEIGHTS),
        *((name, _Norm) for name in _NORMS),
        *((name, _LONG) for name in _SIZES),
        ("scale", ctypes.c_double),
    )

    @classmethod
    def of(cls, norm: Norm | None, layer: FusedLayer, mlp: DenseMlp) -> _Layer:
        weights = [layer.qkv, layer.qkv_bias, layer.o.weight, layer.o.bias]
        weights += [mlp.weight, mlp.bias, mlp.down.weight, mlp.down.bias]
        norms = (_Norm(*_parts(one)) for one in (norm, layer.head_norm, mlp.norm))
        heads, inner = layer.heads, mlp.weight.shape[0] // 2
        sizes = heads.num_kv, heads.group, heads.dim, inner, GATES[mlp.act]
        return cls(*map(_pointer, weights), *norms, *sizes, layer.scoring.scale_of(heads.dim))


class NativeLayers:
    """Layers, each with the norm before it, that `native.c` runs one after the other."""

    def __init__(
        self, library: ctypes.CDLL, layers: Sequence[tuple[Norm | None, FusedLayer]]
    ) -> None:
        self._run = library.run_layers
        self._kept = layers  # the weights must outlive the pointers
        made = [_Layer.of(norm, layer, layer.mlp) for norm, layer in layers]  # type: ignore[arg-type]
        self.layers = (_Layer * len(made))(*made)
        self._width = max(
            max(layer.heads.query_width + layer.qkv.shape[0], one.inner)
            for one, (_, layer) in zip(made, layers, strict=True)
        )

    def __call__(
        self, x: Tensor, first: int, caches: Sequence[CacheRows], slots: CacheSlots,
        tree_mask: TreeMask, attended: Tensor | None = None,
    ) -> None:  # fmt: skip
        cos_sin, bias = slots.cos_sin, tree_mask.bias.contiguous()
        layers = ctypes.byref(self.layers, first * ctypes.sizeof(_Layer))
        work = x.new_empty(x.shape[0] * self._width)
        self._run(
            layers, _rows_of(caches), len(caches), x.data_ptr(), *x.shape, _pointer(attended),
            0 if attended is None else attended.shape[1], work.data_ptr(), cos_sin.data_ptr(),
            cos_sin[0].numel() if cos_sin.shape[0] > 1 else 0, slots.rows.data_ptr(),
            num_seen(tree_mask), bias.data_ptr(), bias.shape[1], torch.get_num_threads(),
        )  # fmt: skip


class _Head(ctypes.Structure):
    _fields_ = (
        ("layers", _POINTER), ("count", _LONG),
        *((name, _POINTER) for name in ("embedding", "fc", "fc_bias", "head", "head_bias")),
        ("token_ids", _POINTER), *((name, _Norm) for name in _HEAD_NORMS),
        *((name, _LONG) for name in ("hidden", "vocab_size", "is_residual_normed")),
    )  # fmt: skip


class NativeHead:
    """A draft model whose levels `native.c` drafts in one call."""

    def __init__(self, library: ctypes.CDLL, head: DraftHead, layers: NativeLayers) -> None:
        self._run, self._kept = library.draft_levels, head
        fc, made = head.fc, layers.layers
        of_fc = (None, None) if fc is None else (fc.weight, fc.bias)
        parts = [head.embedding, *of_fc, head.head.weight, head.head.bias, head.token_ids]
        self._head = _Head(
            ctypes.addressof(made), len(made),
            *map(_pointer, parts), *(_Norm(*_parts(getattr(head, name))) for name in _HEAD_NORMS),
            head.embedding.shape[1], len(head.head.weight), head.is_residual_normed,
        )  # fmt: skip

    def __call__(
        self, hidden: Tensor, end: int, caches: Sequence[CacheRows], cos_sin: Tensor, levels: int,
        scores: Tensor, tokens: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        k, size = len(scores), len(scores) * (1 + levels * len(scores))
        scores = torch.cat([scores, scores.new_empty(size - k)])
        tokens = torch.cat([tokens, tokens.new_empty(size - k)])
        nodes = tokens.new_empty(levels * k)
        self._run(
            ctypes.byref(self._head), _rows_of(caches), levels, k, end, hidden.data_ptr(),
            cos_sin.data_ptr(), scores.data_ptr(), tokens.data_ptr(), nodes.data_ptr(),
            torch.get_num_threads(),
        )  # fmt: skip
        return scores, tokens, nodes


def can_run(norm: Norm | None, layer: FusedLayer, dtype: torch.dtype, width: int) -> bool:
    """True if `native.c`, with vectors of `width` numbers, has all that the layer needs."""
    mlp = layer.mlp
    return (
        isinstance(mlp, DenseMlp) and mlp.act in GATES
        and layer.post_norm is None and mlp.post_norm is None
        and layer.scoring.is_plain and layer.heads.dim % width == 0
        and all(one.dtype == dtype for one in (layer.qkv, layer.o.weight, mlp.weight))
        and layer.o.weight.is_contiguous() and mlp.down.weight.is_contiguous()
        and (norm is None or norm.weight.is_contiguous())
    )  # fmt: skip


def num_seen(tree_mask: TreeMask) -> int:
    """Number of cached rows that all rows see."""
    span = tree_mask.cache_span
    return span.num_rows if span.is_exact else int(tree_mask.start)


class NativeOps(Ops):
    """Operations of `native.c` for float32 or bfloat16; torch's for the cases that it lacks."""

    max_exact_rows = MAX_ROWS

    def __init__(self, library: ctypes.CDLL, compiler: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.name = f"native code ({compiler}{', AMX' if library.uses_amx() else ''})"
        self._library, self._dtype = library, dtype
        self._width: int = library.vector_width()

    def place(self, model: nn.Module) -> None:
        huge_pages.move(model)

    def join(self, layers: Sequence[tuple[Norm | None, Any]]) -> JoinedLayers | None:
        if not all(can_run(*layer, self._dtype, self._width) for layer in layers):
            return None
        return NativeLayers(self._library, layers)

    def join_head(self, head: DraftHead, top_k: int) -> JoinedHead | None:
        linears = (head.head, *([head.fc] if head.fc else []))
        weights = (head.embedding, *(linear.weight for linear in linears))
        is_known = all(one.dtype == self._dtype and one.is_contiguous() for one in weights)
        if not isinstance(head.layers, NativeLayers) or not is_known or top_k > MOST_BEST:
            return None
        return NativeHead(self._library, head, head.layers)

    def norm(self, x: Tensor, norm: Norm, residual: Tensor | None = None) -> Tensor:
        out = torch.empty_like(x) if residual is None else residual
        if not (self._takes(x) and out.is_contiguous()):
            return super().norm(x, norm, residual)
        self._library.norm_rows(
            out.data_ptr(), x.data_ptr(), x.stride(0), *x.shape, *_parts(norm),
            residual is not None,
        )  # fmt: skip
        return out

    def project(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *, norm: Norm | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        takes = self._takes(x) and weight.is_contiguous() and weight.dtype == self._dtype
        if not takes or not (residual is None or residual.is_contiguous()):
            return super().project(x, weight, bias, norm=norm, residual=residual)
        out = x.new_empty(x.shape[0], weight.shape[0]) if residual is None else residual
        return self._run(out, x, weight, bias, _PLAIN if residual is None else _ADDED, norm)

    def project_each(self, x: Tensor, weights: Tensor, biases: Tensor | None = None) -> Tensor:
        if not (self._takes(x) and weights.is_contiguous() and weights.dtype == self._dtype):
            return super().project_each(x, weights, biases)
        num, columns, size = weights.shape
        out = x.new_empty(num, columns)
        self._library.product_each(
            out.data_ptr(), x.data_ptr(), x.stride(0), num, size, weights.data_ptr(), columns,
            _pointer(biases), torch.get_num_threads(),
        )  # fmt: skip
        return out

    def gated(self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm, act: Act) -> Tensor:
        kind = GATES.get(act)
        if kind is None or not self._takes(x) or weight.dtype != self._dtype:
            return super().gated(x, weight, bias, norm, act)
        out = x.new_empty(x.shape[0], weight.shape[0] // 2)
        return self._run(out, x, weight, bias, kind, norm)

    def topk_logprobs(self, logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
        if not self._has_best(logits, k):
            return super().topk_logprobs(logits, k)
        log_probs = logits.new_empty(logits.shape[0], k, dtype=torch.float32)
        return log_probs, self._best(logits, k, log_probs)

    def best_ids(self, logits: Tensor) -> Tensor:
        return self.topk_ids(logits, 1)[:, 0] if self._takes(logits) else super().best_ids(logits)

    def topk_ids(self, logits: Tensor, k: int) -> Tensor:
        return self._best(logits, k) if self._has_best(logits, k) else super().topk_ids(logits, k)

    def _has_best(self, logits: Tensor, k: int) -> bool:
        return self._takes(logits) and k <= min(MOST_BEST, logits.shape[1])

    def _best(self, logits: Tensor, k: int, log_probs: Tensor | None = None) -> Tensor:
        ids = logits.new_empty(logits.shape[0], k, dtype=torch.long)
        self._library.best_tokens(
            logits.data_ptr(), logits.stride(0), *logits.shape, k, ids.data_ptr(),
            _pointer(log_probs), torch.get_num_threads(),
        )  # fmt: skip
        return ids

    def write_kv(
        self, qkv: Tensor, cached: CacheRows, slots: CacheSlots, heads: Heads,
        norm: HeadNorm | None = None,
    ) -> None:  # fmt: skip
        if not (self._takes(qkv) and slots.cos_sin.is_contiguous() and slots.rows.is_contiguous()):
            super().write_kv(qkv, cached, slots, heads, norm)
            return
        cos_sin = slots.cos_sin
        self._library.write_kv(
            qkv.data_ptr(), qkv.stride(0), qkv.shape[0], heads.num_kv * heads.group, heads.num_kv,
            heads.dim, cos_sin.data_ptr(), 2 * heads.dim if cos_sin.shape[0] > 1 else 0,
            slots.rows.data_ptr(), cached.all.data_ptr(), cached.all.stride(0), *_parts(norm),
        )  # fmt: skip

    def attend(
        self, queries: Tensor, cached: CacheRows, tree_mask: TreeMask | None, heads: Heads,
        scoring: Scoring = PLAIN, window: int | None = None,
    ) -> Tensor:  # fmt: skip
        masked = tree_mask and tree_mask.within(window)
        if (
            masked is None or masked.begins is not None or not scoring.is_plain
            or heads.dim % self._width or not self._takes(queries)
        ):  # fmt: skip
            return super().attend(queries, cached, tree_mask, heads, scoring, window)
        bias = masked.bias.contiguous()
        out = queries.new_empty(queries.shape[0], heads.query_width)
        self._library.attend(
            out.data_ptr(), queries.data_ptr(), queries.stride(0), queries.shape[0], heads.num_kv,
            heads.group, heads.dim, cached.keys.data_ptr(), cached.values.data_ptr(),
            cached.all.stride(0), num_seen(masked), bias.data_ptr(), bias.shape[1],
            scoring.scale_of(heads.dim), torch.get_num_threads(),
        )  # fmt: skip
        return out

    def _takes(self, x: Tensor) -> bool:
        """True if rows x [n, size] are few enough, of the library's dtype, and lie together."""
        return x.shape[0] <= MAX_ROWS and x.dtype == self._dtype and x.stride(1) == 1

    def _run(
        self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, kind: int,
        norm: Norm | None,
    ) -> Tensor:  # fmt: skip
        self._library.product(
            out.data_ptr(), x.data_ptr(), x.stride(0), *x.shape, weight.data_ptr(), out.shape[1],
            _pointer(bias), kind, *_parts(norm), torch.get_num_threads(),
        )  # fmt: skip
        return out


def native_ops(dtype: torch.dtype, folder: Path) -> NativeOps:
    """Compiled operations; the library is kept in `folder`.

    Raises:
        BuildError: the dtype is not supported, or a compiler or torch's OpenMP is missing.
    """
    if dtype not in (torch.float32, torch.bfloat16):
        raise BuildError(f"there is no code for {str(dtype).removeprefix('torch.')}")
    libraries = sorted(Path(torch.__file__).with_name("lib").glob("libgomp*.so*"))
    if not libraries:
        raise BuildError("torch brings no GNU OpenMP to share threads with")
    library, compiler = load_library(folder, libraries[0], is_half=dtype == torch.bfloat16)
    return NativeOps(library, compiler, dtype)
