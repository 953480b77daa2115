"""Operations on a CPU in our own compiled code, for few rows of tokens.

A step of a small model takes hundreds of operations of a few microseconds each, and torch takes as
long just to start an operation. Each operation here does the work of several. A row's result
does not depend on the rows beside it, so a tree's logits equal vanilla's bit by bit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from specbench.engine import huge_pages
from specbench.engine.kernels.native_build import BuildError, load_library
from specbench.engine.kernels.native_layers import (
    GATES,
    NativeHead,
    NativeLayers,
    address,
    can_run,
    cos_sin_stride,
    norm_arguments,
    num_seen,
)
from specbench.engine.layers.experts import Act
from specbench.engine.layers.operands import CacheRows, CacheSlots, HeadNorm, Heads, Norm, TreeMask
from specbench.engine.layers.ops import DraftHead, JoinedHead, JoinedLayers, Ops
from specbench.engine.layers.torch_attention import PLAIN, Scoring

MAX_ROWS = 128
"""Largest number of rows for which these operations run. Torch runs if there are more rows."""
MOST_BEST = 64
"""Largest number of best tokens that `native.c` finds per row."""
_PLAIN = 0
"""The `kind` in `native.c` of a product that overwrites the output."""
_ADDED = 1
"""The `kind` in `native.c` of a product that is added to the output."""


class NativeOps(Ops):
    """The operations of `native.c` for float32 or bfloat16. Torch runs all other cases."""

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
        weights = [head.embedding, head.head.weight]
        if head.fc:
            weights.append(head.fc.weight)
        if not isinstance(head.layers, NativeLayers) or top_k > MOST_BEST:
            return None
        if any(weight.dtype != self._dtype or not weight.is_contiguous() for weight in weights):
            return None
        return NativeHead(self._library, head, head.layers)

    def norm(self, x: Tensor, norm: Norm, residual: Tensor | None = None) -> Tensor:
        out = torch.empty_like(x) if residual is None else residual
        if not (self._takes(x) and out.is_contiguous()):
            return super().norm(x, norm, residual)
        self._library.norm_rows(
            out.data_ptr(),
            x.data_ptr(), x.stride(0), *x.shape,
            *norm_arguments(norm),
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
        if residual is not None:
            return self._run(residual, x, weight, bias, _ADDED, norm)
        out = x.new_empty(x.shape[0], weight.shape[0])
        return self._run(out, x, weight, bias, _PLAIN, norm)

    def project_each(self, x: Tensor, weights: Tensor, biases: Tensor | None = None) -> Tensor:
        if not (self._takes(x) and weights.is_contiguous() and weights.dtype == self._dtype):
            return super().project_each(x, weights, biases)
        n, num_out, size = weights.shape
        out = x.new_empty(n, num_out)
        self._library.product_each(
            out.data_ptr(),
            x.data_ptr(), x.stride(0), n, size,
            weights.data_ptr(), num_out, address(biases),
            torch.get_num_threads(),
        )  # fmt: skip
        return out

    def gated(self, x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm, act: Act) -> Tensor:
        gate = GATES.get(act)
        if gate is None or not self._takes(x) or weight.dtype != self._dtype:
            return super().gated(x, weight, bias, norm, act)
        out = x.new_empty(x.shape[0], weight.shape[0] // 2)
        return self._run(out, x, weight, bias, gate, norm)

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
        """True if the library can find the k best tokens of these logits [n, vocab]."""
        return self._takes(logits) and k <= min(MOST_BEST, logits.shape[1])

    def _best(self, logits: Tensor, k: int, log_probs: Tensor | None = None) -> Tensor:
        """The ids [n, k] of the best tokens. If given, `log_probs` gets their log-probabilities."""
        ids = logits.new_empty(logits.shape[0], k, dtype=torch.long)
        self._library.best_tokens(
            logits.data_ptr(), logits.stride(0), *logits.shape,
            k, ids.data_ptr(), address(log_probs),
            torch.get_num_threads(),
        )  # fmt: skip
        return ids

    def write_kv(
        self, qkv: Tensor, cached: CacheRows, slots: CacheSlots, heads: Heads,
        norm: HeadNorm | None = None,
    ) -> None:  # fmt: skip
        cos_sin, cache = slots.cos_sin, cached.all
        if not (self._takes(qkv) and cos_sin.is_contiguous() and slots.rows.is_contiguous()):
            super().write_kv(qkv, cached, slots, heads, norm)
            return
        num_queries = heads.num_kv * heads.group
        self._library.write_kv(
            qkv.data_ptr(), qkv.stride(0), qkv.shape[0],
            num_queries, heads.num_kv, heads.dim,
            cos_sin.data_ptr(), cos_sin_stride(slots),
            slots.rows.data_ptr(), cache.data_ptr(), cache.stride(0),
            *norm_arguments(norm),
        )  # fmt: skip

    def attend(
        self, queries: Tensor, cached: CacheRows, tree_mask: TreeMask | None, heads: Heads,
        scoring: Scoring = PLAIN, window: int | None = None,
    ) -> Tensor:  # fmt: skip
        mask = tree_mask and tree_mask.within(window)
        takes = self._takes(queries) and heads.dim % self._width == 0 and scoring.is_plain
        if mask is None or mask.begins is not None or not takes:
            return super().attend(queries, cached, tree_mask, heads, scoring, window)
        bias = mask.bias.contiguous()
        out = queries.new_empty(queries.shape[0], heads.query_width)
        self._library.attend(
            out.data_ptr(),
            queries.data_ptr(), queries.stride(0), queries.shape[0],
            heads.num_kv, heads.group, heads.dim,
            cached.keys.data_ptr(), cached.values.data_ptr(), cached.all.stride(0),
            num_seen(mask), bias.data_ptr(), bias.shape[1],
            scoring.scale_of(heads.dim),
            torch.get_num_threads(),
        )  # fmt: skip
        return out

    def _takes(self, x: Tensor) -> bool:
        """True if x [n, size] has few enough rows, contiguous rows, and the library's dtype."""
        return x.shape[0] <= MAX_ROWS and x.dtype == self._dtype and x.stride(1) == 1

    def _run(
        self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, kind: int,
        norm: Norm | None,
    ) -> Tensor:  # fmt: skip
        """Write a product to `out` [n, output]. `kind` selects a plain, added or gated product."""
        self._library.product(
            out.data_ptr(),
            x.data_ptr(), x.stride(0), *x.shape,
            weight.data_ptr(), out.shape[1], address(bias),
            kind,
            *norm_arguments(norm),
            torch.get_num_threads(),
        )  # fmt: skip
        return out


def native_ops(dtype: torch.dtype, folder: Path) -> NativeOps:
    """The compiled operations. Their library is kept in `folder`.

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
