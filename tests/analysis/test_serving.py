"""The results of servers at each load: throughput, latency, goodput and requests in flight."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_part

from specbench import api
from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.serving import ServingMetrics
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.log.backend import BlockHeader
from specbench.log.run import Load, Run, loads_of
from specbench.log.store import read_run
from specbench.types import Record, RecordKey, Serving
from tests.analysis.run_factory import estimate, interval, make_run, missing, number
from tests.support.headers import make_header
from tests.support.paths import RECORDED

NUM_TOKENS = 11


def answer(
    method: str, number: int, load: Load, *, wall_s: float, repeat: int = 0, **serving: Any
) -> Record:
    """An answer of 11 tokens, the first of which arrives after a tenth of the time."""
    key = RecordKey(method, 0.0, "gsm8k", f"gsm8k/{number}", 0, repeat, *load)
    gap_s = wall_s * 0.09
    return Record(
        key,
        status="ok",
        prompt_tokens=9,
        token_ids=tuple(range(NUM_TOKENS)),
        prefill_s=wall_s / 10,
        decode_s=wall_s * 0.9,
        serving=Serving(0.0, (gap_s,) * 10, **serving),
    )


def block(method: str, load: Load, *, duration_s: float, repeat: int = 0, **more: Any) -> Any:
    values: dict[str, Any] = {"task": "gsm8k", "num_requests": 4, "num_tokens": 4 * NUM_TOKENS}
    return BlockHeader(
        method=method,
        temperature=0.0,
        repeat=repeat,
        duration_s=duration_s,
        concurrency=load.concurrency,
        request_rate=load.request_rate,
        **(values | more),
    )


def run(
    records: Sequence[Record], blocks: Sequence[BlockHeader], loads: Sequence[Load], **values: Any
) -> Run:
    values |= {
        "concurrency": tuple(load.concurrency for load in loads if load.concurrency),
        "request_rates": tuple(load.request_rate for load in loads if load.request_rate),
    }
    columns = {task: task.upper() for task in ("gsm8k", *(record.key.task for record in records))}
    header = make_header({"columns": columns, "spec": {"values": values}})
    return make_run(records, replace_part(header, blocks=tuple(blocks)))


ONE = Load(concurrency=1)
FOUR = Load(concurrency=4)


def measured(run: Run) -> RunMetrics:
    return measure(run, Bootstrap(100))


def only(run: Run, method: str = "eagle3") -> ServingMetrics:
    return measured(run).serving[method, 0.0]


def with_blocks(run: Run, *blocks: BlockHeader) -> Run:
    return make_run(run.records, replace_part(run.header, blocks=blocks))


def two_methods(load: Load = ONE, **values: Any) -> Run:
    records = [answer("vanilla", i, load, wall_s=1.0) for i in range(4)]
    records += [answer("eagle3", i, load, wall_s=0.5, num_accepted=5) for i in range(4)]
    blocks = [block("vanilla", load, duration_s=4.0), block("eagle3", load, duration_s=2.0)]
    return run(records, blocks, [load], **values)


def test_incomparable_answers_have_no_mat_of_counters() -> None:
    """EAGLE-3 was interrupted after one of four requests, which its server counted."""
    records = [answer("vanilla", i, ONE, wall_s=1.0) for i in range(4)]
    counted = block(
        "eagle3",
        ONE,
        duration_s=1.0,
        num_requests=1,
        num_tokens=NUM_TOKENS,
        counters={"num_accepted": 5.0},
    )
    metrics = measured(run([*records, answer("eagle3", 0, ONE, wall_s=0.5)], [counted], [ONE]))
    cell = metrics.cell("eagle3", 0.0, "gsm8k")
    assert cell.mat == cell.speedup == Missing("not comparable: finished 1 of 4")


def test_mat_of_all_tasks_leaves_out_counters_of_incomparable_answers() -> None:
    """EAGLE-3 finished all requests of GSM8K, but only one of four of MT-bench."""
    records = []
    for method, task in product(("vanilla", "eagle3"), ("gsm8k", "mtbench")):
        num_done = 1 if (method, task) == ("eagle3", "mtbench") else 4
        answers = [answer(method, i, ONE, wall_s=1.0) for i in range(num_done)]
        records += [replace(done, key=replace(done.key, task=task)) for done in answers]
    whole = block("eagle3", ONE, duration_s=4.0, counters={"num_accepted": 20.0})
    partial = block(
        "eagle3",
        ONE,
        duration_s=1.0,
        task="mtbench",
        num_requests=1,
        num_tokens=NUM_TOKENS,
        counters={"num_accepted": 9.0},
    )
    metrics = measured(run(records, [whole, partial], [ONE]))
    mat_of_gsm8k = metrics.cell("eagle3", 0.0, "gsm8k").mat
    assert metrics.pooled("eagle3", 0.0).mat == mat_of_gsm8k == Estimate(40 / 20)


def test_throughputs_are_amounts_per_second_of_the_blocks() -> None:
    metrics = only(two_methods())
    assert number(metrics.request_throughput) == 2.0
    assert number(metrics.output_throughput) == 22.0
    assert number(metrics.total_throughput) == pytest.approx(4 * (9 + 11) / 2.0)
    assert number(metrics.throughput_ratio) == pytest.approx(2.0)


def test_times_have_the_definitions_of_vllm_bench() -> None:
    metrics = only(two_methods())
    assert number(metrics.ttft.mean) == pytest.approx(0.05)
    assert number(metrics.tpot.percentiles.p50) == pytest.approx(0.45 / 10)
    assert number(metrics.itl.percentiles.p90) == pytest.approx(0.045)
    assert number(metrics.e2e.mean) == pytest.approx(0.5)
    assert isinstance(metrics.e2e.percentiles.p99, Missing)


@pytest.mark.parametrize(
    ("limits", "good"), [("ttft:60", 2.0), ("ttft:40", 0.0), ("ttft:60,tpot:44", 0.0)]
)
def test_goodput_counts_requests_within_all_limits(limits: str, good: float) -> None:
    assert number(only(two_methods(goodput=limits)).goodput) == good


def test_a_failed_request_does_not_count_for_throughput() -> None:
    plain = two_methods(goodput="e2e:9000")
    lost = Record(replace(plain.records[-1].key), "error", 9, error="boom")
    blocks = [
        block if block.method == "vanilla" else replace_part(block, num_failed=1, num_tokens=33)
        for block in plain.header.blocks
    ]
    records = (*plain.records[:-1], lost)
    metrics = only(make_run(records, replace_part(plain.header, blocks=blocks)))
    assert number(metrics.request_throughput) == 1.5
    assert number(metrics.goodput) == 1.5


def test_the_time_of_a_block_that_failed_counts() -> None:
    plain = two_methods()
    lost = block("eagle3", ONE, duration_s=6.0, repeat=1, num_failed=4, num_tokens=0)
    metrics = only(with_blocks(plain, *plain.header.blocks, lost))
    assert metrics.request_throughput == Estimate(4 / 8.0)
    assert metrics.output_throughput == Estimate(44 / 8.0)


def test_a_block_that_was_interrupted_has_no_throughput() -> None:
    plain = two_methods()
    rest = block("eagle3", ONE, duration_s=9.0, num_requests=1, num_tokens=11, num_before=3)
    vanilla, whole = plain.header.blocks
    metrics = only(with_blocks(plain, vanilla, whole, replace_part(rest, repeat=1)))
    assert number(metrics.output_throughput) == 22.0
    assert number(metrics.throughput_ratio) == pytest.approx(2.0)
    assert metrics.num_interrupted == 1
    metrics = only(with_blocks(plain, vanilla, rest))
    assert "interrupted" in missing(metrics.output_throughput)
    assert isinstance(metrics.throughput_ratio, Missing)


@pytest.mark.parametrize("method", ["vanilla", "eagle3"])
def test_a_block_without_seconds_has_no_throughput_ratio(method: str) -> None:
    plain = two_methods()
    blocks = [
        replace_part(measured, duration_s=0.0) if measured.method == method else measured
        for measured in plain.header.blocks
    ]
    assert isinstance(only(with_blocks(plain, *blocks)).throughput_ratio, Missing)


def test_requests_in_flight_are_those_that_overlap() -> None:
    """One block has two requests in 4 s, another three in 2 s. An interrupted block is left out."""
    spans = {0: [(0.0, 2.0), (1.0, 3.0), (3.0, 1.0)], 1: [(0.0, 2.0)] * 3, 2: [(0.0, 2.0)] * 4}
    records = [
        replace(record, serving=replace(record.serving, began_s=began))
        for repeat, repeat_spans in spans.items()
        for i, (began, wall_s) in enumerate(repeat_spans)
        for record in [answer("eagle3", i, FOUR, wall_s=wall_s, repeat=repeat)]
        if record.serving
    ]
    blocks = [
        block("eagle3", FOUR, duration_s=4.0 - 2 * (repeat > 0), repeat=repeat, num_before=before)
        for repeat, before in ((0, 0), (1, 0), (2, 0), (2, 1))
    ]
    in_flight = only(run(records, blocks, [FOUR])).in_flight
    assert in_flight.mean == pytest.approx((6 + 6) / 6)
    assert in_flight.most == 3
    assert in_flight.least_most == 2


def test_counters_of_a_method_that_the_run_does_not_list_are_left_out() -> None:
    unlisted = block("sps", ONE, duration_s=1.0)
    assert not measured(run([], [unlisted], [ONE])).serving


def test_the_recorded_run_of_vllm_was_not_at_8_requests_at_once() -> None:
    eight = read_run(RECORDED / "vllm-cpu").at(Load(concurrency=8))
    in_flight = [metrics.in_flight for metrics in measured(eight).serving.values()]
    assert {(load.most, load.least_most) for load in in_flight} == {(2, 2)}


def test_each_load_is_measured_against_vanilla_at_that_load(tmp_path: Path) -> None:
    """A summary has a row for each load."""
    fast = two_methods()
    slow = two_methods(FOUR)
    vanilla = slow.records[:4]
    half = [replace(record, prefill_s=0.2, decode_s=1.8) for record in slow.records[4:]]
    blocks = [*fast.header.blocks, *slow.header.blocks]
    whole = run([*fast.records, *vanilla, *half], blocks, [ONE, FOUR])
    parts = [whole.at(load) for load in whole.loads]
    assert [loads_of(part.header.spec.values) for part in parts] == [(ONE,), (FOUR,)]
    assert [len(part.header.blocks) for part in parts] == [2, 2]
    summary = api.Run(replace(whole, path=tmp_path)).summary
    cells = summary.query("task == 'gsm8k' and method == 'eagle3'")
    assert cells["concurrency"].tolist() == [1, 4]
    assert cells["speedup"].tolist() == pytest.approx([2.0, 0.5])


def test_the_clients_own_time_grows_with_its_work() -> None:
    plain = two_methods()
    busy = [replace_part(block, client_s=1.0) for block in plain.header.blocks]
    served = only(with_blocks(plain, *busy))
    assert served.client_share == pytest.approx(1.0 / (1 - 0.5) / 2.0)
    assert only(plain).client_share == 0.0


def test_an_interval_needs_several_blocks() -> None:
    places = [*product(("vanilla", "eagle3"), range(8))]
    every = [
        answer(method, i, ONE, wall_s=1.0, repeat=at) for method, at in places for i in range(4)
    ]
    blocks = [block(method, ONE, duration_s=4.0 - at / 10, repeat=at) for method, at in places]
    throughput = only(run(every, blocks, [ONE])).output_throughput
    assert number(throughput) in interval(throughput)
    of_one_block = only(two_methods()).output_throughput
    assert estimate(of_one_block).interval is None
