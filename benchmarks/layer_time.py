"""Time the operations of a decoder layer on a device, and compare them with its memory bandwidth.

    python -m benchmarks.layer_time [--device cuda] [--dtype bfloat16] [--model M] [--rows N ...]
                                    [--out FILE.jsonl]

It uses random weights in the shape of a model, in more layers than a hardware cache holds. Each
operation runs over all layers, one after the other. On a GPU this is one captured graph. The
fastest of several rounds counts. The columns are our kernels as in a run, the same kernels without
overlap, and torch's own operations. The share is the speed at which a kernel reads its weights,
divided by the bandwidth. No decoding step can have a larger share than the whole layer.

If an operation fails, its reason is printed, and the others are still measured. `--out` writes each
measurement as a line of JSON as soon as it is made.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import timeit
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import silu

from specbench.engine.graphs.recorder import CudaRecorder
from specbench.engine.kernels.pick_ops import pick_ops
from specbench.engine.layers.operands import CacheRows, CacheSlots, CacheSpan, Heads, Norm, TreeMask
from specbench.engine.layers.ops import Ops
from specbench.errors import reason_of
from specbench.machine.bandwidth import bandwidth, cache_bytes
from specbench.models.cards import find_model
from specbench.types import Shape

ROUNDS, REPLAYS = 10, 20
"""Number of rounds, and of replays of a graph in a round."""
LEAST_BYTES = 2**28
"""Smallest number of bytes that an operation reads from all layers together."""
Work: TypeAlias = Callable[[Ops], object]
"""Computes something with the given operations."""


@dataclass(frozen=True)
class Rows:
    """The rows of a step, as a layer receives them."""

    x: Tensor  # [n, hidden]
    norm: Norm
    slots: CacheSlots
    tree_mask: TreeMask
    heads: Heads


@dataclass(frozen=True)
class Layer:
    """The weights and the cache rows of one layer."""

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
    parser.add_argument("--out", type=Path, help="JSONL file of the results")
    given = parser.parse_args(argv)
    shape = find_model(given.model).shape
    if shape is None:
        print(f"The shape of {given.model} is not known.", file=sys.stderr)
        return 2
    with ExitStack() as stack:
        out = stack.enter_context(given.out.open("w", encoding="utf-8")) if given.out else None
        stack.enter_context(torch.inference_mode())
        _measure(given, shape, out)
    return 0


def _measure(given: argparse.Namespace, shape: Shape, out: TextIO | None) -> None:
    """Print the table of operations, and write each measurement to `out`."""
    device, dtype = torch.device(given.device), getattr(torch, given.dtype)
    ways = _ways(device, dtype)
    fastest = bandwidth(device)
    print(f"{given.model}, {given.dtype}, {fastest / 1e9:.0f} GB/s, {given.cached} rows cached")
    print(f"{'rows':>4}  {'operation':<12}{'MB':>7}" + "".join(f"{name:>30}" for name in ways))
    layers = _layers(shape, given.cached, device, dtype)
    for num_rows in given.rows:
        for name, (work, size) in _works(shape, layers, num_rows, given.cached).items():
            sizes = f"{size / 1e6:7.1f}" if size else " " * 7
            print(f"{num_rows:>4}  {name:<12}{sizes}", end="")
            for way, ops in ways.items():
                seconds, reason = _measured(partial(work, ops), device)
                seconds /= len(layers)
                share = size / seconds / fastest if size and not reason else None
                print(_cell(seconds, share), end="", flush=True)
                if reason:
                    print(f"{name}, {num_rows} rows, {way}: {reason}", file=sys.stderr)
                if out:
                    us = None if reason else round(seconds * 1e6, 3)
                    line = {"rows": num_rows, "operation": name, "way": way, "weight_bytes": size}
                    line |= {"us": us, "share": share, "reason": reason}
                    print(json.dumps(line), file=out, flush=True)
            print()


def _measured(work: Callable[[], object], device: torch.device) -> tuple[float, str | None]:
    """Time a call. Returns its seconds and None, or infinity and the reason that it fails."""
    try:
        return _seconds(work, device), None
    except Exception as error:  # from a compiler, or a kernel too large for the device
        return math.inf, reason_of(error)


def _cell(seconds: float, share: float | None) -> str:
    """A cell of the table: the time, and the share of the bandwidth."""
    if seconds == math.inf:
        return f"{'fails':>30}"
    text = " " * 6 if share is None else f"{share:6.0%}"
    return f"{seconds * 1e6:17.1f} us {text}".rjust(30)


def _ways(device: torch.device, dtype: torch.dtype) -> Mapping[str, Ops]:
    """Sets of operations by name; the set that a run would use comes first."""
    if device.type == "cpu":
        return {"torch": Ops()}
    ops = pick_ops(device, dtype)
    if ops.kernels_unsupported_reason:
        print(f"No kernels: {ops.kernels_unsupported_reason}", file=sys.stderr)
        return {"torch": ops}
    from specbench.engine.kernels.triton_ops import TritonOps

    assert isinstance(ops, TritonOps)
    plain = TritonOps(torch.cuda.get_device_properties(device).multi_processor_count)
    return {ops.name: ops, plain.name: plain, "torch": Ops()}


def _layers(shape: Shape, cached: int, device: torch.device, dtype: torch.dtype) -> list[Layer]:
    """Make enough layers with random weights to exceed every cache of the device."""
    heads = _heads(shape)

    def drawn(*size: int) -> Tensor:
        return torch.randn(size, device=device, dtype=dtype).mul_(size[-1] ** -0.5)

    def new_layer() -> Layer:
        rows = drawn(cached + 128, 2 * heads.kv_width)
        return Layer(
            drawn(heads.query_width + 2 * heads.kv_width, shape.hidden_size),
            drawn(shape.hidden_size, heads.query_width),
            drawn(2 * shape.intermediate_size, shape.hidden_size),
            drawn(shape.hidden_size, shape.intermediate_size),
            CacheRows.of(rows, *[(heads.num_kv, heads.dim)] * 2),
        )

    layers = [new_layer()]
    # The matrices `o`, the smallest ones, must together be four times as large as the cache.
    least = max(LEAST_BYTES, 4 * cache_bytes(device))
    while len(layers) * layers[0].o.nbytes < least and len(layers) < shape.num_layers:
        layers.append(new_layer())
    return layers


def _heads(shape: Shape) -> Heads:
    return Heads(shape.num_kv_heads, shape.num_heads // shape.num_kv_heads, shape.head_dim)


def _works(
    shape: Shape, layers: Sequence[Layer], n: int, cached: int
) -> dict[str, tuple[Work, int]]:
    """The work of each operation over all layers on n rows, and the weight bytes read per layer."""
    first, rows = layers[0], _rows(shape, layers[0].qkv, n, cached)
    x, norm, slots, tree_mask, heads = rows.x, rows.norm, rows.slots, rows.tree_mask, rows.heads
    qkv, inner = x.new_ones(n, first.qkv.shape[0]), x.new_ones(n, shape.intermediate_size)
    queries = qkv[:, : heads.query_width]

    def over_layers(step: Callable[[Ops, Layer], object]) -> Work:
        def run(ops: Ops) -> None:
            for layer in layers:
                step(ops, layer)

        return run

    steps: dict[str, Callable[[Ops, Layer], object]] = {
        "q, k, v": lambda ops, layer: ops.project(x, layer.qkv, norm=norm),
        "rope, cache": lambda ops, layer: ops.write_kv(qkv, layer.cached, slots, heads),
        "attention": lambda ops, layer: ops.attend(queries, layer.cached, tree_mask, heads),
        "output": lambda ops, layer: ops.project(queries, layer.o, residual=x),
        "gate, up": lambda ops, layer: ops.gated(x, layer.gate_up, None, norm, silu),
        "down": lambda ops, layer: ops.project(inner, layer.down, residual=x),
        "layer": partial(_whole, rows, x),
    }
    bytes_read = {
        "q, k, v": first.qkv.nbytes,
        "output": first.o.nbytes,
        "gate, up": first.gate_up.nbytes,
        "down": first.down.nbytes,
    }
    bytes_read["layer"] = sum(bytes_read.values())
    return {name: (over_layers(step), bytes_read.get(name, 0)) for name, step in steps.items()}


def _rows(shape: Shape, like: Tensor, n: int, cached: int) -> Rows:
    """The inputs of a step over a chain of n rows, after `cached` rows of the cache."""
    heads = _heads(shape)
    bias = torch.full((n, n), torch.finfo(like.dtype).min, device=like.device, dtype=like.dtype)
    start = torch.full((), cached, device=like.device)
    return Rows(
        like.new_ones(n, shape.hidden_size),
        Norm(like.new_ones(shape.hidden_size), 1e-5),
        CacheSlots(
            cached + torch.arange(n, device=like.device),
            like.new_zeros(n, 2, 1, 2, heads.dim // 2),
        ),
        TreeMask(start, bias.triu_(1), CacheSpan(cached + 128, is_exact=False)),
        heads,
    )


def _whole(rows: Rows, x: Tensor, ops: Ops, layer: Layer) -> None:
    """Run a whole layer over x [n, hidden], in place."""
    heads = rows.heads
    joined = ops.project(x, layer.qkv, norm=rows.norm)
    ops.write_kv(joined, layer.cached, rows.slots, heads)
    attended = ops.attend(joined[:, : heads.query_width], layer.cached, rows.tree_mask, heads)
    ops.project(attended, layer.o, residual=x)
    ops.project(ops.gated(x, layer.gate_up, None, rows.norm, silu), layer.down, residual=x)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The seconds of the fastest round. On a GPU, a round has many replays to hide launch times."""
    if device.type == "cpu":
        return min(timeit.repeat(work, number=1, repeat=ROUNDS))

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


if __name__ == "__main__":
    sys.exit(main())
