"""Prompts as the servers counted them: offsets, different prompts, and answers without a count."""

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
from tests.support.texts import assert_in


def read(*counts: Sequence[int | None], cached: int = 0) -> Run:
    """A run of vanilla and SpS, whose servers counted this many tokens for prompts of 9 tokens."""
    wall_s = {"vanilla": 1.0, "sps": 0.5}
    records, blocks = [], []
    for method, counts_of_method in zip(wall_s, counts, strict=True):
        blocks.append(block(method, ONE, duration_s=4 * wall_s[method]))
        for i, count in enumerate(counts_of_method):
            serving: dict[str, Any] = {
                "num_accepted": 5,
                "reported_prompt_tokens": count,
                "cached_prompt_tokens": cached,
            }
            records.append(answer(method, i, ONE, wall_s=wall_s[method], **serving))
    return run(records, blocks, [ONE])


def notes_of(served_run: Run) -> dict[str, str]:
    return {note.key: note.text for note in make_report(served_run, Bootstrap(50)).notes}


@pytest.mark.parametrize(
    ("offset", "words"), [(1, "vanilla +1, sps +1."), (-1, "vanilla -1, sps -1."), (0, "")]
)
def test_a_constant_offset_is_reported_once_and_changes_no_speedup(offset: int, words: str) -> None:
    counted = [9 + offset] * 4
    served_run = read(counted, counted)
    metrics = measured(served_run)
    assert number(metrics.overall["sps", 0.0].speedup) == 2.0
    # total throughput = tokens of prompts and answers / seconds, by the server's count
    num_tokens = sum(counted) + 4 * 11
    total = number(metrics.serving["sps", 0.0].total_throughput)
    assert total == pytest.approx(num_tokens / 2.0)
    notes = notes_of(served_run)
    if words:
        assert notes["prompts_read"].endswith(words)
    else:
        assert "prompts_read" not in notes
    assert not {"other_prompts", "uncounted_prompts", "prefix_cache"} & {*notes}


def test_requests_that_servers_read_differently_have_no_speedup() -> None:
    served_run = read([9, 9, 9, 9], [9, 9, 4, 7009])
    metrics = measured(served_run)
    cell = metrics.cell("sps", 0.0, "gsm8k")
    assert (cell.num_done, cell.num_pairs) == (4, 2)
    assert number(metrics.overall["sps", 0.0].speedup) == 2.0
    assert metrics.serving["sps", 0.0].throughput_ratio == OTHER_PROMPTS
    notes = notes_of(served_run)
    assert "-5 to +7,000" in notes["prompts_read"]
    assert_in(
        notes["other_prompts"],
        "in 2 requests",
        "read 4 tokens and vanilla's read 9; the prompt that specbench rendered has 9.",
    )
    without_pairs = measured(read([10] * 4, [9] * 4)).overall["sps", 0.0]
    assert without_pairs.speedup == OTHER_PROMPTS
    assert isinstance(without_pairs.mat, Estimate)


def test_answers_without_a_count_are_reported_except_in_older_runs() -> None:
    served_run = read([0, 0, 9, 9], [9, 9, 9, 9])
    assert number(measured(served_run).overall["sps", 0.0].speedup) == 2.0
    sentence = notes_of(served_run)["uncounted_prompts"]
    assert "of vanilla did not count the prompt's tokens in 2 answers" in sentence
    older_run = read([None] * 4, [None] * 4)
    assert not {"uncounted_prompts", "prompts_read"} & {*notes_of(older_run)}


def test_cached_prompt_tokens_are_reported() -> None:
    notes = notes_of(read([9] * 4, [9] * 4, cached=8))
    assert "took 32 prompt tokens from their prefix caches" in notes["prefix_cache"]
