"""Use a model's logits to check that it runs over trees, and that its steps can be replayed."""

from typing import Any

import torch
from torch import Tensor

from specbench.engine.target import Target
from specbench.engine.tree import DraftTree, TreeLayout
from specbench.errors import reason_of

_PARENTS = (0, 0, 0, 0, 2, 2, 1, 4, 5, 7)
"""The parent of each node in a tree with siblings and a depth of 4. From the third node on, a
node's row differs from its depth.
"""

_LEAVES = (3, 6, 8, 9)
"""Nodes without children."""

_SIZE_WORDS = ("window", "chunk", "block", "local")
"""Words in the names of config fields that limit which tokens a token sees."""

# A gap is in units of the logits' spread. A wrong mask or position moves most nodes by about 1.
_ALLOWED_GAP = 1e-3
"""Largest gap that is rounding in float32."""
_ALLOWED_HALF_GAP = 0.05
"""Largest gap that is rounding in half precision."""


def tree_fault(target: Target) -> str | None:
    """The error of the model's logits over a tree, or None if they are right.

    The tree follows more tokens than any window or chunk that the config names. The median
    over the nodes decides. Rounding may send a single token to other experts, but a fault
    shows in most nodes.
    """
    layout = TreeLayout.from_parents(_PARENTS, target.device)
    n = layout.num_nodes
    longest_prompt = target.context - layout.max_depth - 1
    length = max(1, min(_longest_window(target.config) + 5, longest_prompt))
    ids = _random_ids(target, length + n)
    tree = DraftTree(ids[length:], layout, n)
    try:
        with torch.no_grad():
            target.prefill(ids[:length].tolist(), num_new=n)
            actual = target.forward(tree).logits
            expected = _expected(target, ids, layout, length)
    except Exception as error:  # a model may fail in any way
        return f"it fails over a tree: {reason_of(error)}"
    finally:
        target.cache.reset()
    return _difference(target, "logits over a tree", actual, "a plain forward", expected)


def replay_fault(target: Target) -> str | None:
    """The reason that the model's step must not be replayed as a graph, or None if it may be.

    The step is captured after some tokens, and replayed after more tokens. If the model's code read
    the number of tokens on the host, the logits are wrong.
    """
    layout = TreeLayout.from_parents(_PARENTS, target.device)
    execution = target.execution
    n = layout.num_nodes
    longest_prompt = target.context - layout.max_depth - 1
    length = min(8, target.context // 2)
    longer = length + min(16, longest_prompt - length)
    ids = _random_ids(target, longer + n)
    tree = DraftTree(ids[-n:], layout, n)
    try:
        with torch.inference_mode():
            target.reserve(longer + n)
            target.prefill(ids[:length].tolist(), num_new=n)
            target.forward(tree)
            target.prefill(ids[:longer].tolist(), num_new=n)
            actual = target.forward(tree).logits.clone()
            with execution.paused():
                expected = target.forward(tree).logits
    except Exception as error:  # a model may fail in any way
        return f"its step with fixed shapes fails: {reason_of(error)}"
    finally:
        target.cache.reset()
    if failures := sorted(execution.failures):
        return failures[0]
    return _difference(target, "logits in a graph", actual, "the same step by itself", expected)


def _random_ids(target: Target, num_tokens: int) -> Tensor:
    """Random tokens [num_tokens], the same in every call."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(target.vocab_size, (num_tokens,), generator=generator)
    return ids.to(target.device)


def _difference(
    target: Target, actual_label: str, actual: Tensor, expected_label: str, expected: Tensor
) -> str | None:
    """The gap between logits [nodes, vocab] as a clause, or None if it is rounding."""
    spread = expected.std(-1).clamp_min(torch.finfo(target.dtype).tiny)  # [nodes]
    gaps = (actual - expected).abs().amax(-1) / spread
    gap = float(gaps.median())
    allowed = _ALLOWED_HALF_GAP if target.dtype.itemsize < 4 else _ALLOWED_GAP
    if gap <= allowed:
        return None
    return (
        f"its {actual_label} differ from those of {expected_label} by {gap:.2g} of their spread "
        f"(at most {allowed:g} is rounding)"
    )


def _expected(target: Target, ids: Tensor, layout: TreeLayout, length: int) -> Tensor:
    """The logits [nodes, vocab] of each node, from a plain forward over the node's path."""
    rows: dict[int, Tensor] = {}
    for leaf in _LEAVES:
        path = layout.ancestors[leaf].nonzero().view(-1)
        sequence = torch.cat([ids[:length], ids[length + path]])
        out = target.model(input_ids=sequence[None], use_cache=False, logits_to_keep=len(path))
        rows.update(zip(path.tolist(), out.logits[0], strict=True))
    return torch.stack([rows[node] for node in range(layout.num_nodes)])


def _longest_window(config: Any) -> int:
    """The longest window or chunk in any field of a config, in tokens. 0 without any."""
    sizes = [
        setting
        for name, setting in config.to_dict().items()
        if isinstance(setting, int) and any(word in name for word in _SIZE_WORDS)
    ]
    return max(sizes, default=0)
