"""Parts of a head that it may share with its target: embedding, projection and vocabulary."""

import torch
from torch import Tensor, nn

from specbench.engine.drafter import BuildContext
from specbench.methods._checkpoint import Checkpoint, frozen
from specbench.methods._head_config import HeadConfig

_EMBEDDING = "embed_tokens.weight"


def draft_vocabulary(checkpoint: Checkpoint, size: int, vocab_size: int) -> Tensor:
    """The target's token id for each id of the draft vocabulary [size]; `d2t` holds offsets."""
    if "d2t" not in checkpoint and size == vocab_size:
        return torch.arange(size, device=checkpoint.device)
    offsets = checkpoint.take("d2t", size)
    ids = offsets.long() + torch.arange(size, device=offsets.device)
    if ids.min() < 0 or ids.max() >= vocab_size or ids.unique().shape[0] < size:
        raise checkpoint.error(f"has a d2t that is not a map to distinct ids below {vocab_size}")
    return ids


def head_of(
    checkpoint: Checkpoint, context: BuildContext, head: HeadConfig, hidden: int
) -> nn.Linear:
    """The checkpoint's head, or the target's if it has none and asks for none."""
    name = "lm_head.weight"
    is_shared = name not in checkpoint and not head.fields.get("tie_word_embeddings")
    if is_shared and "d2t" not in checkpoint:
        check_width(checkpoint, context, hidden)
        shared: nn.Linear = context.target.model.get_output_embeddings()
        return shared
    return checkpoint.linear("lm_head", hidden, checkpoint.shape(name)[0], bias=False)


def embedding_of(checkpoint: Checkpoint, context: BuildContext, hidden: int) -> Tensor:
    """The checkpoint's embedding, or the target's if it is equal or the checkpoint has none."""
    shared = context.target.model.get_input_embeddings().weight
    if _EMBEDDING not in checkpoint:
        check_width(checkpoint, context, hidden)
        return shared
    own = checkpoint.take(_EMBEDDING, shared.shape[0], hidden)
    return shared if torch.equal(own, shared) else frozen(own)


def check_width(checkpoint: Checkpoint, context: BuildContext, hidden: int) -> None:
    """Refuse a head whose width differs from the target's, whose embedding or head it uses."""
    expected = context.target.config.hidden_size
    if hidden != expected:
        raise checkpoint.error(f"has a hidden size of {hidden}, but the target has {expected}")
