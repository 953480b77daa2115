"""Steps and MAT of servers, from counters per block or from counts per answer."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from specbench.analysis.metrics import RunMetrics
from specbench.analysis.stats.estimates import Missing
from specbench.log.run import Run
from specbench.log.store import read_run
from specbench.report.warning_notes import warnings
from specbench.types import StopReason
from tests.analysis.run_factory import missing, number
from tests.analysis.test_serving import NUM_TOKENS, ONE, answer, block, measured, run
from tests.support.paths import RECORDED


def of_counters(counters: Mapping[str, float], **values: Any) -> RunMetrics:
    """The metrics of a method whose answers have no counts. Its only block has these counters."""
    records = [answer("ngram", i, ONE, wall_s=1.0) for i in range(4)]
    counted = block("ngram", ONE, duration_s=4.0, counters=counters, **values)
    return measured(run(records, [counted], [ONE]))


def test_mat_of_counters_is_used_if_no_answer_has_counts() -> None:
    metrics = of_counters(
        {"num_drafts": 12.0, "num_accepted": 24.0, "num_tokens": 44.0, "accepted_at_1": 9.0}
    )
    assert number(metrics.pooled("ngram", 0.0).mat) == pytest.approx(40 / (40 - 24))
    served = metrics.serving["ngram", 0.0]
    assert number(served.engine_mat) == 3.0
    assert served.acceptance_rates == (0.75,)


@pytest.mark.parametrize(
    ("counters", "num_failed", "reason"),
    [
        ({"num_drafts": 2.0, "num_accepted": 1.0, "num_tokens": 44.0}, 1, "failed requests"),
        ({"num_drafts": 2.0, "num_accepted": 1.0, "num_tokens": 90.0}, 0, "other"),
        ({"num_tokens": 44.0}, 0, "reports no drafts"),
    ],
)
def test_counters_with_other_requests_give_no_mat(
    counters: dict[str, float], num_failed: int, reason: str
) -> None:
    mat = of_counters(counters, num_failed=num_failed).pooled("ngram", 0.0).mat
    assert reason in missing(mat)


def of_counts(
    counts: Sequence[Mapping[str, Any]], stop: StopReason = "eos", **counters: float
) -> Run:
    """A block of answers of 11 tokens, with the server's counts for each answer."""
    records = [
        replace(answer("sps", i, ONE, wall_s=1.0, **answer_counts), stop_reason=stop)
        for i, answer_counts in enumerate(counts)
    ]
    counted = block(
        "sps",
        ONE,
        duration_s=4.0,
        counters=counters,
        num_requests=len(counts),
        num_tokens=len(counts) * NUM_TOKENS,
    )
    return run(records, [counted], [ONE])


ACCEPTING = [{"num_accepted": 5}] * 4
"""Four answers with 10 tokens after the first one.

5 of the 10 were accepted draft tokens, so each answer took 5 steps.
"""


@pytest.mark.parametrize(
    ("counts", "stop", "counters", "steps", "least"),
    [
        (ACCEPTING, "eos", {"num_drafts": 22.0, "num_tokens": 44.0}, 22, 22),
        (ACCEPTING, "budget", {"num_drafts": 19.0, "num_tokens": 44.0}, 20, 20),
        (
            ACCEPTING,
            "eos",
            {"num_drafts": 3.0, "num_tokens": 44.0},
            20,
            24,
        ),  # steps are missing
        (
            ACCEPTING,
            "eos",
            {"num_drafts": 90.0, "num_tokens": 99.0},
            20,
            24,
        ),  # the counters include other requests
        (ACCEPTING, "eos", {}, 20, 24),
        ([{"num_drafts": 7, "num_accepted": 3}] * 2, "eos", {}, 14, 14),  # SGLang counts every step
        (
            [{"num_drafts": 2, "num_accepted": 4}] * 2,
            "eos",
            {},
            12,
            12,
        ),  # only drafting steps are counted
    ],
)
def test_steps_follow_from_the_counts_of_a_server(
    counts: list[dict[str, Any]],
    stop: StopReason,
    counters: dict[str, float],
    steps: int,
    least: int,
) -> None:
    metrics = measured(of_counts(counts, stop, **counters))
    num_tokens = 10 * len(counts)
    assert number(metrics.pooled("sps", 0.0).mat) == pytest.approx(num_tokens / steps)
    least_mat = number(metrics.serving["sps", 0.0].least_mat)
    assert least_mat == pytest.approx(num_tokens / least)


@pytest.mark.parametrize(
    ("stop", "counters", "reason"),
    [
        ("eos", {"num_drafts": 25.0}, "5 more drafts than its answers .* at most 4 answers"),
        ("budget", {"num_drafts": 21.0}, "1 more drafts than its answers .* at most 0 answers"),
        ("eos", {"num_drafts": 45.0}, "45 drafts for 44 tokens"),
        ("eos", {"num_draft_tokens": 9.0, "num_accepted": 10.0}, "accepted 10 of 9 draft tokens"),
    ],
)
def test_contradictory_counts_of_a_block_give_no_mat(
    stop: StopReason, counters: dict[str, float], reason: str
) -> None:
    metrics = measured(of_counts(ACCEPTING, stop, num_tokens=44.0, **counters))
    cell = metrics.cell("sps", 0.0, "gsm8k")
    for mat in (cell.mat, cell.mat_macro, metrics.overall["sps", 0.0].mat):
        assert re.search(reason, missing(mat))
    assert number(cell.tokens_per_s) == 11.0
    assert number(metrics.serving["sps", 0.0].output_throughput) == 11.0
    warned = [warning.text for warning in warnings(metrics) if re.search(reason, warning.text)]
    assert len(warned) == 1
    assert "sps has no MAT on GSM8K" in warned[0]


@pytest.mark.parametrize(
    ("name", "mats"),
    [
        ("llamacpp-cpu", {"ngram": 1.02, "sps:weights=sps": 2.63, "eagle3:weights=eagle3": 3.36}),
        ("vllm-cpu", {"ngram": 1.36, "sps": 2.90, "eagle": 3.35, "eagle3": 3.37, "medusa": 2.28}),
    ],
)
def test_recorded_engines_have_the_steps_that_they_counted(
    name: str, mats: dict[str, float]
) -> None:
    """llama.cpp counts a draft per step: 954 for sps, 745 for EAGLE-3."""
    metrics = measured(read_run(RECORDED / name).at(ONE))
    mats_seen = {method: round(number(metrics.pooled(method, 0.0).mat), 2) for method in mats}
    assert mats_seen == mats
    warned = [warning for warning in warnings(metrics) if "drafted 45 tokens" in warning.text]
    assert len(warned) == (name == "llamacpp-cpu"), "its ngram did not draft 5 tokens, as asked"
    assert not any(metrics_of.contradictions for metrics_of in metrics.serving.values())


@pytest.mark.parametrize(("drafts", "mat"), [(22.0, 40 / 22), (25.0, None)])
def test_a_category_shares_its_tasks_acceptance(drafts: float, mat: float | None) -> None:
    counted = of_counts(ACCEPTING, num_drafts=drafts, num_tokens=44.0)
    metrics = measured(counted.of({f"gsm8k/{i}": f"gsm8k / {i % 2}" for i in range(4)}))
    for task in ("gsm8k / 0", "gsm8k / 1"):
        cell_mat = metrics.cell("sps", 0.0, task).mat
        if mat is None:
            assert isinstance(cell_mat, Missing)
        else:
            assert number(cell_mat) == pytest.approx(mat)
