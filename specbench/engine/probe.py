"""Proofs that a model runs over trees, and that its steps can be replayed, by its logits."""

from typing import Any

import torch
from torch import Tensor

from specbench.engine.target import Target
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.errors import reason_of

_PARENTS = (0, 0, 0, 0, 2, 2, 1, 4, 5, 7)
"""Siblings, and a depth of 4. A node's row is its position for the first two nodes only."""

_LEAVES = (3, 6, 8, 9)

_SIZES = ("window", "chunk", "block", "local")
_TOLERANCE, _HALF_TOLERANCE = 1e-3, 0.05
"""Of the logits' spread. A wrong mask or position changes most nodes by about as much as that."""


def tree_fault(target: Target) -> str | None:
    """The error of the model's logits over a tree; None if they are right.

    The tree follows more tokens than any window or chunk that the config names. The median
    over the nodes decides: rounding may lead a token to other experts, a fault is in most
    nodes.
    """
    layout = TreeLayout.from_parents(_PARENTS, target.device)
    depth, n = layout.max_depth, layout.num_nodes
    length = max(1, min(_longest(target.config) + 5, target.context - depth - 1))
    ids = _drawn(target, length + n)
    try:
        with torch.no_grad():
            target.prefill(ids[:length].tolist(), num_new=n)
            found = target.forward(DraftTree(ids[length:], layout, n)).logits
            expected = _expected(target, ids, layout, length)
    except Exception as error:  # a model may fail in any way
        return f"it fails over a tree: {reason_of(error)}"
    finally:
        target.cache.reset()
    return _difference(target, "logits over a tree", found, "a plain forward", expected)


def replay_fault(target: Target) -> str | None:
    """The reason that the model's step must not be replayed as a graph; None if it may.

    A step that is captured after some tokens and replayed after more of them shows whether the
    model's code has read their number.
    """
    layout = TreeLayout.from_parents(_PARENTS, target.device)
    execution, n, length = target.execution, layout.num_nodes, min(8, target.context // 2)
    more = min(16, target.context - layout.max_depth - 1 - length)
    ids = _drawn(target, length + more + n)
    tree = DraftTree(ids[-n:], layout, n)
    try:
        with torch.inference_mode():
            target.reserve(length + more + n)
            target.prefill(ids[:length].tolist(), num_new=n)
            target.forward(tree)
            target.prefill(ids[: length + more].tolist(), num_new=n)
            found = target.forward(tree).logits.clone()
            with execution.paused():
                expected = target.forward(tree).logits
    except Exception as error:  # a model may fail in any way
        return f"its step with fixed shapes fails: {reason_of(error)}"
    finally:
        target.cache.reset()
    if failures := sorted(execution.failures):
        return failures[0]
    return _difference(target, "logits in a graph", found, "the same step by itself", expected)


def _drawn(target: Target, num_tokens: int) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randint(target.vocab_size, (num_tokens,), generator=draw).to(target.device)


def _difference(
    target: Target, what: str, found: Tensor, whose: str, expected: Tensor
) -> str | None:
    """The gap between logits [nodes, vocab] as a clause; None if it is rounding."""
    spread = expected.std(-1).clamp_min(torch.finfo(target.dtype).tiny)
    gap = float(((found - expected).abs().amax(-1) / spread).median())
    tolerance = _HALF_TOLERANCE if target.dtype.itemsize < 4 else _TOLERANCE
    if gap <= tolerance:
        return None
    return (
        f"its {what} differ from those of {whose} by {gap:.2g} of their spread (at most "
        f"{tolerance:g} is rounding)"
    )


def _expected(target: Target, ids: Tensor, layout: TreeLayout, length: int) -> Tensor:
    """Logits [nodes, vocab] of a plain forward over each path."""
    rows: dict[int, Tensor] = {}
    for leaf in _LEAVES:
        path = layout.ancestors[leaf].nonzero().view(-1)
        sequence = torch.cat([ids[:length], ids[length + path]])
        out = target.model(input_ids=sequence[None], use_cache=False, logits_to_keep=len(path))
        rows.update(zip(path.tolist(), out.logits[0], strict=True))
    return torch.stack([rows[node] for node in range(layout.num_nodes)])


def _longest(config: Any) -> int:
    """The longest window or chunk that a config names, by whatever field."""
    fields = [(name, n) for name, n in config.to_dict().items() if isinstance(n, int)]
    return max((n for name, n in fields if any(word in name for word in _SIZES)), default=0)
