"""Token Recycling's table: what a step writes to it, and what is kept from prompt to prompt."""

from __future__ import annotations

from typing import Any

import torch

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.registry import get
from specbench.types import Request
from tests.support.models import prompts, random_target, static_tree


def build(**options: str) -> Any:
    method = get("recycling")
    return method.build(method.options(**options), BuildContext(random_target()))


def test_the_official_tree_has_80_nodes_below_the_root_and_is_6_deep() -> None:
    tree = static_tree("recycling_80", vocab_size=50)
    assert (tree.num_nodes, tree.num_candidates, len(tree.levels)) == (81, 8, 6)


def test_a_row_holds_the_best_tokens_of_the_last_node_with_its_token() -> None:
    drafter = build(tree="2x1")
    logits = torch.zeros(3, 50)
    logits[0, 7] = logits[1, 8] = logits[2, 9] = 1.0
    logits[0, 3] = logits[1, 4] = logits[2, 5] = 0.5
    padded = torch.tensor([11, 12, 11, 0]), torch.cat([logits, logits[:1]])
    drafter._learn(*padded, torch.tensor([3]))
    assert drafter._table[11].tolist() == [9, 5]
    assert drafter._table[12].tolist() == [8, 4]
    assert 7 not in drafter._table[0]
    (tokens,) = drafter._filled(torch.tensor([12]))
    assert tokens[:3].tolist() == [12, 8, 4]


def test_a_remembered_table_serves_the_next_prompt_until_it_is_forgotten() -> None:
    drafter, request = build(), Request(prompts()[2], 40)
    first = decode(drafter_target := random_target(), drafter, request)
    assert decode(drafter_target, drafter, request).steps == first.steps
    drafter.remember()
    again = decode(drafter_target, drafter, request)
    assert again.token_ids == first.token_ids
    assert len(again.steps) < len(first.steps)
    drafter.forget()
    assert decode(drafter_target, drafter, request).steps == first.steps
