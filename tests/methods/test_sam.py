"""SAM-Decoding: when it copies, what it copies, and that the other drafter misses no step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from specbench.engine.decode import decode
from specbench.engine.drafter import BuildContext
from specbench.errors import UserError
from specbench.methods._datastore import Datastore
from specbench.registry import get, make_options
from specbench.types import Request
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


CORPUS = [[3, 4, 5, 6, 7], [9, 3, 4, 5, 8, 8], [*range(10, 50)], [1, *range(12, 46), 5, 5]]


def drafter_with(folder: Path, **options: str) -> Any:
    path = folder / "store.safetensors"
    Datastore.build(CORPUS).save(path)
    given = make_options(get("sam"), {"datastore": str(path), **options})
    return get("sam").build(given, BuildContext(random_target(layers=1), path))


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ([1, 3, 4, 5], {}, [6, 7]),  # the earliest of the longest match
        ([9, 3, 4, 5], {}, [8, 8]),
        ([1, 4, 5], {}, []),  # one token longer than the bias, not two
        ([1, 4, 5], {"threshold": "1"}, [6, 7]),
        ([3, 4, 5, 9, 3, 4, 5], {}, [9, 3, 4]),  # three match here, four less the bias there
        ([3, 4, 5, 9, 3, 4, 5], {"bias": "0"}, [8, 8]),
        ([1, *range(12, 45)], {}, [45, 5, 5]),
        ([2, *range(12, 45)], {}, [45, 46, 47]),
        ([1, 6, 7], {"bias": "0"}, []),  # nothing follows
    ],
)
def test_a_match_in_the_datastore_is_copied_if_it_is_longer_by_the_bias(
    text: list[int], options: dict[str, str], expected: list[int], tmp_path: Path
) -> None:
    given = {"num_tokens": "3", "threshold": "2", "bias": "1", **options}
    drafter = drafter_with(tmp_path, **given)
    drafter._text.extend(text)
    assert drafter._copied() == expected


def test_a_match_is_as_long_as_it_is_beyond_the_tokens_that_sort() -> None:
    store = Datastore.build(CORPUS)
    assert store.longest_match([7, *range(10, 48)], 9) == (38, [48, 49])
    assert store.longest_match([7, *range(12, 46)], 3) == (34, [46, 47, 48])
    assert store.longest_match([1, *range(12, 46)], 9) == (35, [5, 5])
    assert store.longest_match([100], 9) == (0, [])


def test_it_is_lossless_with_a_datastore(tmp_path: Path) -> None:
    target, request = random_target(), Request(prompts()[3], 40)
    vanilla = decode(target, build("vanilla", target, tmp_path), request)
    path = tmp_path / "store.safetensors"
    Datastore.build([list(vanilla.token_ids[:30]), [1, 2, 3]]).save(path)
    given = make_options(get("sam"), {"datastore": str(path), "threshold": "2", "bias": "0"})
    done = decode(target, get("sam").build(given, BuildContext(target, path)), request)
    assert done.token_ids == vanilla.token_ids
    assert max(done.accept_lengths) > 15


def test_a_datastore_and_eagles_weights_are_refused_together() -> None:
    with pytest.raises(UserError, match="datastore and eagle2's weights"):
        make_options(get("sam"), {"datastore": "x", "other": "eagle2"})


@pytest.mark.parametrize("other", ["recycling", "eagle2"])
def test_it_is_lossless_where_both_parts_propose(other: str, tmp_path: Path) -> None:
    target, request = random_target(), Request(prompts()[3], 60)
    drafter = build("sam", target, tmp_path, other=other, num_tokens="5", threshold="3")
    done = decode(target, drafter, request, is_checked=True)
    vanilla = decode(target, build("vanilla", target, tmp_path), request)
    assert done.token_ids == vanilla.token_ids
    sizes = set(done.num_nodes)
    assert any(size <= 6 for size in sizes) and any(size > 6 for size in sizes)
