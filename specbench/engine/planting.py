"""Put correct tokens into a method's drafts, so that the target accepts them."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from specbench.engine.tree import DraftTree


def plant(tree: DraftTree, right_ids: Sequence[int], step: int) -> tuple[DraftTree, int]:
    """Put the right tokens along a path of the tree. Returns the new tree and their number.

    Even steps use the longest path, and odd steps rotate through the children of each node. If a
    sibling already carries the right token, the two swap tokens, so that siblings stay distinct.
    """
    n = int(tree.num_verify)
    parents = tree.layout.parents[:n].tolist()
    tokens = tree.tokens.tolist()
    heights = [0] * n  # levels below each node
    for child in range(n - 1, 0, -1):
        parent = parents[child]
        heights[parent] = max(heights[parent], heights[child] + 1)
    node = 0
    num_planted = 0
    for depth, token in enumerate(right_ids):
        children = [child for child in range(1, n) if parents[child] == node]
        if not children:
            break
        if step % 2:
            planted = children[(step // 2 + depth) % len(children)]
        else:
            planted = max(children, key=lambda child: heights[child])
        twin = next((child for child in children if tokens[child] == token), None)
        if twin is not None:
            tokens[twin] = tokens[planted]
        tokens[planted] = token
        node = planted
        num_planted += 1
    planted_ids = torch.tensor(tokens, device=tree.tokens.device)
    return replace(tree, tokens=planted_ids), num_planted
