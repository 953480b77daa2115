"""Memory: what a checkpoint will need and what the device has, before anything is loaded.

Knows sizes. Loads nothing; torch is only asked how much memory a GPU has left.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specbench.errors import CheckpointError, TooLarge
from specbench.log.machine import gpu_numbers
from specbench.models.cards import Dtype, Shape
from specbench.models.checkpoints import (
    quantization_of,
    read_config,
    safetensors_header,
    weight_files,
)

BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
_FLOATS = {"F64", "F32", "BF16", "F16"}
_DEQUANTIZED_NUMBERS = {"F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 2, "I32": 8}
"""Numbers in an element of quantised weights that are dequantised: of 8 bits, or of 4 bits."""
_CGROUP = Path("/sys/fs/cgroup")
_KERNEL_BYTES = 10_000
"""GPU memory of a kernel in a CUDA graph, by NVIDIA's CCCL library; drivers up to
550 take 64 kB.
"""
_FUSED_KERNELS, _PLAIN_KERNELS, _DRAFT_KERNELS = 10, 110, 100
"""Kernels of a fused layer, of one that transformers runs, and of a draft, or of a rule.

The second is a bound: the largest layer of the tested classes, DeepSeek-V3's, has 102.
"""
_TREE_ROWS = 64
"""Nodes of a large tree."""


_QUANTIZED_BYTES = {"int8": 1.02, "int4": 0.6}
"""Bytes per quantised weight, with its share of the scales."""


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes of the weights, and of keys and values for a whole context.

    `draft_bytes` are those of the methods' own weights, `graph_bytes` those of recorded steps.
    """

    weight_bytes: int
    kv_bytes: int
    draft_bytes: int = 0
    graph_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes + self.draft_bytes + self.graph_bytes


@dataclass(frozen=True, slots=True)
class GraphUse:
    """The settings that decide how many steps a run captures."""

    num_methods: int
    temperatures: tuple[float, ...]

    @property
    def is_sampled(self) -> bool:
        return any(self.temperatures)


def check_fits(
    source: Path | Shape, dtype: Dtype, device: str, *, context: int = 2048,
    what: str = "The model", drafts: Sequence[Path] = (), graphs: GraphUse | None = None,
    quantize: str = "", is_dequantized: bool = False,
) -> MemoryNeed:  # fmt: skip
    """Memory of `source` in `dtype` for `context` tokens, checked against what `device` has free.

    `source` is a checkpoint folder, or a shape when nothing is downloaded yet; `drafts` are the
    methods' folders, of which `source` itself counts once; `graphs` is given where steps are
    recorded, and `quantize` where weights are quantised while they are loaded. With
    `is_dequantized`, stored weights of 4 and 8 bits become plain ones. Raises TooLarge with both
    figures.
    """
    need = estimate(source, dtype, context=context, what=what, is_dequantized=is_dequantized)
    # A config may claim more than its files hold, and the model is made by the config.
    layers, hidden, vocab = _dimensions(source, what)
    claimed = (vocab + layers * hidden) * hidden * BYTES[dtype]
    weights = max(need.weight_bytes, claimed)
    if quantize:
        tables = min(2 * vocab * hidden * BYTES[dtype], weights)  # embeddings and output head
        weights = tables + int((weights - tables) * _QUANTIZED_BYTES[quantize] / BYTES[dtype])
    need = replace(need, weight_bytes=weights)
    draft_bytes = sum(folder_bytes(folder, dtype) for folder in drafts if folder != source)
    recorded = graph_bytes(source, dtype, graphs, context=context, what=what) if graphs else 0
    need = replace(need, draft_bytes=draft_bytes, graph_bytes=recorded)
    check_need(need, dtype, device, context=context, what=what)
    return need


def check_need(need: MemoryNeed, dtype: Dtype, device: str, *, context: int, what: str) -> None:
    """Refuse what `device` has not enough free memory for. Raises TooLarge with both figures."""
    free = free_bytes(device)
    if need.total_bytes > free:
        parts = [
            (need.weight_bytes, "weights"),
            (need.kv_bytes, f"for {context} tokens of context"),
            (need.draft_bytes, "for the methods' own weights"),
            (need.graph_bytes, "for CUDA graphs"),
        ]
        told = ", ".join(f"{_gb(part)} {name}" for part, name in parts if part)
        num_gpus = len(gpu_numbers(device))
        num_needed = -(-need.total_bytes * num_gpus // max(free, 1))  # 0 on a CPU
        has = f"the {num_gpus} GPUs {device} have" if num_gpus > 1 else f"{device} has"
        needed = f": {num_needed} such GPUs are needed" if num_gpus else ""
        raise TooLarge(
            f"{what} does not fit: it needs about {_gb(need.total_bytes)} in {dtype} ({told}), "
            f"and {has} {_gb(free)} free{needed}.",
            _advice(dtype, device, has_graphs=need.graph_bytes > 0),
            num_gpus_needed=num_needed,
        )


def estimate(
    source: Path | Shape, dtype: Dtype, *, context: int, what: str, is_dequantized: bool = False
) -> MemoryNeed:
    """The memory of a checkpoint folder, from its files' headers, or of a shape."""
    size = BYTES[dtype]
    if isinstance(source, Shape):
        kv_numbers = 2 * source.num_layers * source.num_kv_heads * source.head_dim
        tokens = min(context, source.context)
        return MemoryNeed(source.num_parameters * size, kv_numbers * tokens * size)
    config = read_config(source, what)
    config = config.get("text_config") or config
    wide = _DEQUANTIZED_NUMBERS if is_dequantized else {}
    weights = sum(_weight_bytes(file, config, size, what, wide) for file in weight_files(source))
    return MemoryNeed(weights, _kv_numbers(config) * context * size)


def num_recordings(use: GraphUse, context: int) -> tuple[int, int]:
    """Upper bounds on captured graphs for `context` tokens: steps of the target, and others.

    A step for each size of the cache and of a tree; beside it drafts, and rules for each tree.
    """
    from specbench.engine.graphs.cuda import buckets
    from specbench.engine.tree import NUM_NODES

    num_buckets = len(buckets(context + _TREE_ROWS))
    num_sizes = sum(size <= _TREE_ROWS for size in NUM_NODES)
    num_others = (2 * num_buckets + 5 * len(use.temperatures)) * use.num_methods
    return num_buckets * (num_sizes + use.num_methods), num_others


def graph_bytes(
    source: Path | Shape, dtype: Dtype, use: GraphUse, *, context: int, what: str
) -> int:
    """The memory of a run's recorded steps: their kernels, inputs, outputs and scratch memory."""
    layers, hidden, vocab = _dimensions(source, what)
    steps, others = num_recordings(use, context)
    layer_kernels = _FUSED_KERNELS if _is_fused(source, what) else _PLAIN_KERNELS
    kernels = steps * layers * layer_kernels + others * _DRAFT_KERNELS
    rows = (3 + use.num_methods) * _TREE_ROWS  # of trees of every size, and of each method's own
    kept = rows * (vocab + 4 * hidden) * BYTES[dtype]
    scratch = _TREE_ROWS * (vocab + 16 * hidden) * BYTES[dtype]
    # Drawn from, a row's logits become probabilities in float64, and sums of them.
    drawn = (3 * 4 + 5 * 8) * _TREE_ROWS * vocab if use.is_sampled else 0
    return kernels * _KERNEL_BYTES + kept + scratch + drawn


def _dimensions(source: Path | Shape, what: str) -> tuple[int, int, int]:
    """Layers, hidden size and vocabulary; zeros for a config that does not say."""
    if isinstance(source, Shape):
        return source.num_layers, source.hidden_size, source.vocab_size
    config = read_config(source, what)
    config = config.get("text_config") or config
    layers, hidden, vocab = (
        config.get(name) or 0 for name in ("num_hidden_layers", "hidden_size", "vocab_size")
    )
    return layers, hidden, vocab


def _is_fused(source: Path | Shape, what: str) -> bool:
    """True if the layers of such a model can run fused."""
    from specbench.engine.layers.models import KNOWN

    known = {model.config_class.model_type for model in KNOWN}
    if isinstance(source, Shape):
        return source.architecture in known
    config = read_config(source, what)
    return config.get("model_type") in known and not quantization_of(config)


def folder_bytes(folder: Path, dtype: Dtype) -> int:
    """Bytes of a drafter's weights, whose folder may tell nothing of them."""
    try:
        config = read_config(folder, "The drafter")
    except CheckpointError:
        config = {}
    size = BYTES[dtype]
    return sum(_weight_bytes(file, config, size, str(folder)) for file in weight_files(folder))


def free_bytes(device: str) -> int:
    """Free memory of a device: a GPU, several ("cuda:0-1"), or this machine's ("cpu")."""
    if device == "cpu":
        import psutil

        return int(min(psutil.virtual_memory().available, _container_bytes()))
    import torch

    return sum(int(torch.cuda.mem_get_info(number)[0]) for number in gpu_numbers(device))


def _weight_bytes(
    file: Path, config: dict[str, Any], size: int, what: str, wide: Mapping[str, int] = {}
) -> int:
    """Bytes of one weight file after its floats are cast; other types keep their size.

    `wide` are the numbers per element of types that become floats too.
    """
    if file.suffix != ".safetensors":
        stored = config.get("dtype") or config.get("torch_dtype") or "float16"
        return file.stat().st_size * size // BYTES.get(stored, 2)
    total = 0
    for entry in safetensors_header(file, what).values():
        start, end = entry["data_offsets"]
        numbers = 1 if entry["dtype"] in _FLOATS else wide.get(entry["dtype"])
        total += math.prod(entry["shape"]) * size * numbers if numbers else end - start
    return total


def _kv_numbers(config: dict[str, Any]) -> int:
    """Numbers kept per token of context; 0 for a config that does not say."""
    layers = config.get("num_hidden_layers") or 0
    heads = config.get("num_attention_heads") or 0
    if not (layers and heads):
        return 0
    head_dim = config.get("head_dim") or config.get("hidden_size", 0) // heads
    return int(2 * layers * (config.get("num_key_value_heads") or heads) * head_dim)


def _container_bytes() -> float:
    """Bytes left below a container's limit, if there is one; the machine's figure ignores it."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        stats = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return math.inf
    reclaimable = int(stats.get("inactive_file", 0))
    return math.inf if limit == "max" else int(limit) - used + reclaimable


def _advice(dtype: str, device: str, *, has_graphs: bool) -> str:
    smaller = "" if dtype != "float32" else "`--dtype bfloat16` halves it; "
    if has_graphs:
        smaller += "`--execution eager` records no graphs; "
    elsewhere = "a machine with more memory" if device == "cpu" else "more GPUs"
    return f"{smaller}use a smaller model, or {elsewhere}. `--model tiny` runs anywhere."


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
