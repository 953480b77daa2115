"""The kernels' attention equals torch's, with the masks, windows and scores of all models."""

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


def random_cache(num_rows: int, heads: Heads) -> CacheRows:
    """A cache with random keys and values of these heads."""
    rows = torch.randn(num_rows, 2 * heads.kv_width, device=DEVICE)
    shape = (heads.num_kv, heads.dim)
    return CacheRows.of(rows, shape, shape)


def random_queries(num_rows: int, heads: Heads) -> Tensor:
    """Random queries [rows, width]. Their rows are parts of wider ones, so not contiguous."""
    wider_rows = torch.randn(num_rows, 2 * heads.query_width, device=DEVICE)
    return wider_rows[:, : heads.query_width]


def random_bias(num_rows: int, num_before: int) -> Tensor:
    """The mask [rows, before + rows] in which a row sees itself, and others at random."""
    num_more = num_before + num_rows
    is_seen = torch.rand(num_rows, num_more, device=DEVICE) < 0.4
    is_seen[:, num_before:].fill_diagonal_(True)
    bias = torch.zeros(is_seen.shape, device=DEVICE)
    return bias.masked_fill_(~is_seen, torch.finfo(bias.dtype).min)


def mask_after(start: int, layout: TreeLayout, cache_span: CacheSpan) -> TreeMask:
    """The mask of a tree's nodes after `start` committed rows, with the nodes' positions."""
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
    """All rows see the `start` committed rows. The mask is about the rows after them."""
    torch.manual_seed(num_rows)
    cached = random_cache(512, heads)
    queries = random_queries(num_rows, heads)
    for start, num_before in ((0, 0), (5, 0), (70, 9), (300, 40)):
        bias = random_bias(num_rows, num_before)
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
    cached = random_cache(512, heads)
    layout = TreeLayout.from_parents([0, 0, 0, 1, 3, 4], DEVICE)
    queries = random_queries(layout.num_nodes, heads)
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
            assert difference > 0.1, "the window changes nothing"


@MANY_PROGRAMS
@pytest.mark.parametrize("window", [None, 100])
def test_a_chain_on_an_empty_cache_has_the_attention_of_a_prefill(
    window: int | None,
) -> None:
    heads = Heads(1, 2, 16)
    size = PROMPT_SIZES[-1]
    torch.manual_seed(0)
    cached = random_cache(size, heads)
    queries = random_queries(size, heads)
    chain = mask_after(0, chain_layout(size, DEVICE), CacheSpan(size, is_exact=False))
    expected = TORCH.attend(queries, cached, None, heads, window=window)
    output = KERNELS.attend(queries, cached, chain, heads, window=window)
    torch.testing.assert_close(output, expected)
