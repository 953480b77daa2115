"""The parts that a head may share with its target: embedding, projection and vocabulary."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, PreTrainedConfig

from specbench.methods._head_config import HeadConfig
from specbench.methods._head_fields import one_value
from specbench.methods.shared.checkpoint import Checkpoint, frozen

_EMBEDDING = "embed_tokens.weight"
_MOST_PADDING = 0.1
"""Largest share of the rows of a target's vocabulary that a head may leave out as padding."""


def head_of(
    checkpoint: Checkpoint, head: HeadConfig, hidden: int, *, may_share_rows: bool = False
) -> tuple[nn.Linear, Tensor]:
    """The projection to a draft vocabulary, and the target's token id of each of its rows [size].

    The projection is the checkpoint's. It is the target's if both are equal, or if the checkpoint
    has none. With `may_share_rows` (EAGLE), a `d2t` without a projection names rows of the target's
    projection. Otherwise, the checkpoint must have a projection if its config ties it to the
    checkpoint's own embedding: the target's projection does not replace it.
    """
    key = "lm_head.weight"
    has_flag = bool(head.fields.get("tie_word_embeddings"))
    flag = ", although tie_word_embeddings is true" if has_flag else ""
    is_tied = has_flag and _EMBEDDING in checkpoint and not may_share_rows
    of_target: nn.Linear = checkpoint.target.model.get_output_embeddings()
    has_rows = "d2t" in checkpoint and not _is_identity(checkpoint)
    if key not in checkpoint and not is_tied and (may_share_rows or not has_rows):
        check_width(checkpoint, hidden)
        if not has_rows:
            checkpoint.facts.append(f"output layer: the target's{flag}")
            return of_target, _token_ids(checkpoint, head, of_target.weight.shape[0])
        ids = _token_ids(checkpoint, head, checkpoint.shape("d2t")[0])
        checkpoint.facts.append(f"output layer: {len(ids)} rows of the target's{flag}")
        return _rows_of(of_target, ids), ids
    of_head = checkpoint.linear("lm_head", hidden, checkpoint.shape(key)[0], bias=False)
    checkpoint.note_zeros(key, of_head.weight)
    ids = _token_ids(checkpoint, head, of_head.weight.shape[0])
    is_comparable = of_target.bias is None and of_target.weight.device == of_head.weight.device
    is_shared = is_comparable and torch.equal(of_head.weight, of_target.weight)
    equal = ", equal to the target's" if is_shared else ""
    checkpoint.facts.append(f"output layer: its own {checkpoint.published(key)}{equal}{flag}")
    return of_target if is_shared else of_head, ids


def _is_identity(checkpoint: Checkpoint) -> bool:
    """True for a `d2t` that maps every id of the target's vocabulary to itself."""
    vocab_size = checkpoint.target.vocab_size
    is_whole = checkpoint.shape("d2t") == (vocab_size,)
    return is_whole and not checkpoint.integers("d2t", vocab_size).any()


def _token_ids(checkpoint: Checkpoint, head: HeadConfig, size: int) -> Tensor:
    """The target ids [size] of a draft vocabulary. Row i has i + d2t[i]. A `t2d` must agree."""
    named_size = {"draft_vocab_size": head.fields.get("draft_vocab_size")}
    one_value(checkpoint, {**named_size, "the rows of its projection are": size})
    vocab_size = checkpoint.target.vocab_size
    ids = torch.arange(size, device=checkpoint.device)
    if "d2t" in checkpoint or size != vocab_size:
        offsets = checkpoint.integers("d2t", size)
        is_small = size < (1 - _MOST_PADDING) * vocab_size
        if is_small and "t2d" not in checkpoint and not offsets.any():
            checkpoint.notes.append(
                f"Its d2t is all zeros, so it drafts only the tokens 0 to {size - 1}. If the map "
                "was never filled, its drafts are useless: ask its publisher."
            )
        ids = ids + offsets
    is_inside = ids.min() >= 0 and ids.max() < vocab_size
    if not is_inside or ids.unique().shape[0] < size:
        raise checkpoint.error(f"has a d2t that is not a map to distinct ids below {vocab_size}")
    if "t2d" in checkpoint:
        is_drafted = checkpoint.integers("t2d", vocab_size)  # [vocab] bool
        drafted_ids = is_drafted.nonzero().view(-1)
        if not torch.equal(drafted_ids, ids.sort().values):
            raise checkpoint.error("has a t2d and a d2t that name different tokens")
    return ids


def _rows_of(whole: nn.Linear, ids: Tensor) -> nn.Linear:
    """A linear layer whose rows are copies of the rows `ids` of `whole`."""
    rows = nn.Linear(whole.in_features, len(ids), bias=False, device="meta")
    rows.weight = frozen(whole.weight[ids])
    rows.bias = None if whole.bias is None else frozen(whole.bias[ids])
    return rows


def in_vocabulary(logits: Tensor, token_ids: Tensor, vocab_size: int) -> Tensor:
    """Spread logits [n, draft] of a draft vocabulary to logits [n, vocab] of the target's tokens.

    `token_ids` [draft] are the target's ids of the draft tokens. All other tokens get -inf.
    """
    spread = logits.new_full((logits.shape[0], vocab_size), -torch.inf)
    return spread.index_copy_(1, token_ids, logits)


def embedding_of(checkpoint: Checkpoint, hidden: int) -> Tensor:
    """The checkpoint's embedding, or the target's if it is equal or the checkpoint has none."""
    of_target: Tensor = checkpoint.target.model.get_input_embeddings().weight
    if _EMBEDDING not in checkpoint:
        check_width(checkpoint, hidden)
        return of_target
    of_head = checkpoint.take(_EMBEDDING, of_target.shape[0], hidden)
    return of_target if torch.equal(of_head, of_target) else frozen(of_head)


def tell_rope(checkpoint: Checkpoint, config: LlamaConfig) -> None:
    """Describe the fields in which a head's rotary embedding differs from the target's."""
    of_head, of_target = _rope(config), _rope(checkpoint.target.config)
    for name in sorted({*of_head, *of_target} if of_target else ()):
        if of_head.get(name) != of_target.get(name):
            checkpoint.facts.append(
                f"{name} {of_head.get(name)}, the target's {of_target.get(name)}"
            )


def _rope(config: PreTrainedConfig) -> Mapping[str, Any]:
    """The fields of a rotary embedding. Empty without one, or if layers differ."""
    rope = getattr(config, "rope_parameters", None) or {}
    return {} if any(isinstance(field, dict) for field in rope.values()) else rope


def check_width(checkpoint: Checkpoint, hidden: int) -> None:
    """Refuse a head that uses the target's embedding or projection, but has another width."""
    expected = checkpoint.target.config.hidden_size
    if hidden != expected:
        raise checkpoint.error(f"has a hidden size of {hidden}, but the target has {expected}")
