"""Draft tokens by load, written in each engine's form and read by the engine's rule."""

import random
from collections.abc import Mapping, Sequence

import pytest

from specbench.errors import UserError
from specbench.settings.load_table import LoadTable

LOADS = range(1, 257)


def of_vllm(rows: Sequence[tuple[int, int, int]]) -> LoadTable:
    """The table of vLLM's rows, in order."""
    return LoadTable.of((first, num_tokens) for first, _, num_tokens in rows)


def vllm_reads(rows: Sequence[tuple[int, int, int]], most_loads: int) -> list[int]:
    """The draft tokens at loads 1, 2, ... by vLLM's rule.

    A row's last load belongs to it. The previous row applies in a gap and after the last row. The
    first row begins at 1.
    """
    assert rows[0][0] == 1
    by_load: dict[int, int] = {}
    for first, last, num_tokens in rows:
        assert first <= last
        covered_loads = range(first, min(last, most_loads) + 1)
        by_load |= dict.fromkeys(covered_loads, num_tokens)
    return [
        by_load[max(covered for covered in by_load if covered <= load)]
        for load in range(1, most_loads + 1)
    ]


def trtllm_reads(schedule: Mapping[int, int], max_draft_len: int, load: int) -> int:
    """The draft tokens at a load by TensorRT-LLM's rule.

    A key is the last load with its number of draft tokens. There are no drafts beyond the last key,
    and the smallest key has `max_draft_len`.
    """
    assert schedule[min(schedule)] == max_draft_len
    later = [last for last in schedule if last >= load]
    return schedule[min(later)] if later else 0


def drawn(seed: int) -> LoadTable:
    """A table with one to six numbers. Any of them may be 0."""
    generator = random.Random(seed)
    num_starts = generator.randint(0, 5)
    starts = sorted(generator.sample(range(2, 250), num_starts))
    return LoadTable.of((load, generator.randint(0, 8)) for load in (1, *starts))


@pytest.mark.parametrize("seed", range(30))
def test_a_table_is_the_same_in_every_format(seed: int) -> None:
    table = drawn(seed)
    numbers = [table.at(load) for load in LOADS]
    rows = table.vllm_rows()
    assert of_vllm(rows) == table
    assert vllm_reads(rows, len(LOADS)) == numbers
    first = table.at(1)
    if first == 0 or max(numbers) > first:
        with pytest.raises(UserError, match="draft tokens must be the largest"):
            table.trtllm_schedule()
    else:
        schedule = table.trtllm_schedule()
        assert [trtllm_reads(schedule, first, load) for load in LOADS] == numbers


@pytest.mark.parametrize(
    ("rows", "numbers"),
    [
        (
            [(1, 16, 3), (64, 128, 2), (200, 201, 0)],
            {1: 3, 17: 3, 63: 3, 64: 2, 199: 2, 256: 0},
        ),
        (
            [(1, 1, 0), (2, 8, 4)],
            {1: 0, 2: 4, 256: 4},
        ),
    ],
)
def test_a_row_applies_up_to_the_next_one(
    rows: list[tuple[int, int, int]], numbers: dict[int, int]
) -> None:
    table = of_vllm(rows)
    assert [table.at(load) for load in LOADS] == vllm_reads(rows, len(LOADS))
    assert {load: table.at(load) for load in numbers} == numbers


def test_a_schedule_of_tensorrt_llm_ends_in_plain_decoding() -> None:
    table = LoadTable.of([(1, 4), (5, 2), (9, 1), (33, 0)])
    assert table.vllm_rows()[:3] == [(1, 4, 4), (5, 8, 2), (9, 32, 1)]
    assert table.at(33) == 0
    assert table.at(256) == 0
    assert table.trtllm_schedule() == {4: 4, 8: 2, 32: 1}
