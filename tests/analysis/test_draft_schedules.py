"""Schedules that may ask for no drafts, and the share of steps with each draft length."""

import json
from collections.abc import Sequence

import pytest

from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.log.run import Load, Run
from tests.analysis.run_factory import number
from tests.analysis.test_drafting import DRAFTING, SILENT, of_answers, sentences_of
from tests.analysis.test_serving import FOUR, ONE, measured
from tests.judge.changing import with_header

AT_RATE = Load(request_rate=2)


def started(served_run: Run, *arguments: str) -> Run:
    """The run with a server of EAGLE-3 that was started with these arguments."""
    server = {"url": "http://a:1", "software": "", "model": "", "protocol": ""}
    command = ["vllm", *arguments]
    return with_header(served_run, servers={"eagle3": {**server, "command": command}})


@pytest.mark.parametrize(
    ("load", "rows", "may_be_none"),
    [
        (FOUR, [[1, 1, 3], [2, 64, 0]], True),
        (FOUR, [[1, 4, 3], [5, 64, 0]], False),  # at most four requests are in flight
        (ONE, [[1, 1, 3], [2, 64, 0]], False),
        (AT_RATE, [[1, 4, 3], [5, 64, 0]], True),
        (AT_RATE, [[1, 4, 3], [5, 64, 1]], False),
    ],
)
def test_a_table_may_ask_for_no_drafts_at_its_loads(
    load: Load, rows: list[list[int]], may_be_none: bool
) -> None:
    configuration = json.dumps({"num_speculative_tokens_per_batch_size": rows})
    served_run = of_answers("eagle3", [DRAFTING, SILENT], load)
    metrics = measured(started(served_run, "--speculative-config", configuration))
    mat = metrics.overall["eagle3", 0.0].mat
    if may_be_none:
        assert number(metrics.overall["eagle3", 0.0].speedup) == 2.0
        assert number(mat) == pytest.approx(20 / 14)
    else:
        assert mat == Missing("no drafts after request 1")


@pytest.mark.parametrize(
    ("arguments", "has_speedup"),
    [
        ((), False),
        (("--speculative-adaptive",), True),
        (("--speculative-config", '{"num_speculative_tokens_per_batch_size": {"4": 0}}'), True),
        (("--speculative-config", "num_speculative_tokens_per_batch_size"), True),
    ],
)
def test_a_started_server_that_drafts_nothing_at_a_load_needs_a_schedule(
    arguments: Sequence[str], has_speedup: bool
) -> None:
    served_run = started(of_answers("eagle3", [SILENT] * 4, FOUR), *arguments)
    overall = measured(served_run).overall["eagle3", 0.0]
    assert isinstance(overall.speedup, Estimate) is has_speedup


@pytest.mark.parametrize(
    ("software", "counts", "reason"),
    [
        ("TensorRT-LLM 1.4.0", [DRAFTING, DRAFTING, {}, {}], "no drafts after request 2"),
        ("TensorRT-LLM 1.4.0", [{}] * 4, ""),  # started without the option for counts
        ("other", [DRAFTING, DRAFTING, {}, {}], ""),
    ],
)
def test_tensorrt_llm_leaves_out_the_counts_of_an_answer_without_drafts(
    software: str, counts: Sequence[dict[str, int]], reason: str
) -> None:
    server = {"url": "http://a:1", "software": software, "model": "", "protocol": ""}
    served_run = with_header(of_answers("eagle3", counts), servers={"eagle3": server})
    speedup = measured(served_run).overall["eagle3", 0.0].speedup
    assert speedup == Missing(reason) if reason else isinstance(speedup, Estimate)


@pytest.mark.parametrize(
    ("by_length", "text"),
    [
        ([(0, 0, 0, 4), (0, 0, 0, 4)], ""),
        (
            [(0, 0, 0, 4), (0, 3, 0, 0)],
            "eagle3 87.5 % (by draft tokens: 4 in 50.0 %, 2 in 37.5 %)",
        ),
        ([(1, 1, 1, 1, 0), (1, 1, 0, 1, 1)], "4 in 25.0 %, 3 in 12.5 %, others in 12.5 %)"),
    ],
)
def test_the_report_has_the_share_of_steps_by_draft_tokens(
    by_length: Sequence[tuple[int, ...]], text: str
) -> None:
    counts = [
        {"num_drafts": sum(lengths), "num_accepted": 6, "drafts_by_length": lengths}
        for lengths in by_length
    ]
    sentences = sentences_of(of_answers("eagle3", counts), "drafting")
    assert text in " ".join(sentences) and bool(sentences) is bool(text)


def test_acceptance_by_position_may_come_from_the_answers() -> None:
    counts = {**DRAFTING, "drafts_by_accepted": (1, 1, 1, 1, 0)}
    metrics = measured(of_answers("eagle3", [counts] * 2))
    assert metrics.serving["eagle3", 0.0].acceptance_rates == (0.75, 0.5, 0.25)
