"""Memory that a checkpoint needs, against what the device has free, before anything is loaded.

Also the parameters of draft weights, without downloading them. As in papers, these are the
trained part that runs while drafting: EAGLE's copy of the target's embedding and heads shared
with the target are left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specbench.errors import TooLarge
from specbench.log.machine import gpu_numbers
from specbench.machine.memory import free_bytes
from specbench.models.cards import DraftWeights, Dtype, ModelCard, Shape, models_file
from specbench.models.checkpoints import (
    config_if_readable,
    count_parameters,
    read_config,
    safetensors_header,
    weight_files,
)

BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
_FLOATS = {"F64", "F32", "BF16", "F16"}
_DEQUANTIZED_NUMBERS = {"F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 2, "I32": 8}
"""Numbers in an element of quantised weights that are dequantised: of 8 bits, or of 4 bits."""
GRAPH_RESERVE = 10**9
"""Bytes kept free for CUDA graphs: their kernels, inputs, scratch memory, and the workspaces
of cuBLAS for the two streams of recordings (32 MiB each on Hopper).
"""
_PREFILL_NUMBERS = 16
"""Numbers per token and hidden unit that a prefill keeps at once, at most."""


def num_parameters(card: ModelCard, weights: DraftWeights) -> int | None:
    """The number of parameters, from local files or else from the target's shape.

    None if unknown, as for Hydra, whose published heads differ in depth, and for a layer in
    the target's own files.
    """
    if weights.repo == card.repo:
        return None
    if Path(weights.repo).is_dir():
        return count_parameters(Path(weights.repo))
    if weights.is_model:
        millions = models_file().draft_parameters.get(weights.repo)
        return None if millions is None else millions * 10**6
    if card.shape is None:
        return None
    from specbench.zoo.heads import num_head_parameters

    return num_head_parameters(weights.head, card.shape)


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes of the weights, of keys and values for `context` tokens, and of their prefill.

    `draft_bytes` are for the methods' own weights, `reserve_bytes` are kept for CUDA graphs
    and workspaces. `growth_bytes` are a cache's old rows, while they are copied to a longer
    one.
    """

    weight_bytes: int
    kv_bytes: int
    prefill_bytes: int = 0
    draft_bytes: int = 0
    reserve_bytes: int = 0
    growth_bytes: int = 0
    context: int = 0

    @property
    def fixed_bytes(self) -> int:
        """Bytes that do not depend on the context."""
        return self.weight_bytes + self.draft_bytes + self.reserve_bytes

    @property
    def total_bytes(self) -> int:
        return self.fixed_bytes + self.kv_bytes + self.prefill_bytes + self.growth_bytes

    def at(self, context: int) -> MemoryNeed:
        """The need of requests that grow to `context` tokens."""
        kv, prefill = (
            part * context // max(self.context, 1) for part in (self.kv_bytes, self.prefill_bytes)
        )
        return replace(self, kv_bytes=kv, prefill_bytes=prefill, growth_bytes=kv, context=context)


def check_fits(
    source: Path | Shape, dtype: Dtype, device: str, *, context: int = 2048,
    what: str = "The model", drafts: Sequence[Path] = (), has_graphs: bool = False,
    is_dequantized: bool = False,
) -> MemoryNeed:  # fmt: skip
    """Memory of `source` in `dtype` for `context` tokens, checked against what `device` has free.

    `source` is a checkpoint folder, or a shape when nothing is downloaded yet; `drafts` are
    the methods' folders, `source` itself counting once; with `has_graphs`, steps are
    captured. With `is_dequantized`, stored weights of 4 and 8 bits become plain ones. Raises
    TooLarge with both figures.
    """
    need = estimate(source, dtype, context=context, what=what, is_dequantized=is_dequantized)
    # A config may claim more than its files hold, and the model is made by the config.
    config = _config(source, what)
    names = ("num_hidden_layers", "hidden_size", "vocab_size")
    layers, hidden, vocab = (config.get(name) or 0 for name in names)
    claimed = (vocab + layers * hidden) * hidden * BYTES[dtype]
    draft_bytes = sum(folder_bytes(folder, dtype) for folder in drafts if folder != source)
    need = replace(
        need,
        weight_bytes=max(need.weight_bytes, claimed),
        draft_bytes=draft_bytes,
        reserve_bytes=GRAPH_RESERVE if has_graphs else 0,
    )
    check_need(need, dtype, device, what=what)
    return need


def check_context(need: MemoryNeed, context: int, dtype: Dtype, device: str, *, what: str) -> None:
    """Refuse requests of `context` tokens if they need more than was checked and is free.

    Raises TooLarge with the number of tokens that would fit.
    """
    if context <= need.context:
        return
    try:
        check_need(need.at(context), dtype, device, what=what)
    except TooLarge as error:
        a_token = need.at(2**20).total_bytes - need.fixed_bytes
        fit = max(free_bytes(device) - need.fixed_bytes, 0) * 2**20 // max(a_token, 1)
        error.hint = (
            f"Requests of up to {fit} tokens fit: leave longer prompts out (--limit, --dataset), "
            f"or lower --max-new-tokens. Or {error.hint}"
        )
        raise


def check_need(need: MemoryNeed, dtype: Dtype, device: str, *, what: str) -> None:
    """Refuse what does not fit into free memory: raises TooLarge with both figures."""
    free = free_bytes(device)
    if need.total_bytes > free:
        parts = [
            (need.weight_bytes, "weights"),
            (need.kv_bytes, f"for {need.context} tokens of context"),
            (need.growth_bytes, "for the rows of a cache that grows to them"),
            (need.prefill_bytes, "for their prefill"),
            (need.draft_bytes, "for the methods' own weights"),
            (need.reserve_bytes, "in reserve for CUDA graphs"),
        ]
        told = ", ".join(f"{_gb(part)} {name}" for part, name in parts if part)
        num_gpus = len(gpu_numbers(device))
        num_needed = -(-need.total_bytes * num_gpus // max(free, 1))  # 0 on a CPU
        has = f"the {num_gpus} GPUs {device} have" if num_gpus > 1 else f"{device} has"
        needed = f": {num_needed} such GPUs are needed" if num_gpus else ""
        smaller = "`--dtype bfloat16` halves it; " if dtype == "float32" else ""
        if need.reserve_bytes:
            smaller += "`--execution eager` records no graphs; "
        elsewhere = "more GPUs" if num_gpus else "a machine with more memory"
        raise TooLarge(
            f"{what} does not fit: it needs about {_gb(need.total_bytes)} in {dtype} ({told}), "
            f"and {has} {_gb(free)} free{needed}.",
            f"{smaller}use a smaller model, or {elsewhere}. `--model tiny` runs anywhere.",
            num_gpus_needed=num_needed,
        )


def estimate(
    source: Path | Shape, dtype: Dtype, *, context: int, what: str, is_dequantized: bool = False
) -> MemoryNeed:
    """The memory of a checkpoint folder, from its files' headers, or of a shape."""
    config, size = _config(source, what), BYTES[dtype]
    if isinstance(source, Shape):
        context = min(context, source.context)
        weights = source.num_parameters * size
    else:
        wide = _DEQUANTIZED_NUMBERS if is_dequantized else {}
        files = weight_files(source)
        weights = sum(_weight_bytes(file, config, size, what, wide) for file in files)
    prefill = _PREFILL_NUMBERS * (config.get("hidden_size") or 0) * context * size
    return MemoryNeed(weights, _kv_numbers(config) * context * size, prefill, context=context)


def _config(source: Path | Shape, what: str) -> dict[str, Any]:
    """The sizes of a model, named as in its config.json."""
    if isinstance(source, Shape):
        return source.config
    config = read_config(source, what)
    return config.get("text_config") or config


def folder_bytes(folder: Path, dtype: Dtype) -> int:
    """Bytes of a drafter's weights, as far as its folder tells."""
    config, size = config_if_readable(folder), BYTES[dtype]
    return sum(_weight_bytes(file, config, size, str(folder)) for file in weight_files(folder))


def _weight_bytes(
    file: Path, config: dict[str, Any], size: int, what: str, wide: Mapping[str, int] = {}
) -> int:
    """Bytes of one weight file after its floats are cast; other types keep their size.

    `wide` has the numbers per element of types that also become floats.
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
    if rank := config.get("kv_lora_rank"):  # latent attention keeps the latent alone
        return int(layers * (rank + (config.get("qk_rope_head_dim") or 0)))
    head_dim = config.get("head_dim") or config.get("hidden_size", 0) // heads
    return int(2 * layers * (config.get("num_key_value_heads") or heads) * head_dim)


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
