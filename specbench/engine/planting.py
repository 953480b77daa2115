"""Put right tokens into the drafts of a method, so that they are accepted."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from specbench.engine.tree import DraftTree


def plant(tree: DraftTree, right: Sequence[int], step: int) -> tuple[DraftTree, int]:
    """The tree with the right tokens along a path, and the number of them.

    A sibling that carries the token already takes the planted node's. Siblings stay distinct.
    """
    n = int(tree.num_verify)
    parents, tokens = tree.layout.parents[:n].tolist(), tree.tokens.tolist()
    heights = [0] * n
    for node in range(n - 1, 0, -1):
        heights[parents[node]] = max(heights[parents[node]], heights[node] + 1)
    node, num_planted = 0, 0
    for depth, token in enumerate(right):
        children = [i for i in range(1, n) if parents[i] == node]
        if not children:
            break
        deepest = max(children, key=lambda i: heights[i])
        chosen = children[(step // 2 + depth) % len(children)] if step % 2 else deepest
        if twin := next((i for i in children if tokens[i] == token), None):
            tokens[twin] = tokens[chosen]
        tokens[chosen] = token
        node, num_planted = chosen, num_planted + 1
    return replace(tree, tokens=torch.tensor(tokens, device=tree.tokens.device)), num_planted
