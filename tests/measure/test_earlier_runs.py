"""A run's time is estimated from an earlier run with the same kind of work."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from specbench.measure.base import Plan
from specbench.measure.earlier_runs import MIN_TOKENS, expected_seconds
from specbench.measure.plan import make_plan
from specbench.measure.progress import estimated_time, time_text
from specbench.measure.spec import RunSpec
from tests.analysis.run_factory import header, record
from tests.support.headers import make_header, merged
from tests.support.records import store
from tests.support.watching import Watcher

SECONDS = {"vanilla": 2.0, "pld": 1.0}
NUM_ANSWERS = 20


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A plan for vanilla, PLD and SpS: 5 prompts, 2 passes, and up to 64 tokens per answer."""
    spec = RunSpec(
        methods=("pld", "sps"),
        tasks=("gsm8k",),
        limit=5,
        repeats=2,
        max_new_tokens=64,
        device="cpu",
    )
    return make_plan(spec, is_offline=True)


def earlier(
    root: Path, name: str, num_tokens: int = 100, concurrency: int = 0, **changes: Any
) -> None:
    """A run of vanilla and PLD with known seconds per answer. Its process took a day."""
    about = header([*SECONDS], ("gsm8k",), id=name, finished="2026-11-21T12:00:00+00:00")
    about["spec"]["values"] |= {"device": "cpu", "max_new_tokens": 128}
    about["num_records"] = len(SECONDS) * NUM_ANSWERS
    records = [
        record(method, str(sample), decode_s=seconds, accept_lengths=[1] * (num_tokens - 1))
        for sample in range(NUM_ANSWERS)
        for method, seconds in SECONDS.items()
    ]
    records = [
        replace(answer, key=replace(answer.key, concurrency=concurrency)) for answer in records
    ]
    store(root / name, make_header(merged(about, changes)), records)


def test_the_estimate_counts_only_answers(plan: Plan, tmp_path: Path) -> None:
    assert expected_seconds(plan, tmp_path) is None
    earlier(tmp_path, "first")
    # 10 requests. SpS counts as the mean of the others. Answers have at most half the tokens.
    assert expected_seconds(plan, tmp_path) == pytest.approx(10 * (2.0 + 1.0 + 1.5) / 2)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"dtype": "bfloat16"}},
        {"model": {"is_stand_in": True}},
        {"model": {"label": "another"}},
        {"spec": {"values": {"device": "cuda:0"}}},
        {"spec": {"values": {"phases": True}}},
        {"spec": {"values": {"backend": "server", "serving_engine": "vllm"}}},
        {"num_tokens": MIN_TOKENS // (len(SECONDS) * NUM_ANSWERS) - 1},
    ],
)
def test_other_work_and_few_tokens_give_no_estimate(
    plan: Plan, tmp_path: Path, changes: dict[str, Any]
) -> None:
    earlier(tmp_path, "first", **changes)
    assert expected_seconds(plan, tmp_path) is None
    earlier(tmp_path, "second", created="2026-11-19T12:00:00+00:00")  # older, with the same work
    assert expected_seconds(plan, tmp_path) is not None


def test_requests_at_once_share_the_time(plan: Plan, tmp_path: Path) -> None:
    values = {"backend": "server", "serving_engine": "vllm", "concurrency": [4]}
    served = replace(plan, spec=structs.replace(plan.spec, **{**values, "concurrency": (4,)}))
    earlier(tmp_path, "first", concurrency=4, spec={"values": values})
    assert expected_seconds(served, tmp_path) == pytest.approx(10 * (2.0 + 1.0 + 1.5) / 2 / 4)
    at_eight = replace(plan, spec=structs.replace(served.spec, concurrency=(8,)))
    assert expected_seconds(at_eight, tmp_path) is None


def test_a_run_has_one_estimate_of_its_time() -> None:
    progress = Watcher()
    progress.expected(90.0, "by an earlier run")
    progress.expected(2390.0, "measured in the warm-up")
    assert progress.messages == ["Estimated time: 1.5 min (by an earlier run)."]
    short = Watcher()
    short.expected(9.0, "by an earlier run")
    short.expected(90.0, "measured in the warm-up")
    assert short.messages == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "?"),
        (0.4, "under 1 s"),
        (59.0, "59 s"),
        (60.0, "1.0 min"),
        (3600.0, "1.0 h"),
        (47 * 3600.0, "47.0 h"),
        (49 * 3600.0, "2.0 days"),
        (700 * 86400.0, "700.0 days"),
        (1100 * 86400.0, "3.0 years"),
    ],
)
def test_long_times_are_days_or_years(seconds: float | None, text: str) -> None:
    assert time_text(seconds) == text
    if seconds:
        assert text in estimated_time(seconds, "measured")
