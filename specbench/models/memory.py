"""Compare the memory that a checkpoint needs with what the device has free, before loading.

The module also counts the parameters of draft weights without downloading them. As in papers, only
the trained part that runs while drafting counts. EAGLE's copy of the target's embedding and a head
that is shared with the target do not.
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
    weight_files,
)
from specbench.models.tensor_header import safetensors_header

BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes per number for each dtype."""
_FLOATS = {"F64", "F32", "BF16", "F16"}
_DEQUANTIZED_NUMBERS = {"F8_E4M3": 1, "F8_E5M2": 1, "I8": 1, "U8": 2, "I32": 8}
"""Dtype of quantised weights -> the number of values of 8 or 4 bits that an element holds."""
GRAPH_RESERVE = 10**9
"""Bytes that are kept free for CUDA graphs: their kernels, inputs and scratch memory, and cuBLAS
workspaces for the two streams of recordings (32 MiB each on Hopper).
"""
_PREFILL_NUMBERS = 16
"""The most numbers that a prefill holds at once, per token and hidden unit."""


def num_parameters(card: ModelCard, weights: DraftWeights) -> int | None:
    """Count the parameters of draft weights from local files, or else from the target's shape.

    Return None if the number is unknown: published Hydra heads differ in depth, and some layers are
    in the target's own files.
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
    """The bytes that a model and requests of `context` tokens need."""

    weight_bytes: int
    """Bytes for the weights of the target."""
    kv_bytes: int
    """Bytes for the keys and values of `context` tokens."""
    prefill_bytes: int = 0
    """Bytes for the prefill of `context` tokens."""
    draft_bytes: int = 0
    """Bytes for the weights of the methods."""
    reserve_bytes: int = 0
    """Bytes that are kept free for CUDA graphs and workspaces."""
    growth_bytes: int = 0
    """Bytes for a cache's old rows while they are copied to a longer cache."""
    context: int = 0
    """The most tokens that a prompt and its answer have together."""

    @property
    def fixed_bytes(self) -> int:
        """Return the bytes that do not depend on the context."""
        return self.weight_bytes + self.draft_bytes + self.reserve_bytes

    @property
    def total_bytes(self) -> int:
        return self.fixed_bytes + self.kv_bytes + self.prefill_bytes + self.growth_bytes

    def at(self, context: int) -> MemoryNeed:
        """Return the need of requests that grow to `context` tokens."""
        own_context = max(self.context, 1)
        kv_bytes = self.kv_bytes * context // own_context
        return replace(
            self,
            kv_bytes=kv_bytes,
            prefill_bytes=self.prefill_bytes * context // own_context,
            growth_bytes=kv_bytes,
            context=context,
        )


def check_fits(
    source: Path | Shape,
    dtype: Dtype,
    device: str,
    *,
    context: int = 2048,
    what: str = "The model",
    drafts: Sequence[Path] = (),
    has_graphs: bool = False,
    is_dequantized: bool = False,
) -> MemoryNeed:
    """Check that a model in `dtype` and requests of `context` tokens fit into `device`.

    `source` is a checkpoint folder, or a shape before the download. `drafts` are the folders of the
    methods' weights; if `source` is among them, it does not count again. `has_graphs` reserves
    memory for captured steps. `is_dequantized` means that stored weights of 4 and 8 bits become
    plain ones. Return the need, or raise TooLarge with the bytes that are needed and free.
    """
    need = estimate(source, dtype, context=context, what=what, is_dequantized=is_dequantized)
    # A config may claim more than its files hold, and the model is built from the config.
    config = _config(source, what)
    num_layers = config.get("num_hidden_layers") or 0
    hidden_size = config.get("hidden_size") or 0
    vocab_size = config.get("vocab_size") or 0
    # A model has at least an embedding [vocab, hidden] and a matrix [hidden, hidden] per layer.
    claimed_bytes = (vocab_size + num_layers * hidden_size) * hidden_size * BYTES[dtype]
    draft_bytes = sum(folder_bytes(folder, dtype) for folder in drafts if folder != source)
    need = replace(
        need,
        weight_bytes=max(need.weight_bytes, claimed_bytes),
        draft_bytes=draft_bytes,
        reserve_bytes=GRAPH_RESERVE if has_graphs else 0,
    )
    check_need(need, dtype, device, what=what)
    return need


def check_context(need: MemoryNeed, context: int, dtype: Dtype, device: str, *, what: str) -> None:
    """Refuse requests of `context` tokens if they are longer than `need` allows and do not fit.

    The TooLarge that is raised says how many tokens would fit.
    """
    if context <= need.context:
        return
    try:
        check_need(need.at(context), dtype, device, what=what)
    except TooLarge as error:
        num_tokens = 2**20  # large, so that rounding does not matter
        token_bytes = need.at(num_tokens).total_bytes - need.fixed_bytes
        bytes_left = max(free_bytes(device) - need.fixed_bytes, 0)
        num_fitting = bytes_left * num_tokens // max(token_bytes, 1)
        error.hint = (
            f"Requests of up to {num_fitting} tokens fit: leave longer prompts out "
            f"(--limit, --dataset), or lower --max-new-tokens. Or {error.hint}"
        )
        raise


def check_need(need: MemoryNeed, dtype: Dtype, device: str, *, what: str) -> None:
    """Raise TooLarge, with both figures, if the need exceeds the free memory."""
    num_free = free_bytes(device)
    if need.total_bytes <= num_free:
        return
    bytes_by_use = {
        "for weights": need.weight_bytes,
        f"for {need.context} tokens of context": need.kv_bytes,
        "for copying the cache when it grows": need.growth_bytes,
        "for the prefill": need.prefill_bytes,
        "for draft weights": need.draft_bytes,
        "reserved for CUDA graphs": need.reserve_bytes,
    }
    uses = ", ".join(
        f"{_gb(num_bytes)} {use}" for use, num_bytes in bytes_by_use.items() if num_bytes
    )
    num_gpus = len(gpu_numbers(device))
    num_needed = -(-need.total_bytes * num_gpus // max(num_free, 1))  # 0 on a CPU
    owner = f"the {num_gpus} GPUs {device} have" if num_gpus > 1 else f"{device} has"
    needed = f": {num_needed} such GPUs are needed" if num_gpus else ""
    savings = "`--dtype bfloat16` halves it; " if dtype == "float32" else ""
    if need.reserve_bytes:
        savings += "`--execution eager` needs no reserve for graphs; "
    elsewhere = "more GPUs" if num_gpus else "a machine with more memory"
    raise TooLarge(
        f"{what} does not fit: it needs about {_gb(need.total_bytes)} in {dtype} ({uses}), "
        f"and {owner} {_gb(num_free)} free{needed}.",
        f"{savings}use a smaller model, or {elsewhere}. `--model tiny` runs anywhere.",
        num_gpus_needed=num_needed,
    )


def estimate(
    source: Path | Shape, dtype: Dtype, *, context: int, what: str, is_dequantized: bool = False
) -> MemoryNeed:
    """Estimate the memory that a model needs, from its shape or from the headers in its folder."""
    config = _config(source, what)
    number_bytes = BYTES[dtype]
    if isinstance(source, Shape):
        context = min(context, source.context)
        weight_bytes = source.num_parameters * number_bytes
    else:
        packed = _DEQUANTIZED_NUMBERS if is_dequantized else {}
        weight_bytes = sum(
            _weight_bytes(file, config, number_bytes, what, packed) for file in weight_files(source)
        )
    prefill_numbers = _PREFILL_NUMBERS * (config.get("hidden_size") or 0)
    return MemoryNeed(
        weight_bytes,
        kv_bytes=_kv_numbers(config) * context * number_bytes,
        prefill_bytes=prefill_numbers * context * number_bytes,
        context=context,
    )


def _config(source: Path | Shape, what: str) -> dict[str, Any]:
    """Return a model's sizes by their names in config.json."""
    if isinstance(source, Shape):
        return source.config
    config = read_config(source, what)
    return config.get("text_config") or config


def target_parameters(card: ModelCard, source: Path | Shape | None) -> int | None:
    """Return the number of a target's parameters, with all experts, or None if it is unknown.

    `source` is its folder, or the shape of a stand-in. A number on the card comes first.
    """
    if card.billion_parameters is not None:
        return round(card.billion_parameters * 1e9)
    shape = source if isinstance(source, Shape) else card.shape
    if shape is not None:
        return shape.num_parameters
    if not isinstance(source, Path):
        return None
    config = _config(source, card.name)
    return sum(
        _weight_bytes(file, config, 1, card.name, _DEQUANTIZED_NUMBERS)
        for file in weight_files(source)
    )


def folder_bytes(folder: Path, dtype: Dtype) -> int:
    """Return the bytes of a drafter's weights, from the files in its folder."""
    config = config_if_readable(folder)
    return sum(
        _weight_bytes(file, config, BYTES[dtype], str(folder)) for file in weight_files(folder)
    )


def kv_bytes(folder: Path, dtype: Dtype, num_tokens: int) -> int:
    """Return the bytes of keys and values for `num_tokens` tokens, or 0 without their sizes."""
    config = config_if_readable(folder)
    return _kv_numbers(config.get("text_config") or config) * num_tokens * BYTES[dtype]


def _weight_bytes(
    file: Path, config: dict[str, Any], number_bytes: int, what: str, packed: Mapping[str, int] = {}
) -> int:
    """Return the bytes of one weight file after its floats become numbers of `number_bytes` bytes.

    Other types keep their size, except those in `packed`, which says how many floats each of their
    elements becomes.
    """
    if file.suffix != ".safetensors":
        stored_dtype = config.get("dtype") or config.get("torch_dtype") or "float16"
        return file.stat().st_size * number_bytes // BYTES.get(stored_dtype, 2)
    total_bytes = 0
    for tensor in safetensors_header(file, what).values():
        is_float = tensor["dtype"] in _FLOATS
        num_floats = 1 if is_float else packed.get(tensor["dtype"], 0)  # per element
        if num_floats:
            total_bytes += math.prod(tensor["shape"]) * num_floats * number_bytes
        else:
            begin, end = tensor["data_offsets"]
            total_bytes += end - begin
    return total_bytes


def _kv_numbers(config: dict[str, Any]) -> int:
    """Count the numbers that a cache keeps per token of context; 0 if the sizes are unknown."""
    num_layers = config.get("num_hidden_layers") or 0
    num_heads = config.get("num_attention_heads") or 0
    if not (num_layers and num_heads):
        return 0
    latent_rank = config.get("kv_lora_rank")
    if latent_rank:  # latent attention keeps only the latent
        return int(num_layers * (latent_rank + (config.get("qk_rope_head_dim") or 0)))
    num_kv_heads = config.get("num_key_value_heads") or num_heads
    head_dim = config.get("head_dim") or config.get("hidden_size", 0) // num_heads
    return int(2 * num_layers * num_kv_heads * head_dim)


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB"
