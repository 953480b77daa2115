"""Checks of a method's drafts and verdicts against the contract.

They read tensors on the host, so every check waits for the device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specbench.engine.accept import Verdict
from specbench.engine.drafter import State
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.errors import ContractFault

_HINT = "`specbench/engine/drafter.py` is the contract of a method."


def check_draft(tree: DraftTree, state: State, vocab_size: int) -> None:
    """Check a proposed tree.

    Raises:
        ContractFault: it is not a tree below `state.pending`, a token is not in the vocabulary,
            siblings carry the same token, or a tensor has a wrong shape or type.
    """
    if reason := _fault(tree, state, vocab_size):
        raise ContractFault(f"The draft {reason}.", _HINT)


@dataclass(frozen=True, slots=True)
class CheckedStep:
    """A copy of a step on the host, which is checked after the timed region."""

    pending: int
    tokens: Sequence[int]
    parents: Sequence[int]
    num_verify: int
    verdict: Verdict

    @classmethod
    def read(cls, pending: int, tree: DraftTree, verdict: Verdict) -> CheckedStep:
        tokens, parents = tree.tokens.tolist(), tree.layout.parents.tolist()
        return cls(pending, tokens, parents, int(tree.num_verify), verdict)

    def check(self, vocab_size: int) -> None:
        """Check the draft, and the path that the rule accepted.

        Raises:
            ContractFault: the root is not the pending token, a token is not in the vocabulary,
                siblings carry the same token, or the rule accepted nodes that are not a path.
        """
        reason = _token_fault(self.pending, self.tokens, self.parents, self.num_verify, vocab_size)
        if reason:
            raise ContractFault(f"The draft {reason}.", _HINT)
        if reason := self._verdict_fault():
            raise ContractFault(f"The acceptance rule {reason}.", _HINT)

    def _verdict_fault(self) -> str | None:
        """The fault of the verdict as a clause, or None if it has no fault."""
        path = [*self.verdict.path]
        *accepted, _ = self.verdict.token_ids
        parents = [self.parents[node] for node in path[1:]]
        if path[0] != 0 or parents != path[:-1]:
            return f"accepted the nodes {path}, which are not a path from the root"
        if path[-1] >= self.num_verify:
            return f"accepted node {path[-1]}, but only {self.num_verify} nodes may be accepted"
        if accepted != [self.tokens[node] for node in path[1:]]:
            return f"emitted the tokens {accepted}, which are not those of the nodes {path}"
        return None


def _fault(tree: object, state: State, vocab_size: int) -> str | None:
    """The fault of a proposed tree as a clause, or None if it has no fault."""
    if not isinstance(tree, DraftTree):
        return f"is a {type(tree).__name__}, not a DraftTree"
    layout = tree.layout
    n = tree.tokens.shape[0]
    expected_shapes = {"parents": [n], "depths": [n], "ancestors": [n, n]}
    for name, expected_shape in expected_shapes.items():
        shape = list(getattr(layout, name).shape)
        if shape != expected_shape:
            return f"has {n} tokens, but {name} of shape {shape}"
    if tree.tokens.dtype != torch.long or tree.tokens.dim() != 1:
        return f"has tokens of type {tree.tokens.dtype} and {tree.tokens.dim()} dimensions"
    if tree.q is not None and tuple(tree.q.shape) != (n, vocab_size):
        return f"has q of shape {list(tree.q.shape)}, not {[n, vocab_size]}"
    tokens = tree.tokens.tolist()
    parents = layout.parents.tolist()
    num_verify = int(tree.num_verify)
    if not 1 <= num_verify <= n:
        return f"verifies {num_verify} of {n} nodes"
    try:
        expected = TreeLayout.from_parents(parents, layout.parents.device)
    except ValueError as error:
        return f"is not a tree: {error}"
    if not torch.equal(expected.depths, layout.depths):
        return "has depths that do not follow from its parents"
    if not torch.equal(expected.ancestors, layout.ancestors):
        return "lets a node see nodes other than its ancestors"
    if expected.max_depth > layout.max_depth:
        return f"has depth {expected.max_depth}, but declares depth {layout.max_depth}"
    return _token_fault(state.pending, tokens, parents, num_verify, vocab_size)


def _token_fault(
    pending: int, tokens: Sequence[int], parents: Sequence[int], num_verify: int, vocab_size: int
) -> str | None:
    """The fault of a tree's tokens as a clause, or None if they have no fault."""
    if tokens[0] != pending:
        return f"has root {tokens[0]}, but the pending token is {pending}"
    if min(tokens) < 0 or max(tokens) >= vocab_size:
        outside = next(token for token in tokens if not 0 <= token < vocab_size)
        return f"holds token {outside}; the vocabulary has {vocab_size} tokens"
    children = zip(parents[1:num_verify], tokens[1:num_verify], strict=True)
    for (parent, token), count in Counter(children).most_common(1):
        if count > 1:
            return f"holds token {token} {count} times below node {parent}"
    return None
