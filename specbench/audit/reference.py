"""Logits that an audit compares with: of the model's own forward, without the engine's cache,
masks or kernels, and of the engine's steps over plain chains.
"""

from collections.abc import Sequence
from itertools import cycle, islice

import torch
from torch import Tensor

from specbench.engine.layers.torch_attention import without_cudnn_attention
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree

NUM_BEST = 100
"""Logits of a position that are compared: the best ones. The others may be masked."""


def plain_logits(target: Target, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> Tensor:
    """Logits [tokens, vocab] before each token of an answer, by the model's own forward."""
    ids = torch.tensor([[*prompt_ids, *token_ids[:-1]]], device=target.device)
    output = target.model(input_ids=ids, use_cache=False, logits_to_keep=len(token_ids))
    logits: Tensor = output.logits[0]
    return logits


def plain_steps(
    target: Target, prompt_ids: Sequence[int], token_ids: Sequence[int], size: int | None = None
) -> Tensor:
    """Logits [tokens, vocab] before each token of an answer, by steps over chains of its tokens.

    A chain is a tree without branches. It has `size` tokens, by default `max_exact_rows`: steps of
    up to this many tokens give the same bits in every tree, if the model's shapes allow it.
    """
    size = size or target.max_exact_rows
    # [rows, vocab] each: the prefill's row, then the rows of each chain.
    chunks = [target.prefill(prompt_ids, num_new=len(token_ids)).logits.clone()]
    answer_ids = torch.tensor(token_ids[:-1], dtype=torch.long, device=target.device)
    for start in range(0, len(answer_ids), size):
        chain = DraftTree.chain(answer_ids[start : start + size])
        chunks.append(target.forward(chain).logits)
        target.commit(range(chain.num_nodes))  # accepts the whole chain into the cache
    target.cache.reset()  # forgets prompt and answer
    return torch.cat(chunks)


def has_exact_steps(
    target: Target, prompt_ids: Sequence[int], token_ids: Sequence[int], size: int
) -> bool:
    """True if each row of plain steps over `size` rows has the bits of the longest plain steps.

    The answer's tokens are repeated until they fill whole steps. False if the context ends before.
    """
    num_steps = -(-len(token_ids) // size)
    filled = tuple(islice(cycle(token_ids), 1 + num_steps * size))
    if len(prompt_ids) + len(filled) > target.context:
        return False
    longest = plain_steps(target, prompt_ids, filled)
    return torch.equal(longest, plain_steps(target, prompt_ids, filled, size))


@torch.inference_mode()
@without_cudnn_attention()
def is_wrong(target: Target, prompt: Sequence[int], answer: Sequence[int], tie: float) -> bool:
    """True if a token of an answer is not the best one: its logit lies below by more than the
    share `tie` of the position's scale.
    """
    logits = plain_logits(target, prompt, answer)  # [tokens, vocab]
    best = logits.topk(min(NUM_BEST, logits.shape[1])).values
    scale = best.abs().amax(1, keepdim=True)  # [tokens, 1]
    token_ids = torch.tensor(answer, device=logits.device)
    answer_logits = logits.gather(1, token_ids[:, None])  # [tokens, 1]
    gaps = best[:, :1] - answer_logits
    return bool((gaps > tie * scale).any())
