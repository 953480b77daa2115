"""Compute the reference logits of an audit.

Some come from the model's own forward, without the engine's cache, masks or kernels, and some from
the engine's steps over plain chains.
"""

from collections.abc import Sequence
from itertools import cycle, islice

import torch
from torch import Tensor

from specbench.engine.layers.torch_attention import without_cudnn_attention
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree

NUM_BEST = 100
"""Number of best logits that are compared at each position. The others may be masked."""


def plain_logits(target: Target, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> Tensor:
    """Logits [tokens, vocab] before each token of an answer, from the model's own forward."""
    # The logits after a token are those before the next one, so the last token is not read.
    read_ids = torch.tensor([[*prompt_ids, *token_ids[:-1]]], device=target.device)  # [1, read]
    output = target.model(input_ids=read_ids, use_cache=False, logits_to_keep=len(token_ids))
    logits: Tensor = output.logits[0]  # output.logits: [1, tokens, vocab]
    return logits


def plain_steps(
    target: Target, prompt_ids: Sequence[int], token_ids: Sequence[int], size: int | None = None
) -> Tensor:
    """Logits [tokens, vocab] before each token of an answer, from the engine's steps over chains.

    Each step computes a chain of the answer's next tokens, and accepts all of them.

    Args:
        target: computes the steps.
        prompt_ids: token ids of the prompt.
        token_ids: token ids of the answer.
        size: number of tokens of a chain. The default, `max_exact_rows`, is the largest number for
            which steps give the same bits in any tree.
    """
    size = size or target.max_exact_rows
    # The prefill gives the logits before the first token [1, vocab]. They are copied, since the
    # next forward may overwrite them. `num_new` reserves room for the answer in the cache.
    prefill = target.prefill(prompt_ids, num_new=len(token_ids))
    logits_by_step = [prefill.logits.clone()]
    # A chain gives the logits after each of its tokens [chain, vocab]. Those after the last token
    # of the answer are not needed.
    read_ids = torch.tensor(token_ids[:-1], dtype=torch.long, device=target.device)
    for start in range(0, len(read_ids), size):
        chain = DraftTree.chain(read_ids[start : start + size])
        logits_by_step.append(target.forward(chain).logits)
        target.commit(range(chain.num_nodes))  # accept all nodes of the chain
    target.cache.reset()
    return torch.cat(logits_by_step)


def has_exact_steps(
    target: Target, prompt_ids: Sequence[int], token_ids: Sequence[int], size: int
) -> bool:
    """True if steps over chains of `size` tokens give the same bits as steps over longer chains.

    The longer chains have `max_exact_rows` tokens. The answer's tokens are repeated until they fill
    whole steps of `size`. If these do not fit into the target's context, the result is False.
    """
    num_steps = -(-len(token_ids) // size)  # rounded up
    num_filled = 1 + num_steps * size  # 1: the prefill's token
    if len(prompt_ids) + num_filled > target.context:
        return False
    filled_ids = tuple(islice(cycle(token_ids), num_filled))
    by_longest_steps = plain_steps(target, prompt_ids, filled_ids)  # [filled, vocab]
    by_these_steps = plain_steps(target, prompt_ids, filled_ids, size)
    return torch.equal(by_longest_steps, by_these_steps)


@torch.inference_mode()
@without_cudnn_attention()
def is_wrong(target: Target, prompt: Sequence[int], answer: Sequence[int], tie: float) -> bool:
    """True if some token of an answer is not the target's best token at its position.

    A token counts as the best if its logit lies below the best logit by at most `tie` times the
    scale, which is the largest magnitude among the best logits of its position. `prompt` and
    `answer` are token ids.
    """
    logits = plain_logits(target, prompt, answer)  # [tokens, vocab]
    num_best = min(NUM_BEST, logits.shape[1])
    best_logits = logits.topk(num_best).values  # [tokens, best], the largest first
    scale = best_logits.abs().amax(1, keepdim=True)  # [tokens, 1]
    token_ids = torch.tensor(answer, device=logits.device)[:, None]  # [tokens, 1]
    # gap = best logit - logit of the answer's token; a tie if gap <= tie * scale
    gaps = best_logits[:, :1] - logits.gather(1, token_ids)  # [tokens, 1]
    return bool((gaps > tie * scale).any())
