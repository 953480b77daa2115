"""Parts of a head that it may share with its target: embedding, projection and vocabulary."""

import torch
from torch import Tensor, nn

from specbench.methods._checkpoint import Checkpoint, frozen
from specbench.methods._head_config import HeadConfig
from specbench.methods._head_fields import one_value

_EMBEDDING = "embed_tokens.weight"


def draft_vocabulary(checkpoint: Checkpoint, head: HeadConfig, size: int) -> Tensor:
    """The target's token id for each id of the draft vocabulary [size].

    `d2t` holds offsets, and `t2d` tells which of the target's tokens are among them.
    """
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


def head_of(checkpoint: Checkpoint, head: HeadConfig, hidden: int) -> nn.Linear:
    """The checkpoint's head, or the target's if it is equal or the checkpoint has none.

    If a config ties it to an embedding, that is the checkpoint's own, if it has one.
    """
    name = "lm_head.weight"
    is_tied = head.fields.get("tie_word_embeddings") and _EMBEDDING in checkpoint
    shared: nn.Linear = checkpoint.target.model.get_output_embeddings()
    if name not in checkpoint and not is_tied and "d2t" not in checkpoint:
        check_width(checkpoint, hidden)
        return shared
    own = checkpoint.linear("lm_head", hidden, checkpoint.shape(name)[0], bias=False)
    is_here = shared.bias is None and shared.weight.device == own.weight.device
    return shared if is_here and torch.equal(own.weight, shared.weight) else own


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
