"""Compute causal attention in blocks, over whole rows and over chains that start in them.

A chain starts at each position of a row. Its element k attends to the row up to that position, and
to the elements of the chain up to itself, as a drafter does on one path of its tree.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.models.llama.modeling_llama import repeat_kv

BLOCKS = "specbench_blocks"
"""The name of this attention in transformers.

In bfloat16 on a CPU it takes about half the time of torch's own attention.
"""
_BLOCK = 128
"""Number of positions whose attention is computed at once."""


class KeysValues(NamedTuple):
    """Keys and values of the rows, or of one element of every chain."""

    keys: Tensor  # [rows, heads, length, head_dim]
    values: Tensor  # [rows, heads, length, head_dim]


Chain = list[KeysValues]
"""Keys and values of the rows, and then of each chain element so far."""


def attend(query: Tensor, chain: Chain) -> Tensor:
    """Compute the attention of the chain's last element at every position.

    `query` [rows, heads, length, head_dim] is scaled already. The result has the same shape.
    """
    rows, *elements = chain
    length = query.shape[2]
    outputs = []
    with torch.autocast(query.device.type, enabled=False):
        for start in range(0, length, _BLOCK):
            block = slice(start, min(start + _BLOCK, length))
            outputs.append(_attend_in_block(query[:, :, block], block, rows, elements))
    return torch.cat(outputs, dim=2)


def _attend_in_block(
    query: Tensor, block: slice, rows: KeysValues, elements: Sequence[KeysValues]
) -> Tensor:
    """Compute attention at the positions in `block`, which are also the positions in `query`."""
    # shares = softmax([q K^T + mask ; q k_1 ; q k_2 ...]) over the row's positions and the chain's
    # elements; output = shares [V ; v_1 ; v_2 ...]
    end = block.stop
    row_scores = query @ rows.keys[:, :, :end].transpose(-1, -2)
    mask = torch.full_like(row_scores[0, 0], float("-inf")).triu(block.start + 1)
    element_scores = [
        (query * element.keys[:, :, block]).sum(-1, keepdim=True) for element in elements
    ]
    shares = torch.cat([row_scores + mask, *element_scores], -1).softmax(-1)
    output = shares[..., :end] @ rows.values[:, :, :end]
    for index, element in enumerate(elements, start=end):
        share = shares[..., index, None]
        output = output + share * element.values[:, :, block]
    return output


def _attend_rows(
    module: nn.Module,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: None,
    *,
    scaling: float,
    **named: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of the rows, or of the next element of every chain.

    Its keys and values are appended to `chain`.
    """
    num_queries = query.shape[1] // keys.shape[1]  # heads that share keys and values
    chain: Chain = named.get("chain", [])
    repeated_keys = repeat_kv(keys.to(values.dtype), num_queries)
    chain.append(KeysValues(repeated_keys, repeat_kv(values, num_queries)))
    output = attend(query.to(values.dtype) * scaling, chain)
    return output.transpose(1, 2).contiguous(), None  # [rows, length, heads, head_dim]


AttentionInterface.register(BLOCKS, _attend_rows)
