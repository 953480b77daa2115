"""Answers whose tokens reach the client in a burst, and the clock of their decode times."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.records import make_table
from specbench.log.backend import BlockHeader
from specbench.log.run import Load
from specbench.report.warning_notes import warnings
from specbench.types import Record, RecordKey, Serving
from tests.analysis.run_factory import make_run, number
from tests.analysis.test_serving import block
from tests.support.headers import make_header

ONE = Load(concurrency=1)
NUM_TOKENS = 41


def answer(
    method: str,
    sample: int = 0,
    *,
    gaps_s: Sequence[float] = (0.1,) * 40,
    server_s: float | None = None,
    num_tokens: int = NUM_TOKENS,
) -> Record:
    """An answer whose first token arrives after a second. The others follow with these gaps."""
    key = RecordKey(method, 0.0, "gsm8k", f"gsm8k/{sample}", 0, 0, *ONE)
    return Record(
        key,
        "ok",
        9,
        token_ids=tuple(range(num_tokens)),
        prefill_s=1.0,
        decode_s=sum(gaps_s),
        serving=Serving(0.0, tuple(gaps_s), server_decode_s=server_s),
    )


def decode_s(*records: Record, blocks: Sequence[BlockHeader] = ()) -> list[float]:
    """The decode times of these records, NaN where a record is left out."""
    column: list[float] = make_table(records, blocks=blocks).frame["decode_s"].tolist()
    return column


def same(lefts: Sequence[float], rights: Sequence[float]) -> bool:
    return all(
        left == pytest.approx(right) or (math.isnan(left) and math.isnan(right))
        for left, right in zip(lefts, rights, strict=True)
    )


NAN = math.nan
NUM_CHUNKS = 9  # fewer arrivals than a quarter of vanilla's 40 steps


@pytest.mark.parametrize(
    ("gaps_s", "server_s", "expected"),
    [
        ((), 4.0, (4.0, 2.0)),  # all in one burst
        ((0.0,), 4.0, (4.0, 2.0)),  # in two bursts
        ((3.55,), 4.0, (4.0, 2.0)),
        ((3.65,), 4.0, (3.65, 2.5)),  # 0.91 of the server's
        ((4.5,), 4.0, (4.5, 2.5)),
        ((), None, (NAN, NAN)),
        ((), 0.0, (NAN, NAN)),  # a clock that does not move
        ((4.0,), None, (NAN, NAN)),
        ((0.4,) * NUM_CHUNKS, None, (NAN, NAN)),
        ((0.4,) * (NUM_CHUNKS + 1), None, (4.0, 2.5)),
    ],
)
def test_a_burst_has_the_servers_decode_time_or_none(
    gaps_s: Sequence[float], server_s: float | None, expected: tuple[float, float]
) -> None:
    """The other answer to the request uses the server's time too.

    Answers to other requests do not.
    """
    records = [
        answer("vanilla", gaps_s=gaps_s, server_s=server_s),
        answer("eagle3", gaps_s=(0.1,) * 25, server_s=2.0),
        answer("vanilla", 1, gaps_s=(0.11,) * 40, server_s=4.0),
        answer("eagle3", 1, gaps_s=(0.11,) * 20, server_s=2.0),
    ]
    assert same(decode_s(*records), [*expected, 4.4, 2.2])


def test_a_request_is_left_out_if_one_of_its_answers_has_no_clock() -> None:
    burst = answer("vanilla", gaps_s=(), server_s=4.0)
    clockless = answer("eagle3", gaps_s=(0.1,) * 25)
    assert same(decode_s(burst, clockless), [NAN, NAN])
    failed = replace(clockless, status="error", token_ids=(), prefill_s=None, decode_s=None)
    assert decode_s(burst, failed)[0] == 4.0  # a failed answer needs no clock
    single = replace(clockless, token_ids=(1,), decode_s=0.0)
    assert same(decode_s(burst, single), [4.0, 0.0])  # nothing was decoded


@pytest.mark.parametrize(
    ("num_tokens", "gaps_s", "draft_length", "is_burst"),
    [
        (5, (0.1,), None, False),  # one step may emit all of them
        (41, (0.1,), None, True),
        (5, (0.1,), 4.0, False),
        (5, (0.1,), 2.0, False),  # 2 is a mean: this step may have drafted four
        (8, (0.1,), 2.0, True),
        (41, (0.1,) * 3, None, False),  # 40 tokens need at least 2.5 steps of 16
        (41, (0.1,) * 3, 1.0, True),  # at least 20 steps
        (41, (0.1,) * 5, 1.0, False),
    ],
)
def test_a_server_without_a_clock_needs_enough_arrivals(
    num_tokens: int, gaps_s: Sequence[float], draft_length: float | None, *, is_burst: bool
) -> None:
    counters = {}
    if draft_length:
        counters = {"num_drafts": 10.0, "num_draft_tokens": 10 * draft_length}
    blocks = [block("pld", ONE, duration_s=9.0, counters=counters)]
    [seconds] = decode_s(answer("pld", gaps_s=gaps_s, num_tokens=num_tokens), blocks=blocks)
    assert math.isnan(seconds) == is_burst


def test_an_answer_without_arrival_times_is_not_a_burst() -> None:
    kept = answer("vanilla", gaps_s=())
    assert decode_s(replace(kept, decode_s=3.0)) == [3.0]


def measured(records: Sequence[Record], **values: Any) -> RunMetrics:
    blocks = (block("vanilla", ONE, duration_s=9.0), block("pld", ONE, duration_s=9.0))
    header = make_header(
        {
            "columns": {"gsm8k": "GSM8K"},
            "methods": {"vanilla": {"title": "Vanilla"}, "pld": {"title": "PLD"}},
            "spec": {"values": {"methods": ["vanilla", "pld"], "tasks": ["gsm8k"], **values}},
            "blocks": blocks,
        }
    )
    return measure(make_run(records, header))


def test_only_tpot_and_itl_use_the_servers_times() -> None:
    run = measured(
        [
            answer("vanilla", gaps_s=(), server_s=4.0),
            answer("pld", gaps_s=(0.05,) * 40, server_s=3.0),
        ],
        goodput="tpot:80",
    )
    vanilla = run.serving["vanilla", 0.0]
    assert number(vanilla.ttft.mean) == 1.0
    assert number(vanilla.e2e.mean) == 1.0
    assert number(vanilla.tpot.mean) == pytest.approx(0.1)
    assert number(vanilla.itl.mean) == pytest.approx(0.1)
    assert number(run.serving["pld", 0.0].tpot.mean) == pytest.approx(3 / 40)
    assert number(run.pooled("pld", 0.0).decode_speedup) == pytest.approx(4 / 3)
    assert number(run.pooled("pld", 0.0).latency.per_token.p50) == pytest.approx(3 / 40)
    assert number(vanilla.goodput) == 0
    assert number(run.serving["pld", 0.0].goodput) > 0


def test_requests_without_a_time_per_token_are_named() -> None:
    records = [answer(method, sample) for sample in range(4) for method in ("vanilla", "pld")]
    records[0] = answer("vanilla", gaps_s=())
    run = measured(records)
    vanilla, pld = (run.serving[name, 0.0] for name in ("vanilla", "pld"))
    assert vanilla.tpot.percentiles.num == pld.tpot.percentiles.num == 3
    assert vanilla.ttft.percentiles.num == 4
    assert vanilla.itl.percentiles.num == 3 * 40
    texts = [note.text for note in warnings(run) if note.key == "bursts"]
    assert texts == [
        "The tokens of 1 answer reached the client in a burst, so the client's decode times are "
        "wrong. Left out of these times for all methods: 1 request without server times. "
        "Tasks that lost more than a tenth: GSM8K (1 of 4). Run the client beside the server, "
        "without a proxy."
    ]
