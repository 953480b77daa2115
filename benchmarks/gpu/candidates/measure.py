"""Time products of 16 to 64 rows with the candidate kernel, with cuBLAS, and with torch.compile.

    python -m benchmarks.gpu.candidates [--device cuda] [--dtype bfloat16] [--model M]
                                        [--rows N ...] [--out FILE.jsonl]

Each operation runs over more layers than the L2 cache holds, as one captured graph. A line of JSON
has its time per layer. It also has the speed at which the operation reads weights, in TB/s and as a
share of the nominal bandwidth. A launch is not timed if its products differ from torch's, or from
run to run.

`gain` is the share of a step's time that a faster layer saves. It assumes that the head takes as
long per byte as a layer whose products are cuBLAS's.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.gpu.candidates.products import LAUNCHES, StreamOps, block_rows_of
from benchmarks.layer_time import Layer, Work, _layers, _measured, _rows, _whole, _works
from specbench.engine.kernels.pick_ops import ALLOWED_ERRORS, relative_error
from specbench.engine.kernels.triton_ops import TritonOps
from specbench.engine.layers.ops import TORCH, Ops
from specbench.errors import reason_of
from specbench.machine.bandwidth import nominal_bandwidth
from specbench.models.cards import find_model
from specbench.types import Shape

SMALL = Shape(2, 64, 128, 2, 1, 512, 2048)
"""The shape for a model whose card has none, as in a dry run."""
CPU_PROCESSORS = 3
"""Number of processors that the launches are made for in Triton's interpreter."""
BASELINE = "cuBLAS"
NUM_PRODUCTS = 3
"""Number of times that a product is computed. Its bits have to be the same each time."""


class Way(NamedTuple):
    """A way to compute the products of a step."""

    name: str
    ops: Ops
    works: Mapping[str, Work]
    """The timed work of each operation, by the operation's name."""


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and write a line per operation."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="vicuna-13b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rows", type=int, nargs="+", default=[60, 32, 16])
    parser.add_argument("--cached", type=int, default=500, help="rows in the cache")
    parser.add_argument("--out", type=Path, default=Path(os.devnull), help="lines of JSON")
    given = parser.parse_args(argv)
    with given.out.open("w", encoding="utf-8") as out, torch.inference_mode():
        for line in map(json.dumps, measurements(given)):
            print(line, flush=True)
            print(line, file=out, flush=True)
    return 0


def measurements(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measure each way with each number of rows, and yield a line for each operation."""
    device, dtype = torch.device(given.device), getattr(torch, given.dtype)
    shape = find_model(given.model).shape or SMALL
    layers = _layers(shape, given.cached, device, dtype)
    works = _works(shape, layers, 1, given.cached)
    num_bytes = {operation: size for operation, (_, size) in works.items()}
    head_bytes = shape.vocab_size * shape.hidden_size * dtype.itemsize
    share_of_layers = 1 / (1 + head_bytes / (shape.num_layers * num_bytes["layer"]))
    nominal = nominal_bandwidth(device)
    for num_rows in given.rows:
        baseline_s = 0.0
        for way in ways_of(shape, layers, num_rows, given.cached):
            reason = fault(way.ops, layers[0], num_rows)
            for operation, work in way.works.items():
                line: dict[str, Any] = {
                    "rows": num_rows,
                    "way": way.name,
                    "operation": operation,
                }
                if reason is None:
                    seconds, reason = _measured(partial(work, way.ops), device)
                if reason is not None:
                    yield {**line, "reason": reason}
                    break
                rate = num_bytes[operation] * len(layers) / seconds
                line["us"] = round(1e6 * seconds / len(layers), 2)
                line["tb_per_s"] = round(rate / 1e12, 6)
                line["share_of_nominal"] = round(rate / nominal, 4) if nominal else None
                if operation == "layer" and (baseline_s or way.name == BASELINE):
                    baseline_s = baseline_s or seconds
                    line["gain"] = round((1 - seconds / baseline_s) * share_of_layers, 4)
                yield line


def ways_of(shape: Shape, layers: list[Layer], num_rows: int, cached: int) -> list[Way]:
    """The ways to compare: a run's kernels with cuBLAS, the candidate's launches, torch.compile."""
    device = layers[0].o.device
    num_processors, is_early = CPU_PROCESSORS, False
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        num_processors, is_early = properties.multi_processor_count, properties.major >= 9
    sized = _works(shape, layers, num_rows, cached)
    works = {operation: work for operation, (work, size) in sized.items() if size}
    streams = [
        StreamOps(num_processors, launch, device, is_early=is_early)
        for launch in LAUNCHES[block_rows_of(num_rows)]
    ]
    return [
        Way(BASELINE, TritonOps(num_processors, is_early=is_early), works),
        *(Way(ops.name, ops, works) for ops in streams),
        Way("torch.compile", TORCH, {"layer": compiled(shape, layers, num_rows, cached)}),
    ]


def compiled(shape: Shape, layers: list[Layer], num_rows: int, cached: int) -> Work:
    """Work that runs every layer, each as one function compiled by torch."""
    rows = _rows(shape, layers[0].o, num_rows, cached)
    assert rows.tree_mask.mask is not None  # made here, since all layers share it
    is_cuda = rows.x.is_cuda
    backend = "inductor" if is_cuda else "eager"
    # On a CPU, operations ask for the number of threads, which divides the graph.
    whole = torch.compile(_whole, backend=backend, dynamic=False, fullgraph=is_cuda)

    def run(ops: Ops) -> None:
        for layer in layers:
            whole(rows, rows.x, ops, layer)

    return run


def fault(ops: Ops, layer: Layer, num_rows: int) -> str | None:
    """The reason that the products of `ops` are wrong, or None if they are right."""
    summed = {"o": layer.o, "down": layer.down}
    for name, weight in ({"qkv": layer.qkv, "gate_up": layer.gate_up} | summed).items():
        x = torch.randn_like(weight[:1].expand(num_rows, -1))
        expected = TORCH.project(x.float(), weight.float()) + (name in summed)
        residual = x.new_ones(expected.shape) if name in summed else None
        try:
            first, *others = [
                ops.project(x, weight, residual=None if residual is None else residual.clone())
                for _ in range(NUM_PRODUCTS)
            ]
        except Exception as error:  # from a compiler or a driver
            return reason_of(error)
        size = relative_error(first, expected)
        if not size <= ALLOWED_ERRORS[weight.dtype]:
            return f"{name} is off by {size:.1e}"
        if not all(torch.equal(first, other) for other in others):
            return f"{name} differs from run to run"
    return None
