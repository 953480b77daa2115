"""Parts of a head that it may share with its target: embedding, projection and vocabulary."""

import torch
from torch import Tensor, nn

from specbench.methods._checkpoint import Checkpoint, frozen
from specbench.methods._head_config import HeadConfig
from specbench.methods._head_fields import one_value

_EMBEDDING = "embed_tokens.weight"


def head_of(
    checkpoint: Checkpoint, head: HeadConfig, hidden: int, *, may_share_rows: bool = False
) -> tuple[nn.Linear, Tensor]:
    """A projection to a draft vocabulary, and the target's token id of each row [size].

    It is the checkpoint's, or the target's if it is equal or the checkpoint has none. With
    `may_share_rows`, a `d2t` without a projection names rows of the target's. If a config ties
    it to an embedding, that is the checkpoint's own, if it has one. EAGLE's heads, which
    `may_share_rows`, have the target's projection in any case.
    """
    name = "lm_head.weight"
    is_tied = head.fields.get("tie_word_embeddings") and _EMBEDDING in checkpoint
    is_tied = is_tied and not may_share_rows
    shared: nn.Linear = checkpoint.target.model.get_output_embeddings()
    has_rows = "d2t" in checkpoint
    if name not in checkpoint and not is_tied and (may_share_rows or not has_rows):
        check_width(checkpoint, hidden)
        size = checkpoint.shape("d2t")[0] if has_rows else shared.weight.shape[0]
        ids = _token_ids(checkpoint, head, size)
        return _rows_of(shared, ids) if has_rows else shared, ids
    own = checkpoint.linear("lm_head", hidden, checkpoint.shape(name)[0], bias=False)
    is_here = shared.bias is None and shared.weight.device == own.weight.device
    found = shared if is_here and torch.equal(own.weight, shared.weight) else own
    return found, _token_ids(checkpoint, head, found.weight.shape[0])


def _token_ids(checkpoint: Checkpoint, head: HeadConfig, size: int) -> Tensor:
    """The ids, by `d2t`, which holds offsets; `t2d` tells which tokens are among them."""
    said = {"draft_vocab_size": head.fields.get("draft_vocab_size")}
    one_value(checkpoint, {**said, "the rows of its projection are": size})
    vocab_size = checkpoint.target.vocab_size
    ids = torch.arange(size, device=checkpoint.device)
    if "d2t" in checkpoint or size != vocab_size:
        ids = ids + checkpoint.integers("d2t", size)
    if ids.min() < 0 or ids.max() >= vocab_size or ids.unique().shape[0] < size:
        raise checkpoint.error(f"has a d2t that is not a map to distinct ids below {vocab_size}")
    if "t2d" in checkpoint:
        kept = checkpoint.integers("t2d", vocab_size)
        if not torch.equal(kept.nonzero().view(-1), ids.sort().values):
            raise checkpoint.error("has a t2d that names other tokens than its d2t")
    return ids


def _rows_of(whole: nn.Linear, ids: Tensor) -> nn.Linear:
    """A copy of some rows of a linear layer."""
    rows = nn.Linear(whole.in_features, len(ids), bias=False, device="meta")
    rows.weight = frozen(whole.weight[ids])
    rows.bias = None if whole.bias is None else frozen(whole.bias[ids])
    return rows


def in_vocabulary(logits: Tensor, token_ids: Tensor, vocab_size: int) -> Tensor:
    """Logits [n, vocab] of the target's tokens, from logits [n, draft] of a draft vocabulary.

    `token_ids` [draft] are the target's ids for the draft vocabulary's. Other tokens get -inf.
    """
    spread = logits.new_full((logits.shape[0], vocab_size), -torch.inf)
    return spread.index_copy_(1, token_ids, logits)


def embedding_of(checkpoint: Checkpoint, hidden: int) -> Tensor:
    """The checkpoint's embedding, or the target's if it is equal or the checkpoint has none."""
    shared = checkpoint.target.model.get_input_embeddings().weight
    if _EMBEDDING not in checkpoint:
        check_width(checkpoint, hidden)
        return shared
    own = checkpoint.take(_EMBEDDING, shared.shape[0], hidden)
    return shared if torch.equal(own, shared) else frozen(own)


def check_width(checkpoint: Checkpoint, hidden: int) -> None:
    """Refuse a head that uses the target's embedding or head, but has another width."""
    expected = checkpoint.target.config.hidden_size
    if hidden != expected:
        raise checkpoint.error(f"has a hidden size of {hidden}, but the target has {expected}")
