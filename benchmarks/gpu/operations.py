"""Single operations on a GPU: their costs, and their results with overlapping launches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from benchmarks.gpu.check import Check, CheckSettings
from benchmarks.layer_time import Layer, _heads, _layers, _seconds
from specbench.engine.attention import without_cudnn_attention
from specbench.engine.graphs.recorder import CudaRecorder, Recorder
from specbench.engine.kernels.products import FEW, ROW, Launch, Product
from specbench.engine.layers.operands import CacheSlots, CacheSpan, Norm, TreeMask
from specbench.engine.layers.ops import Ops
from specbench.machine.bandwidth import bandwidth
from specbench.types import Shape

if TYPE_CHECKING:
    from specbench.engine.kernels.triton_ops import TritonOps

NEW_MS = 5.0
"""Largest allowed milliseconds of attention's first call at a new length."""
ROWS = (2, 10, 16, 26, 60, 64)
RACES: tuple[tuple[int, Launch], ...] = (
    *((1, launch) for launch in ROW),
    *((num_rows, FEW) for num_rows in (2, 16, 17, 26, 33, 64)),
    *((num_rows, None) for num_rows in (10, 60)),
)
"""Rows and the launch of their products, for replays with overlapped launches."""
COLD_BYTES = 300e6
"""Bytes of weights that exceed any hardware cache."""
CACHED = 500
LayerWork: TypeAlias = Callable[[Ops], tuple[Tensor, ...]]


def attention_at_new_lengths(settings: CheckSettings) -> Iterator[Check]:
    """Milliseconds of attention at new lengths, and at the same lengths again."""
    found: dict[str, dict[str, list[float]]] = {}
    ways: dict[str, tuple[AbstractContextManager[None], tuple[int, ...]]] = {
        "torch's default": (nullcontext(), (37, 101, 263)),
        "without cuDNN": (without_cudnn_attention(), (41, 107, 271)),
    }
    for name, (context, lengths) in ways.items():
        with context:
            _attend(settings, 64)  # loads the kernels
            first = [_attend(settings, length) for length in lengths]
            again = [_attend(settings, length) for length in lengths]
        found[name] = {"first_ms": first, "again_ms": again}
    text = "; ".join(
        f"{name} {max(ms['first_ms']):.1f} ms, then {max(ms['again_ms']):.1f}"
        for name, ms in found.items()
    )
    is_ok = max(found["without cuDNN"]["first_ms"]) < NEW_MS
    yield Check("attention at a new length", is_ok if _is_gpu(settings) else None, text, found)


def _attend(settings: CheckSettings, length: int) -> float:
    """Milliseconds of causal attention over `length` rows."""
    heads = (settings.shape.num_heads, settings.shape.head_dim) if settings.shape else (3, 64)
    size = (1, heads[0], length, heads[1])
    x = torch.randn(size, device=settings.device, dtype=settings.dtype)
    if _is_gpu(settings):
        torch.cuda.synchronize(settings.device)
    began = time.perf_counter()
    scaled_dot_product_attention(x, x, x, is_causal=True)
    if _is_gpu(settings):
        torch.cuda.synchronize(settings.device)
    return round(1e3 * (time.perf_counter() - began), 3)


def products(settings: CheckSettings) -> Iterator[Check]:
    """The share of the bandwidth at which torch's products of few rows read their weights."""
    name = "torch's products of few rows"
    shape = settings.shape
    if shape is None or settings.shapes_unsupported_reason:
        yield Check(name, None, settings.shapes_unsupported_reason or "")
        return
    fastest = bandwidth(settings.device)
    before = torch.backends.cuda.preferred_blas_library()
    found: dict[str, dict[str, dict[int, float]]] = {"cublas": {}, "cublaslt": {}}
    try:
        for matrix, (num_out, size) in _matrices(shape).items():
            weights = _cold_weights(num_out, size, settings)
            for library, shares in found.items():
                torch.backends.cuda.preferred_blas_library(library)
                shares[matrix] = {n: _share(weights, n, fastest) for n in ROWS}
    finally:
        torch.backends.cuda.preferred_blas_library(before)
    least = {
        library: min((share, matrix, n) for matrix, row in rows.items() for n, share in row.items())
        for library, rows in found.items()
    }
    text = "; ".join(
        f"{library} at least {share:.0%} ({matrix}, {n} rows)"
        for library, (share, matrix, n) in least.items()
    )
    yield Check(name, None, text, found)


def _matrices(shape: Shape) -> dict[str, tuple[int, int]]:
    """Output and input sizes of a model's matrices."""
    heads = _heads(shape)
    return {
        "q, k, v": (heads.query_width + 2 * heads.kv_width, shape.hidden_size),
        "output": (shape.hidden_size, heads.query_width),
        "gate, up": (2 * shape.intermediate_size, shape.hidden_size),
        "down": (shape.hidden_size, shape.intermediate_size),
        "head": (shape.vocab_size, shape.hidden_size),
    }


def _cold_weights(num_out: int, size: int, settings: CheckSettings) -> list[Tensor]:
    count = max(2, int(COLD_BYTES / (num_out * size * settings.dtype.itemsize)) + 1)
    made = partial(torch.randn, num_out, size, device=settings.device, dtype=settings.dtype)
    return [made() for _ in range(count)]


def _share(weights: Sequence[Tensor], num_rows: int, fastest: float) -> float:
    first = weights[0]
    x = torch.randn(num_rows, first.shape[1], device=first.device, dtype=first.dtype)

    def work() -> None:
        for weight in weights:
            linear(x, weight)

    seconds = _seconds(work, first.device) / len(weights)
    return round(first.nbytes / seconds / fastest, 3)


def overlapping_layers(settings: CheckSettings) -> Iterator[Check]:
    """Compare layers with overlapping launches bit for bit with layers without overlap."""
    name = "layers whose launches overlap"
    shape, device = settings.shape, settings.device
    if shape is None or settings.shapes_unsupported_reason:
        yield Check(name, None, settings.shapes_unsupported_reason or "")
        return
    properties = torch.cuda.get_device_properties(device)
    if properties.major < 9:
        yield Check(name, None, "needs compute capability 9.0")
        return
    num_processors = properties.multi_processor_count
    recorder = CudaRecorder(device)
    with torch.inference_mode():
        layers = _layers(shape, CACHED, device, settings.dtype)
        for num_rows, launch in RACES:
            if launch == FEW and settings.dtype.itemsize != 2:
                continue  # no kernel
            work = layer_work(shape, layers, num_rows)
            plain, early = (
                with_launch(launch, num_processors, is_early=is_early) for is_early in (False, True)
            )
            wrong = num_differing(work, plain, early, recorder, settings.num_replays)
            text = f"{wrong} of {settings.num_replays} replays differ"
            yield Check(f"{name}, {num_rows} rows, {launch or 'cuBLAS'}", wrong == 0, text, wrong)


def with_launch(launch: Launch, num_processors: int, *, is_early: bool) -> TritonOps:
    """Kernels that run products of its kind, of a single row or of few, with this launch."""
    from specbench.engine.kernels.triton_ops import TritonOps

    class Launching(TritonOps):
        def launch_of(self, product: Product) -> Launch:
            is_own = (product.num_rows == 1) == (launch in ROW)
            return launch if is_own else super().launch_of(product)

    return Launching(num_processors, is_early=is_early)


def layer_work(shape: Shape, layers: Sequence[Layer], num_rows: int) -> LayerWork:
    """A step over some layers on random rows: hidden states and best tokens."""
    heads, like, n = _heads(shape), layers[0].qkv, num_rows
    x = torch.randn(n, shape.hidden_size, device=like.device, dtype=like.dtype)
    norm = Norm(torch.rand_like(x[0]) + 0.5, 1e-5)
    bias = like.new_full((n, n), torch.finfo(like.dtype).min).triu_(1)
    cache_span = CacheSpan(CACHED + 128, is_exact=False)
    tree_mask = TreeMask(torch.full((), CACHED, device=like.device), bias, cache_span)
    angles = torch.rand(n, 1, 1, heads.dim // 2, device=like.device)
    cos, sin = angles.cos().expand(-1, -1, 2, -1), angles.sin()
    cos_sin = torch.stack([cos, torch.cat([-sin, sin], 2)], 1).to(like.dtype)
    slots = CacheSlots(CACHED + torch.arange(n, device=like.device), cos_sin)

    def work(ops: Ops) -> tuple[Tensor, ...]:
        y = x.clone()
        for layer in layers:
            joined = ops.project(y, layer.qkv, norm=norm)
            ops.write_kv(joined, layer.cached, slots, heads)
            attended = ops.attend(joined[:, : heads.query_width], layer.cached, tree_mask, heads)
            ops.project(attended, layer.o, residual=y)
            ops.project(ops.gated(y, layer.gate_up, None, norm, silu), layer.down, residual=y)
        return (ops.norm(y, norm), *ops.topk_logprobs(y, 10))

    return work


def num_differing(
    work: LayerWork, plain: Ops, early: Ops, recorder: Recorder, num_replays: int
) -> int:
    """Number of replays with `early` whose results are not bit for bit those of `plain`."""
    expected_by = recorder(partial(work, plain), ())
    expected_by.replay()
    expected = [part.clone() for part in expected_by.outputs]
    recording = recorder(partial(work, early), ())
    wrong = torch.zeros((), dtype=torch.long, device=expected[0].device)
    for _ in range(num_replays):
        recording.replay()
        differs = [(a != b).any() for a, b in zip(recording.outputs, expected, strict=True)]
        wrong += torch.stack(differs).any()
    return int(wrong)


def _is_gpu(settings: CheckSettings) -> bool:
    return settings.device.type == "cuda"
