"""Continue many prompts together, with greedy or sampled tokens."""

from collections.abc import Sequence, Set

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

_TOP_P = 0.95
_TOP_K = 256


@torch.inference_mode()
def continued(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    most: int,
    ends: Set[int],
    draws: torch.Generator,
    sampled_every: int = 1,
) -> list[list[int]]:
    """Continue each prompt until a token in `ends`, or for `most` tokens.

    The first of every `sampled_every` prompts is sampled with `draws`. The others are greedy.
    """
    width = max((len(prompt) for prompt in prompts), default=0)
    padded = [[0] * (width - len(prompt)) + prompt for prompt in prompts]
    are_tokens = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    ids = torch.tensor(padded, device=model.device)
    mask = torch.tensor(are_tokens, device=model.device)  # [rows, tokens so far]
    is_sampled = torch.arange(len(prompts), device=model.device) % sampled_every == 0
    continuations: list[list[int]] = [[] for _ in prompts]
    open_rows = list(range(len(prompts)))  # prompts whose continuation has not ended
    cache = None
    while open_rows:
        positions = (mask.cumsum(-1) - 1).clamp_(min=0)[:, -ids.shape[1] :]
        output = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        next_ids = _next_ids(output.logits[:, -1], is_sampled[open_rows], draws)
        for row, token in zip(open_rows, next_ids.tolist(), strict=True):
            continuations[row].append(token)
        kept = [  # indices among the open rows
            index
            for index, row in enumerate(open_rows)
            if continuations[row][-1] not in ends and len(continuations[row]) < most
        ]
        cache = output.past_key_values
        if 0 < len(kept) < len(open_rows):
            cache.batch_select_indices(torch.tensor(kept, device=model.device))
        open_rows = [open_rows[index] for index in kept]
        ids = next_ids[kept, None]
        mask = pad(mask[kept], (0, 1), value=1)
    return continuations


def _next_ids(logits: Tensor, is_sampled: Tensor, draws: torch.Generator) -> Tensor:
    """Return the next token of each row [rows] int64: a sampled one, or the best one."""
    top = logits.float().topk(min(_TOP_K, logits.shape[-1]))
    probabilities = (top.values - logits.float().logsumexp(-1, keepdim=True)).exp()
    sum_before = probabilities.cumsum(-1) - probabilities  # [rows, top k]
    sums = probabilities.where(sum_before < _TOP_P, 0.0).cumsum(-1)
    uniform = torch.rand(len(sums), 1, generator=draws, device=sums.device)
    # A greedy row has the threshold 0, which selects its best token.
    thresholds = uniform * sums[:, -1:] * is_sampled[:, None]
    ranks = torch.searchsorted(sums, thresholds)
    return top.indices.gather(1, ranks.clamp_(max=sums.shape[1] - 1))[:, 0]
