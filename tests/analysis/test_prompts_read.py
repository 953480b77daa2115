"""Prompts as servers counted them: offsets, other prompts, and answers without a count."""

from collections.abc import Sequence
from typing import Any

import pytest

from specbench.analysis.prompts_read import OTHER_PROMPTS
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.analysis.stats.estimates import Estimate
from specbench.log.run import Run
from specbench.report.build import make_report
from tests.analysis.run_factory import number
from tests.analysis.test_serving import ONE, answer, block, measured, run


def read(*counts: Sequence[int | None], cached: int = 0) -> Run:
    """Vanilla and SpS, whose servers counted so many tokens of four prompts of 9."""
    records, blocks = [], []
    for method, wall_s, counts_of_method in zip(
        ("vanilla", "sps"), (1.0, 0.5), counts, strict=True
    ):
        blocks.append(block(method, ONE, duration_s=4.0 * wall_s))
        for i, count in enumerate(counts_of_method):
            serving: dict[str, Any] = {
                "reported_prompt_tokens": count,
                "cached_prompt_tokens": cached,
            }
            records.append(answer(method, i, ONE, wall_s=wall_s, num_accepted=5, **serving))
    return run(records, blocks, [ONE])


def notes_of(served_run: Run) -> dict[str, str]:
    return {note.key: note.text for note in make_report(served_run, Bootstrap(50)).notes}


@pytest.mark.parametrize(
    ("offset", "words"), [(1, "vanilla +1, sps +1."), (-1, "vanilla -1, sps -1."), (0, "")]
)
def test_a_constant_offset_is_told_once_and_changes_no_speedup(offset: int, words: str) -> None:
    served_run = read([9 + offset] * 4, [9 + offset] * 4)
    metrics = measured(served_run)
    assert number(metrics.overall["sps", 0.0].speedup) == 2.0
    total = number(metrics.serving["sps", 0.0].total_throughput)
    assert total == pytest.approx(4 * (9 + offset + 11) / 2.0), "by the server's count"
    notes = notes_of(served_run)
    assert notes.get("prompts_read", "").endswith(words)
    assert bool(words) is ("prompts_read" in notes)
    assert not {"other_prompts", "uncounted_prompts", "prefix_cache"} & {*notes}


def test_requests_that_two_servers_read_otherwise_are_in_no_speedup() -> None:
    served_run = read([9, 9, 9, 9], [9, 9, 4, 7009])
    metrics = measured(served_run)
    cell = metrics.cell("sps", 0.0, "gsm8k")
    assert (cell.num_done, cell.num_pairs) == (4, 2)
    assert number(metrics.overall["sps", 0.0].speedup) == 2.0
    assert metrics.serving["sps", 0.0].throughput_ratio == OTHER_PROMPTS
    notes = notes_of(served_run)
    assert "-5 to +7,000" in notes["prompts_read"]
    assert "in 2 requests" in notes["other_prompts"]
    assert (
        "read 4 tokens and vanilla's read 9; as rendered here, the prompt has 9."
        in notes["other_prompts"]
    )
    nothing = measured(read([10] * 4, [9] * 4))
    assert nothing.overall["sps", 0.0].speedup == OTHER_PROMPTS
    assert isinstance(nothing.overall["sps", 0.0].mat, Estimate)


def test_answers_without_a_count_are_told_except_in_older_runs() -> None:
    served_run = read([0, 0, 9, 9], [9, 9, 9, 9])
    assert number(measured(served_run).overall["sps", 0.0].speedup) == 2.0
    assert (
        "of vanilla gave no count of the prompt's tokens in 2 answers"
        in (notes_of(served_run)["uncounted_prompts"])
    )
    assert not {"uncounted_prompts", "prompts_read"} & {*notes_of(read([None] * 4, [None] * 4))}


def test_tokens_that_answers_say_were_cached_are_told() -> None:
    notes = notes_of(read([9] * 4, [9] * 4, cached=8))
    assert "took 32 prompt tokens from its prefix cache" in notes["prefix_cache"]
