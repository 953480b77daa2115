"""Memory: what a checkpoint will need and what the device has, before anything is loaded.

Knows sizes. Loads nothing; torch is only asked how much memory a GPU has left.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.bench.checkpoints import read_config, safetensors_header, weight_files
from specbench.bench.models import Dtype, Shape
from specbench.errors import UserError

BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
_FLOATS = {"F64", "F32", "BF16", "F16"}
_CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes of the weights, and of keys and values for a whole context."""

    weight_bytes: int
    kv_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.kv_bytes


def check_fits(
    source: Path | Shape, dtype: Dtype, device: str, *, context: int = 2048, what: str = "The model"
) -> MemoryNeed:
    """What `source` needs in `dtype` for `context` tokens, if `device` has that much free.

    `source` is a checkpoint folder, or a shape when nothing is downloaded yet. "cuda" counts all
    visible GPUs, "cuda:1" only that one. Raises UserError with both figures.
    """
    need = estimate(source, dtype, context=context, what=what)
    check_need(need, dtype, device, context=context, what=what)
    return need


def check_need(need: MemoryNeed, dtype: Dtype, device: str, *, context: int, what: str) -> None:
    """Refuse what `device` has not enough free memory for. Raises UserError with both figures."""
    free = free_bytes(device)
    if need.total_bytes > free:
        raise UserError(
            f"{what} does not fit: it needs about {_gb(need.total_bytes)} in {dtype} "
            f"({_gb(need.weight_bytes)} weights, {_gb(need.kv_bytes)} for {context} tokens of "
            f"context), and {device} has {_gb(free)} free.",
            _advice(dtype, device),
        )


def estimate(source: Path | Shape, dtype: Dtype, *, context: int, what: str) -> MemoryNeed:
    """The memory of a checkpoint folder, from its files' headers, or of a shape."""
    size = BYTES[dtype]
    if isinstance(source, Shape):
        kv_numbers = 2 * source.num_layers * source.num_kv_heads * source.head_dim
        tokens = min(context, source.context)
        return MemoryNeed(source.num_parameters * size, kv_numbers * tokens * size)
    config = read_config(source, what)
    config = config.get("text_config") or config
    weights = sum(_weight_bytes(file, config, size, what) for file in weight_files(source))
    return MemoryNeed(weights, _kv_numbers(config) * context * size)


def free_bytes(device: str) -> int:
    """Free memory of a device: a GPU, all visible GPUs ("cuda"), or this machine's ("cpu")."""
    if device == "cpu":
        import psutil

        return int(min(psutil.virtual_memory().available, _container_bytes()))
    import torch

    if ":" in device:
        return int(torch.cuda.mem_get_info(device)[0])
    return sum(torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count()))


def _weight_bytes(file: Path, config: dict[str, Any], size: int, what: str) -> int:
    """Bytes of one weight file after its floats are cast; other types keep their size."""
    if file.suffix != ".safetensors":
        stored = config.get("dtype") or config.get("torch_dtype") or "float16"
        return file.stat().st_size * size // BYTES.get(stored, 2)
    total = 0
    for entry in safetensors_header(file, what).values():
        start, end = entry["data_offsets"]
        is_float = entry["dtype"] in _FLOATS
        total += math.prod(entry["shape"]) * size if is_float else end - start
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
    """What a container's limit leaves, where there is one: the machine's figure ignores it."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        stats = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return math.inf
    reclaimable = int(stats.get("inactive_file", 0))
    return math.inf if limit == "max" else int(limit) - used + reclaimable


def _advice(dtype: str, device: str) -> str:
    smaller = "" if dtype != "float32" else "`--dtype bfloat16` halves it; "
    elsewhere = "a machine with more memory" if device == "cpu" else "more GPUs"
    return f"{smaller}use a smaller model, or {elsewhere}. `--model tiny` runs anywhere."


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
