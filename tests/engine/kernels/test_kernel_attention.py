"""The kernels' attention is torch's, with the masks, windows and scores of all models."""

from typing import Any

import pytest
import torch
from torch import Tensor

from specbench.engine.layers.operands import CacheRows, CacheSpan, Heads, TreeMask
from specbench.engine.layers.ops import TORCH
from specbench.engine.layers.torch_attention import Scoring
from specbench.engine.tree import PROMPT_SIZES, TreeLayout, chain_layout
from tests.engine.kernels.test_kernels import KERNELS, MANY_PROGRAMS
from tests.support.devices import DEVICE


def keys_and_values(rows: Tensor, heads: Heads) -> CacheRows:
    """Rows of a cache as keys and values of these heads."""
    shape = (heads.num_kv, heads.dim)
    return CacheRows.of(rows, shape, shape)


def mask_after(start: int, layout: TreeLayout, cache_span: CacheSpan) -> TreeMask:
    """The mask of a tree's nodes after `start` rows of float32, with their positions."""
    num_seen = torch.tensor(start, device=DEVICE)
    bias = layout.bias(torch.float32)
    positions = layout.depths + start
    return TreeMask(num_seen, bias, cache_span, positions)


def attend(
    queries: Tensor, cached: CacheRows, tree_mask: TreeMask, heads: Heads, **options: Any
) -> tuple[Tensor, Tensor]:
    """Attention by the kernels and by torch; fails if torch ran in place of a kernel."""
    by_kernels = KERNELS.attend(queries, cached, tree_mask, heads, **options)
    assert KERNELS.fallbacks == {}
    by_torch = TORCH.attend(queries, cached, tree_mask, heads, **options)
    return by_kernels, by_torch


@MANY_PROGRAMS
@pytest.mark.parametrize("heads", [Heads(3, 1, 16), Heads(2, 3, 32), Heads(1, 4, 24)])
@pytest.mark.parametrize("num_rows", [1, 2, 21])
def test_attention_sees_the_committed_rows_and_each_nodes_ancestors(
    heads: Heads, num_rows: int
) -> None:
    torch.manual_seed(num_rows)
    rows = torch.randn(512, 2 * heads.kv_width, device=DEVICE)
    cached = keys_and_values(rows, heads)
    wider_rows = torch.randn(num_rows, 2 * heads.query_width, device=DEVICE)
    queries = wider_rows[:, : heads.query_width]  # not contiguous
    lowest = torch.finfo(rows.dtype).min
    # All rows see the `start` committed rows. Of the `num_before` rows after them and of the rows
    # themselves, each row sees some at random, and itself.
    for start, num_before in ((0, 0), (5, 0), (70, 9), (300, 40)):
        num_more = num_before + num_rows
        is_seen = torch.rand(num_rows, num_more, device=DEVICE) < 0.4
        is_seen[:, num_before:].fill_diagonal_(True)
        bias = torch.zeros(is_seen.shape, device=DEVICE)  # [rows, more]
        bias.masked_fill_(~is_seen, lowest)
        num_seen = torch.tensor(start, device=DEVICE)
        for cache_span in (CacheSpan(start), CacheSpan(512, is_exact=False)):
            tree_mask = TreeMask(num_seen, bias, cache_span)
            by_kernels, by_torch = attend(queries, cached, tree_mask, heads)
            torch.testing.assert_close(by_kernels, by_torch)


@pytest.mark.parametrize("window", [None, 3, 50, 200])
@pytest.mark.parametrize(
    "scoring", [Scoring(0.5, 2.0), Scoring(sinks=torch.tensor([1.0, -2, 8, 0]))]
)
def test_attention_applies_windows_caps_and_sinks(scoring: Scoring, window: int | None) -> None:
    heads = Heads(2, 2, 16)
    torch.manual_seed(0)
    rows = torch.randn(512, 2 * heads.kv_width, device=DEVICE)
    cached = keys_and_values(rows, heads)
    layout = TreeLayout.from_parents([0, 0, 0, 1, 3, 4], DEVICE)
    queries = torch.randn(layout.num_nodes, heads.query_width, device=DEVICE)
    if scoring.sinks is not None:
        scoring = Scoring(sinks=scoring.sinks.to(DEVICE))
    for start in (0, 40, 300):
        tree_mask = mask_after(start, layout, CacheSpan(512, is_exact=False))
        by_kernels, by_torch = attend(
            queries, cached, tree_mask, heads, scoring=scoring, window=window
        )
        torch.testing.assert_close(by_kernels, by_torch)
        if window == 3 and start:
            without_window = TORCH.attend(queries, cached, tree_mask, heads, scoring)
            difference = (by_torch - without_window).abs().max()
            assert difference > 0.1  # the window matters


@MANY_PROGRAMS
@pytest.mark.parametrize("window", [None, 100])
def test_a_prompt_as_a_chain_on_an_empty_cache_has_the_attention_of_a_prefill(
    window: int | None,
) -> None:
    heads, size = Heads(1, 2, 16), PROMPT_SIZES[-1]
    torch.manual_seed(0)
    cached = keys_and_values(torch.randn(size, 2 * heads.kv_width, device=DEVICE), heads)
    queries = torch.randn(size, heads.query_width, device=DEVICE)
    chain = mask_after(0, chain_layout(size, DEVICE), CacheSpan(size, is_exact=False))
    expected = TORCH.attend(queries, cached, None, heads, window=window)
    output = KERNELS.attend(queries, cached, chain, heads, window=window)
    torch.testing.assert_close(output, expected)
