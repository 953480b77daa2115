"""What the operations of a decoder layer take on a device, beside its memory bandwidth.

    python -m benchmarks.layer_time [--device cuda] [--dtype bfloat16] [--model M] [--rows N ...]

Random weights in the shape of a model, as many layers as no cache holds. Every operation runs over
all of them in turn, on a GPU as one recording, and the fastest of several rounds counts: of our
kernels as a run would use them, of these one after the other, and of torch's own operations. The
share is that of the bandwidth at which a kernel reads its weights; that of the whole layer is the
ceiling of a decoding step.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import silu

from specbench.bench.bandwidth import bandwidth, cache_bytes
from specbench.bench.models import find_model
from specbench.engine.graphs import CudaRecorder
from specbench.engine.ops import CacheRows, Heads, Norm, Ops, Place, Reach, View
from specbench.engine.pick_ops import pick_ops
from specbench.types import Shape

ROUNDS, REPLAYS = 10, 20
LEAST_BYTES = 2**28
Work: TypeAlias = Callable[[Ops], object]


@dataclass(frozen=True)
class Layer:
    """The weights and the cache of one layer."""

    qkv: Tensor
    o: Tensor
    gate_up: Tensor
    down: Tensor
    cached: CacheRows


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--model", default="vicuna-13b")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 6, 10, 26, 60])
    parser.add_argument("--cached", type=int, default=500, help="rows in the cache")
    given = parser.parse_args(argv)
    device, dtype = torch.device(given.device), getattr(torch, given.dtype)
    shape = find_model(given.model).shape
    if shape is None:
        print(f"{given.model} tells no shape.", file=sys.stderr)
        return 2
    ways = _ways(device, dtype)
    fastest = bandwidth(device)
    print(f"{given.model}, {given.dtype}, {fastest / 1e9:.0f} GB/s, {given.cached} rows cached")
    print(f"{'rows':>4}  {'operation':<12}{'MB':>7}" + "".join(f"{name:>30}" for name in ways))
    with torch.inference_mode():
        layers = _layers(shape, given.cached, device, dtype)
        for num_rows in given.rows:
            for name, (work, size) in _works(shape, layers, num_rows, given.cached).items():
                columns = []
                for ops in ways.values():
                    seconds = _seconds(partial(work, ops), device) / len(layers)
                    share = f"{size / seconds / fastest:6.0%}" if size else " " * 6
                    columns.append(f"{seconds * 1e6:17.1f} us {share}")
                sizes = f"{size / 1e6:7.1f}" if size else " " * 7
                cells = "".join(f"{column:>30}" for column in columns)
                print(f"{num_rows:>4}  {name:<12}{sizes}{cells}")
    return 0


def _ways(device: torch.device, dtype: torch.dtype) -> Mapping[str, Ops]:
    """Operations by name, those that a run uses first."""
    if device.type == "cpu":
        return {"torch": Ops()}
    ops = pick_ops(device, dtype)
    if ops.why_no_kernels:
        print(f"No kernels: {ops.why_no_kernels}", file=sys.stderr)
        return {"torch": ops}
    from specbench.engine.triton_ops import TritonOps

    plain = TritonOps(torch.cuda.get_device_properties(device).multi_processor_count)
    return {ops.name: ops, plain.name: plain, "torch": Ops()}


def _layers(shape: Shape, cached: int, device: torch.device, dtype: torch.dtype) -> list[Layer]:
    """Layers that together are larger than any cache, four times that of the device."""
    heads = _heads(shape)

    def drawn(*size: int) -> Tensor:
        return torch.randn(size, device=device, dtype=dtype).mul_(size[-1] ** -0.5)

    def one() -> Layer:
        rows = drawn(cached + 128, 2 * heads.kv_width)
        return Layer(
            drawn(heads.query_width + 2 * heads.kv_width, shape.hidden_size),
            drawn(shape.hidden_size, heads.query_width),
            drawn(2 * shape.intermediate_size, shape.hidden_size),
            drawn(shape.hidden_size, shape.intermediate_size),
            CacheRows.of(rows, *[(heads.num_kv, heads.dim)] * 2),
        )

    layers = [one()]
    # The smallest matrix decides: an operation runs over that of each layer in turn.
    least = max(LEAST_BYTES, 4 * cache_bytes(device))
    while len(layers) * layers[0].o.nbytes < least and len(layers) < shape.num_layers:
        layers.append(one())
    return layers


def _heads(shape: Shape) -> Heads:
    return Heads(shape.num_kv_heads, shape.num_heads // shape.num_kv_heads, shape.head_dim)


def _works(
    shape: Shape, layers: Sequence[Layer], n: int, cached: int
) -> dict[str, tuple[Work, int]]:
    """Operations over all layers on n rows, and the bytes of weights that one layer's reads."""
    like, heads = layers[0].qkv, _heads(shape)
    x = like.new_ones(n, shape.hidden_size)
    qkv = like.new_ones(n, like.shape[0])
    queries, inner = qkv[:, : heads.query_width], like.new_ones(n, shape.intermediate_size)
    norm = Norm(like.new_ones(shape.hidden_size), 1e-5)
    bias = torch.full((n, n), torch.finfo(like.dtype).min, device=like.device, dtype=like.dtype)
    start = torch.full((), cached, device=like.device)
    view = View(start, bias.triu_(1), Reach(cached + 128, is_exact=False))
    turn = like.new_zeros(n, 2, 1, 2, heads.dim // 2)
    place = Place(cached + torch.arange(n, device=like.device), turn)

    def each(step: Callable[[Ops, Layer], object]) -> Work:
        def run(ops: Ops) -> None:
            for layer in layers:
                step(ops, layer)

        return run

    def whole(ops: Ops, layer: Layer) -> None:
        joined = ops.project(x, layer.qkv, norm=norm)
        ops.keep(joined, layer.cached, place, heads)
        attended = ops.attend(joined[:, : heads.query_width], layer.cached, view, heads)
        ops.project(attended, layer.o, onto=x)
        ops.project(ops.gated(x, layer.gate_up, None, norm, silu), layer.down, onto=x)

    first = layers[0]
    total = sum(part.nbytes for part in (first.qkv, first.o, first.gate_up, first.down))
    return {
        "q, k, v": (each(lambda o, it: o.project(x, it.qkv, norm=norm)), first.qkv.nbytes),
        "turn, keep": (each(lambda o, it: o.keep(qkv, it.cached, place, heads)), 0),
        "attention": (each(lambda o, it: o.attend(queries, it.cached, view, heads)), 0),
        "output": (each(lambda o, it: o.project(queries, it.o, onto=x)), first.o.nbytes),
        "gate, up": (
            each(lambda o, it: o.gated(x, it.gate_up, None, norm, silu)), first.gate_up.nbytes
        ),
        "down": (each(lambda o, it: o.project(inner, it.down, onto=x)), first.down.nbytes),
        "layer": (each(whole), total),
    }  # fmt: skip


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of the fastest round: on a GPU many replays in a row, since a launch takes time too."""
    if device.type == "cpu":
        return min(_timed(work) for _ in range(ROUNDS))

    def recorded() -> tuple[Tensor, ...]:
        work()
        return ()

    replay = CudaRecorder(device)(recorded, ()).replay
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(ROUNDS):
        began.record()
        for _ in range(REPLAYS):
            replay()
        ended.record()
        ended.synchronize()
        times.append(began.elapsed_time(ended) / 1e3 / REPLAYS)
    return min(times)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
