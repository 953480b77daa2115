"""SAM-Decoding: when it copies, what it copies, and that the other drafter misses no step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.registry import get, make_options
from specbench.types import Request
from tests.methods.test_draft_cache import rows
from tests.support.models import prompts, random_target
from tests.support.weights import build


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([3, 4, 5, 9, 8, 7, 3, 4, 5], [9, 8, 7]),
        ([3, 4, 5, 9, 8, 7, 6, 4, 5], []),  # two tokens match
        ([4, 5, 9, 9, 3, 4, 5, 6, 3, 4, 5], [6, 3, 4]),
        ([5, 9, 9, 4, 5, 3, 4, 5, 3, 4, 5], [3, 4, 5]),
        ([5, 9, 9, 3, 4, 5, 3, 4, 5], [3, 4, 5]),
        ([4, 5, 3, 3, 3, 3, 3], [3, 3, 3]),  # more follows a shorter match further back
    ],
)
def test_the_continuation_of_the_longest_match_is_copied(
    text: list[int], expected: list[int]
) -> None:
    method = get("sam")
    given = make_options(method, {"num_tokens": "3", "threshold": "3"})
    drafter: Any = method.build(given, BuildContext(random_target(layers=1)))
    drafter._text.extend(text)
    assert drafter._copied() == expected


@pytest.mark.parametrize("other", ["recycling", "eagle2"])
def test_it_is_lossless_where_both_parts_propose(other: str, tmp_path: Path) -> None:
    target, request = random_target(), Request(prompts()[3], 60)
    drafter = build("sam", target, tmp_path, other=other, num_tokens="5", threshold="3")
    done = decode(target, drafter, request, is_checked=True)
    vanilla = decode(target, build("vanilla", target, tmp_path), request)
    assert done.token_ids == vanilla.token_ids
    sizes = set(done.num_nodes)
    assert any(size <= 6 for size in sizes) and any(size > 6 for size in sizes)


def test_eagle_reads_the_steps_that_it_did_not_propose(tmp_path: Path) -> None:
    """Its cache after copied steps holds what it holds where it proposes every tree."""
    target, request = random_target(), Request(prompts()[3], 40)
    num_rows = len(request.prompt_ids) + 30
    drafter: Any = build("sam", target, tmp_path, other="eagle2", num_tokens="5", threshold="3")
    alone: Any = build("sam", target, tmp_path, other="eagle2", threshold="400")
    done = decode(target, drafter, request)
    assert len(set(done.num_nodes)) > 1
    assert set(decode(target, alone, request).num_nodes) == {61}
    mixed, plain = (rows(one._other.model.stack, num_rows) for one in (drafter, alone))
    torch.testing.assert_close(mixed, plain)
