"""The metrics of a run: its cells, means and pooled values.

The numbers of one cell, compared with values computed by hand.
"""

import math
import random
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest

from specbench.analysis.cells import (
    ALL_FAILED,
    BASELINE_FAILED,
    NO_BASELINE,
    NO_CHECKPOINT,
    NO_SHARED,
    NO_STEPS,
    NOT_GREEDY,
    NOT_RUN,
    WITH_PHASES,
    CellKey,
    CellMetrics,
)
from specbench.analysis.frames import summary_frame
from specbench.analysis.latency import percentiles
from specbench.analysis.metrics import measure
from specbench.analysis.records import make_table, records_frame
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.types import Phases, Record
from tests.analysis.run_factory import (
    failed,
    full_run,
    header,
    make_run,
    number,
    record,
)
from tests.support.headers import make_header

GAP, OTHER_GAP = ("pld", "alpaca"), ("sps", "alpaca")


@pytest.mark.parametrize(
    ("dropped", "pld", "sps"),
    [
        ((), Estimate((2 + 4) / 2), Estimate(3.0)),
        ((GAP,), Missing("1 of 2 tasks"), Estimate(3.0)),
        ((GAP, OTHER_GAP), Estimate(2.0), Estimate(3.0)),  # only the baseline has the task
    ],
)
def test_a_mean_is_arithmetic_over_the_tasks_that_any_method_has(
    dropped: tuple[tuple[str, str], ...], pld: Value, sps: Value
) -> None:
    seconds = {"vanilla": (12.0, 12.0), "pld": (6.0, 3.0), "sps": (4.0, 4.0)}
    records = [
        record(method, task=task, decode_s=task_seconds[i], accept_lengths=[2] * (i + 1))
        for method, task_seconds in seconds.items()
        for i, task in enumerate(("gsm8k", "alpaca"))
        if (method, task) not in dropped
    ]
    run = measure(make_run(records, header([*seconds], ("gsm8k", "alpaca"))), Bootstrap(1))
    speedups = {method: run.overall[method, 0.0].speedup for method in seconds}
    assert speedups == {"vanilla": Estimate(1.0), "pld": pld, "sps": sps}


def test_the_pooled_cell_takes_all_tasks_as_one() -> None:
    seconds = {("gsm8k", "vanilla"): 12.0, ("gsm8k", "pld"): 6.0}
    seconds |= {("alpaca", "vanilla"): 3.0, ("alpaca", "pld"): 4.0}
    lengths = {"gsm8k": [2, 2], "alpaca": [1]}
    records = [
        record(method, task=task, decode_s=s, accept_lengths=lengths[task])
        for (task, method), s in seconds.items()
    ]
    run = measure(make_run(records, header(["vanilla", "pld"], ("gsm8k", "alpaca"))))
    pooled = run.overall["pld", 0.0].pooled
    assert number(pooled.speedup) == pytest.approx(15.0 / 10.0)
    assert number(pooled.mat) == pytest.approx(5 / 3)
    assert number(run.overall["pld", 0.0].mat) == pytest.approx((2 + 1) / 2)


def test_cells_of_a_run_are_all_there_with_a_number_or_a_reason() -> None:
    described = header(["sps", "medusa", "vanilla", "pld"], ("gsm8k", "alpaca"))
    described["no_checkpoint"] = ["medusa"]
    run = measure(make_run([record("extra"), record(), record("pld")], described), Bootstrap(1))
    # The baseline is first, and the others are in the requested order.
    assert run.methods == ("vanilla", "sps", "medusa", "pld", "extra")
    assert set(run.cells) == {
        CellKey(method, 0.0, task) for method in run.methods for task in ("gsm8k", "alpaca", "")
    }
    assert run.cell("medusa", 0.0, "gsm8k").speedup == NO_CHECKPOINT
    assert run.cell("pld", 0.0, "alpaca").speedup == NOT_RUN
    assert run.overall["medusa", 0.0].mat == NO_CHECKPOINT


def test_the_order_in_which_records_were_written_changes_no_number() -> None:
    run = full_run(num_samples=10)
    shuffled = list(run.records)
    random.Random(1).shuffle(shuffled)
    runs = (run, make_run(shuffled, run.header))
    first, second = (measure(stored_run, Bootstrap(50)) for stored_run in runs)
    for key, cell in first.cells.items():
        assert number(second.cells[key].speedup) == pytest.approx(number(cell.speedup))
        if key.task:
            assert cell.speedup.interval is not None  # type: ignore[union-attr]


def test_the_turns_of_a_sample_are_one_cluster() -> None:
    """A second turn that equals the first adds no information, so the interval stays."""
    run = full_run(("vanilla", "pld"), ("gsm8k",), num_samples=10)
    twice = [replace(r, key=replace(r.key, turn=turn)) for r in run.records for turn in (0, 1)]
    once = measure(run).cell("pld", 0.0, "gsm8k").speedup
    doubled = measure(make_run(twice, run.header)).cell("pld", 0.0, "gsm8k").speedup
    assert isinstance(once, Estimate) and isinstance(doubled, Estimate)
    assert once.interval and doubled.interval
    assert astuple(doubled.interval) == pytest.approx(astuple(once.interval))


CPU = "Example CPU 9000, 2 cores, 8 GiB"
SERVER = {"backend": "server", "urls": ["http://host:8000"]}


@pytest.mark.parametrize(
    ("values", "device"),
    [
        ({}, f"{CPU}, 2 threads"),  # a GPU that was not used
        ({"device": "cuda:0"}, "fast, 24 GiB, driver 1"),  # torch orders GPUs differently
        (SERVER, f"hardware unknown to the client, client on {CPU}"),
        ({**SERVER, "urls": []}, CPU),  # an engine has threads of its own
    ],
)
def test_the_machine_is_the_one_that_was_used(values: dict[str, Any], device: str) -> None:
    described = header(["vanilla"])
    gpus = [{"name": name, "memory_bytes": 24 * 2**30, "driver": "1"} for name in ("slow", "fast")]
    described["environment"] |= {"gpus": gpus, "torch": {"devices": ["fast", "slow"]}}
    described["spec"]["values"] |= values
    assert make_header(described).device_phrase == device


def cell(*records: Record) -> CellMetrics:
    """The numbers of pld's cell in a run of these records of gsm8k, at one temperature."""
    metrics = measure(make_run(records, header(["vanilla", "pld"], ["gsm8k"], ())), Bootstrap(1))
    return metrics.cell("pld", metrics.temperatures[0], "gsm8k")


def test_different_token_counts_are_compared_per_token() -> None:
    baseline = [record(decode_s=2.0, accept_lengths=[1] * 9)]  # 10 tokens: 0.2 s each
    longer = [record("pld", decode_s=2.0, accept_lengths=[2] * 12)]  # 25 tokens: 0.08 s each
    assert number(cell(*longer, *baseline).speedup) == pytest.approx(0.2 / 0.08)


def test_mat_is_over_all_steps_and_macro_over_completions() -> None:
    records = [
        record("pld", "a", accept_lengths=[4]),  # 4 tokens in 1 step
        record("pld", "b", accept_lengths=[1, 1, 2]),  # 4 tokens in 3 steps
    ]
    measured = cell(*records)
    assert number(measured.mat) == pytest.approx(8 / 4)
    assert number(measured.mat_macro) == pytest.approx((4 + 4 / 3) / 2)
    assert measured.accept_histogram == {1: 2, 2: 1, 4: 1}
    assert measured.num_steps == 4
    assert measured.num_tokens == 10


def test_the_match_rate_is_the_share_of_identical_token_ids() -> None:
    baseline = [record(sample=name, token_ids=[1, 2, 3, 4]) for name in "abcd"]
    records = [record("pld", name, token_ids=[1, 2, 3, 4]) for name in "abc"]
    records.append(record("pld", "d", token_ids=[1, 2, 3, 5]))
    assert number(cell(*records, *baseline).match_rate) == 0.75
    hot = record("pld", temperature=1.0), record(temperature=1.0)
    assert cell(*hot).match_rate == NOT_GREEDY


def test_a_missing_number_has_a_reason() -> None:
    baseline, drafted = [record()], [record("pld")]
    assert cell(*baseline).speedup == cell(*baseline).mat == NOT_RUN
    assert cell(failed("pld"), *baseline).mat == ALL_FAILED
    assert cell(*drafted).speedup == cell(*drafted).match_rate == NO_BASELINE
    assert cell(*drafted, failed("vanilla")).speedup == BASELINE_FAILED
    assert cell(*drafted, record(sample="z")).speedup == NO_SHARED


def test_a_completion_of_one_token_has_a_speedup_and_a_first_token_only() -> None:
    baseline = [record(prefill_s=2.0, decode_s=0.0, accept_lengths=[])]
    measured = cell(record("pld", prefill_s=1.0, decode_s=0.0, accept_lengths=[]), *baseline)
    assert number(measured.speedup) == pytest.approx(2.0)
    assert measured.decode_speedup == measured.mat == NO_STEPS
    assert measured.latency.first_token.num == 1
    assert measured.latency.per_token.p50 == Missing("no completion")


@pytest.mark.parametrize("seconds", [0.0, float("nan"), float("inf")])
def test_a_record_without_a_time_counts_as_failed(seconds: float) -> None:
    measured = cell(record("pld", decode_s=seconds), record())
    assert measured.num_failed == 1
    assert measured.speedup == ALL_FAILED


@pytest.mark.parametrize(("number", "num_given"), [(9, 1), (10, 2), (100, 3)])
def test_a_percentile_needs_a_completion_beyond_it(number: int, num_given: int) -> None:
    times = percentiles(np.arange(1.0, number + 1))
    given = [isinstance(percentile, Estimate) for percentile in (times.p50, times.p90, times.p99)]
    assert given == [True] * num_given + [False] * (3 - num_given)


def test_a_run_with_phases_has_acceptance_but_no_time_and_no_speed() -> None:
    records = [record(decode_s=4.0), record("pld", decode_s=2.0, accept_lengths=[2, 1])]
    described = header(["vanilla", "pld"], ("gsm8k",))
    described["spec"]["values"]["phases"] = True
    timed = replace(records[1], phases=Phases(1.0, 1.0, 0.0, 0.0))
    for run in (make_run(records, described), make_run([records[0], timed], header(["pld"]))):
        metrics = measure(run).cell("pld", 0.0, "gsm8k")
        assert metrics.speedup == metrics.decode_speedup == metrics.tokens_per_s == WITH_PHASES
        assert metrics.latency.first_token.p50 == metrics.latency.per_token.p50 == WITH_PHASES
        assert metrics.mat == Estimate(1.5)


def steps(lengths: list[int], num_nodes: int = 99, sample: str = "a") -> Record:
    """A completion with these steps."""
    stepped = record("pld", sample, accept_lengths=lengths)
    return replace(stepped, num_nodes=(num_nodes,) * len(lengths))


@pytest.mark.parametrize(
    ("lengths", "num_nodes", "depths"),
    [
        # A step of a tokens accepted the depths below a and none at a. The last of these five,
        # of a chain of three guesses, accepted all that was guessed.
        ([1, 2, 4, 2, 4], 4, [(1, 5, 4), (2, 4, 2), (3, 2, 2)]),
        # The one token of the last step may be an accepted guess, cut off, or the target's own.
        ([3, 1], 99, [(1, 1, 1), (2, 1, 1)]),
        # Of its two tokens the first was a guess: known at depth 1, unknown at depth 2.
        ([3, 2], 99, [(1, 2, 2), (2, 1, 1)]),
        # Without a guess, it is known to have accepted none.
        ([3, 1], 1, [(1, 2, 1), (2, 1, 1)]),
    ],
)
def test_the_step_that_ended_a_completion_is_no_rejection(
    lengths: list[int], num_nodes: int, depths: list[tuple[int, int, int]]
) -> None:
    by_depth = cell(steps(lengths, num_nodes)).acceptance_by_depth
    assert [(at.depth, at.num_reached, at.num_accepted) for at in by_depth] == depths
    for at in by_depth:
        assert at.conditional.value == at.num_accepted / at.num_reached


def test_one_plus_the_unconditional_shares_is_the_mean_accepted_tokens() -> None:
    metrics = cell(steps([1, 3, 2, 5, 1, 5], num_nodes=5), steps([2, 2, 5], 5, "b"))
    total = 1 + sum(at.unconditional.value for at in metrics.acceptance_by_depth)
    assert total == pytest.approx(metrics.mat.value)  # type: ignore[union-attr]


def test_cut_steps_do_not_bias_the_shares() -> None:
    """Guesses accepted with probability 0.7 and cut by a short budget: the estimate is unbiased."""
    generator = np.random.default_rng(4)
    records = []
    for sample in range(4000):
        lengths: list[int] = []
        while (room := 9 - sum(lengths)) > 0:
            accepted = int(np.minimum(generator.geometric(0.3) - 1, 3))
            lengths.append(min(room, accepted + 1))
        records.append(steps(lengths, sample=str(sample)))
    shares = [at.conditional.value for at in cell(*records).acceptance_by_depth]
    assert shares == pytest.approx([0.7, 0.7, 0.7], abs=0.015)


def test_shares_have_intervals_that_hold_them_and_stay_between_nought_and_one() -> None:
    run = measure(full_run(num_samples=12))
    depths = run.cell("pld", 0.0, "gsm8k").acceptance_by_depth
    assert depths
    for share in (s for p in depths for s in (p.conditional, p.unconditional)):
        assert share.interval is not None
        assert 0 <= share.interval.low <= share.value <= share.interval.high <= 1


def test_a_record_is_a_row_in_the_order_of_the_records() -> None:
    timed = replace(record("pld", "b", accept_lengths=[2, 1]), phases=Phases(0.1, 0.2, 0.3, 0.4))
    frame = records_frame([record(prefill_s=0.5, decode_s=1.0), timed, failed("pld")])
    assert frame["method"].tolist() == ["vanilla", "pld", "pld"]
    assert frame["num_tokens"].tolist() == [4, 4, 0]
    assert frame["num_steps"].tolist() == [3, 2, 0]
    assert frame["wall_s"].tolist()[:2] == [1.5, 1.0]
    assert frame["draft_s"].tolist()[1] == 0.1
    assert frame["error"].tolist() == [None, None, "boom"]
    assert frame["is_measured"].tolist() == [True, True, False]


def test_missing_numbers_are_nan_and_the_dtypes_do_not_depend_on_the_records() -> None:
    metered = replace(record(), energy_j=3.0)
    frames = [records_frame(records) for records in ([], [failed("pld")], [failed("pld"), metered])]
    empty, _, frame = frames
    assert math.isnan(frame["wall_s"][0]) and math.isnan(frame["energy_j"][0])
    assert frame["peak_memory_bytes"].isna().all() and empty.empty
    dtypes = [frame.dtypes.astype(str).to_dict() for frame in frames]
    assert dtypes[0] == dtypes[1] == dtypes[2]


def test_the_summary_has_a_row_for_every_cell_with_its_numbers() -> None:
    run = measure(full_run(("vanilla", "pld"), ("gsm8k", "alpaca")), Bootstrap(200))
    frame = summary_frame(run).set_index(["method", "temperature", "task"])
    assert [task for _, _, task in frame.index] == ["gsm8k", "alpaca", "mean", "pooled"] * 2
    cell, row = run.cell("pld", 0.0, "alpaca"), frame.loc["pld", 0.0, "alpaca"]
    assert isinstance(cell.speedup, Estimate) and cell.speedup.interval
    assert row["speedup"] == cell.speedup.value
    assert row["speedup_low"] == cell.speedup.interval.low
    assert row["num_tokens"] == cell.num_tokens
    assert row["step_s"] == pytest.approx(row["relative_step_cost"] * frame["step_s"].iloc[1])


def test_the_summary_says_why_a_number_is_missing() -> None:
    described = header(["vanilla", "pld"], ["gsm8k"])
    run = measure(make_run([record("pld"), failed("vanilla")], described))
    row = summary_frame(run).set_index(["method", "task"]).loc["pld", "gsm8k"]
    assert math.isnan(row["speedup"])
    assert row["speedup_missing"] == "baseline failed"
    assert row["mat_missing"] is None


def test_a_record_is_joined_with_vanillas_of_the_same_request() -> None:
    records = [record("pld", turn=1, decode_s=2.0), record("pld", repeat=1), record(turn=1)]
    frame = make_table(records).frame
    assert frame["baseline_row"].tolist() == [2, -1, 2]
    assert frame["baseline_wall_s"].tolist() == [1.0, 0.0, 1.0]
    assert frame["is_same"].tolist() == [True, False, True]
