"""Checks of a drafter's trees against the contract.

They read the tree on the host, so every check waits for the device.
"""

from __future__ import annotations

from collections import Counter

import torch

from specbench.engine.drafter import State
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.errors import MethodFault

_HINT = "`specbench/engine/drafter.py` is the contract of a method."


def check_draft(tree: DraftTree, state: State, vocab_size: int) -> None:
    """Check a proposed tree.

    Raises:
        MethodFault: it is not a tree below `state.pending`, a token is not in the vocabulary,
            siblings carry the same token, or a tensor has another shape or type.
    """
    if reason := _fault(tree, state, vocab_size):
        raise MethodFault(f"The draft {reason}.", _HINT)


def _fault(tree: object, state: State, vocab_size: int) -> str | None:
    if not isinstance(tree, DraftTree):
        return f"is a {type(tree).__name__}, not a DraftTree"
    layout, n = tree.layout, tree.tokens.shape[0]
    for name, shape in (("parents", (n,)), ("depths", (n,)), ("ancestors", (n, n))):
        if tuple(getattr(layout, name).shape) != shape:
            return f"has {n} tokens, but {name} of shape {list(getattr(layout, name).shape)}"
    if tree.tokens.dtype != torch.long or tree.tokens.dim() != 1:
        return f"has tokens of type {tree.tokens.dtype} and {tree.tokens.dim()} dimensions"
    if tree.q is not None and tuple(tree.q.shape) != (n, vocab_size):
        return f"has q of shape {list(tree.q.shape)}, not {[n, vocab_size]}"
    tokens, parents = tree.tokens.tolist(), layout.parents.tolist()
    num_verify = int(tree.num_verify)
    if not 1 <= num_verify <= n:
        return f"verifies {num_verify} of {n} nodes"
    if tokens[0] != state.pending:
        return f"has root {tokens[0]}, but the pending token is {state.pending}"
    if outside := [token for token in tokens if not 0 <= token < vocab_size]:
        return f"holds token {outside[0]}; the vocabulary has {vocab_size} tokens"
    try:
        expected = TreeLayout.from_parents(parents, layout.parents.device)
    except ValueError as error:
        return f"is not a tree: {error}"
    if not torch.equal(expected.depths, layout.depths):
        return "has depths that do not follow from its parents"
    if not torch.equal(expected.ancestors, layout.ancestors):
        return "lets a node see nodes other than its ancestors"
    if expected.max_depth > layout.max_depth:
        return f"is {expected.max_depth} deep, but declares a depth of {layout.max_depth}"
    children = Counter(list(zip(parents, tokens, strict=True))[1:num_verify])
    (parent, token), count = children.most_common(1)[0] if children else ((0, 0), 1)
    return f"holds token {token} {count} times below node {parent}" if count > 1 else None
