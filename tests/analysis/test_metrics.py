"""The metrics of a run: its cells, means, pooled numbers and frames."""

import math
import random
from dataclasses import astuple, replace
from typing import Any

import pytest

from specbench.analysis.cells import (
    NO_CHECKPOINT,
    NOT_RUN,
    CellKey,
)
from specbench.analysis.frames import summary_frame
from specbench.analysis.metrics import measure
from specbench.analysis.records import make_table, records_frame
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.analysis.stats.estimates import Estimate, Missing, Value
from specbench.types import Phases
from tests.analysis.run_factory import (
    failed,
    full_run,
    header,
    interval,
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
    decode_s = {
        ("vanilla", "gsm8k"): 12.0,
        ("vanilla", "alpaca"): 12.0,
        ("pld", "gsm8k"): 6.0,
        ("pld", "alpaca"): 3.0,
        ("sps", "gsm8k"): 4.0,
        ("sps", "alpaca"): 4.0,
    }
    lengths = {"gsm8k": [2], "alpaca": [2, 2]}
    records = [
        record(method, task=task, decode_s=seconds, accept_lengths=lengths[task])
        for (method, task), seconds in decode_s.items()
        if (method, task) not in dropped
    ]
    methods = ["vanilla", "pld", "sps"]
    run = measure(make_run(records, header(methods, ("gsm8k", "alpaca"))), Bootstrap(1))
    speedups = {method: run.overall[method, 0.0].speedup for method in methods}
    assert speedups == {"vanilla": Estimate(1.0), "pld": pld, "sps": sps}


def test_the_pooled_cell_joins_all_tasks() -> None:
    decode_s = {
        ("vanilla", "gsm8k"): 12.0,
        ("vanilla", "alpaca"): 3.0,
        ("pld", "gsm8k"): 6.0,
        ("pld", "alpaca"): 4.0,
    }
    lengths = {"gsm8k": [2, 2], "alpaca": [1]}
    records = [
        record(method, task=task, decode_s=seconds, accept_lengths=lengths[task])
        for (method, task), seconds in decode_s.items()
    ]
    run = measure(make_run(records, header(["vanilla", "pld"], ("gsm8k", "alpaca"))))
    pooled = run.overall["pld", 0.0].pooled
    assert number(pooled.speedup) == pytest.approx(15.0 / 10.0)
    assert number(pooled.mat) == pytest.approx(5 / 3)
    assert number(run.overall["pld", 0.0].mat) == pytest.approx((2 + 1) / 2)


def test_every_cell_has_a_number_or_a_reason() -> None:
    described = header(
        ["sps", "medusa", "vanilla", "pld"],
        ("gsm8k", "alpaca"),
        no_checkpoint=["medusa"],
    )
    records = [record("extra"), record(), record("pld")]
    run = measure(make_run(records, described), Bootstrap(1))
    # The baseline is first, and the others are in the requested order.
    assert run.methods == ("vanilla", "sps", "medusa", "pld", "extra")
    assert set(run.cells) == {
        CellKey(method, 0.0, task) for method in run.methods for task in ("gsm8k", "alpaca", "")
    }
    assert run.cell("medusa", 0.0, "gsm8k").speedup == NO_CHECKPOINT
    assert run.cell("pld", 0.0, "alpaca").speedup == NOT_RUN
    assert run.overall["medusa", 0.0].mat == NO_CHECKPOINT


def test_the_order_of_records_changes_no_number() -> None:
    run = full_run(num_samples=10)
    shuffled = list(run.records)
    random.Random(1).shuffle(shuffled)
    metrics = measure(run, Bootstrap(50))
    of_shuffled = measure(make_run(shuffled, run.header), Bootstrap(50))
    for key, cell in metrics.cells.items():
        assert number(of_shuffled.cells[key].speedup) == pytest.approx(number(cell.speedup))
        if key.task:
            assert cell.speedup.interval is not None  # type: ignore[union-attr]


def test_the_turns_of_a_sample_are_one_cluster() -> None:
    """A second turn that equals the first adds no information, so the interval stays."""
    run = full_run(("vanilla", "pld"), ("gsm8k",), num_samples=10)
    in_two_turns = [
        replace(record, key=replace(record.key, turn=turn))
        for record in run.records
        for turn in (0, 1)
    ]
    of_one_turn = measure(run).cell("pld", 0.0, "gsm8k").speedup
    of_two = measure(make_run(in_two_turns, run.header)).cell("pld", 0.0, "gsm8k").speedup
    assert astuple(interval(of_two)) == pytest.approx(astuple(interval(of_one_turn)))


CPU = "Example CPU 9000, 2 cores, 8 GiB"
SERVER = {"backend": "server", "urls": ["http://host:8000"]}


@pytest.mark.parametrize(
    ("spec", "device"),
    [
        ({}, f"{CPU}, 2 threads"),  # a GPU that was not used
        ({"device": "cuda:0"}, "fast, 24 GiB, driver 1"),  # torch orders GPUs differently
        (SERVER, f"hardware unknown to the client, client on {CPU}"),
        ({**SERVER, "urls": []}, CPU),  # an engine has threads of its own
    ],
)
def test_the_device_that_was_used_is_named(spec: dict[str, Any], device: str) -> None:
    described = header(["vanilla"])
    gpus = [{"name": name, "memory_bytes": 24 * 2**30, "driver": "1"} for name in ("slow", "fast")]
    described["environment"] |= {"gpus": gpus, "torch": {"devices": ["fast", "slow"]}}
    described["spec"]["values"] |= spec
    assert make_header(described).device_phrase == device


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
    empty = records_frame([])
    of_failed = records_frame([failed("pld")])
    of_both = records_frame([failed("pld"), metered])
    assert empty.empty
    assert math.isnan(of_both["wall_s"][0])
    assert math.isnan(of_both["energy_j"][0])
    assert of_both["peak_memory_bytes"].isna().all()
    dtypes, *others = (frame.dtypes.astype(str).to_dict() for frame in (empty, of_failed, of_both))
    assert others == [dtypes, dtypes]


def test_the_summary_has_a_row_for_every_cell_with_its_numbers() -> None:
    run = measure(full_run(("vanilla", "pld"), ("gsm8k", "alpaca")), Bootstrap(200))
    frame = summary_frame(run).set_index(["method", "temperature", "task"])
    assert [task for _, _, task in frame.index] == ["gsm8k", "alpaca", "mean", "pooled"] * 2
    cell, row = run.cell("pld", 0.0, "alpaca"), frame.loc["pld", 0.0, "alpaca"]
    assert row["speedup"] == number(cell.speedup)
    assert row["speedup_low"] == interval(cell.speedup).low
    assert row["num_tokens"] == cell.num_tokens
    assert row["step_s"] == pytest.approx(row["relative_step_cost"] * frame["step_s"].iloc[1])


def test_the_summary_says_why_a_number_is_missing() -> None:
    described = header(["vanilla", "pld"], ["gsm8k"])
    run = measure(make_run([record("pld"), failed("vanilla")], described))
    row = summary_frame(run).set_index(["method", "task"]).loc["pld", "gsm8k"]
    assert math.isnan(row["speedup"])
    assert row["speedup_missing"] == "baseline failed"
    assert row["mat_missing"] is None


def test_each_record_is_joined_with_vanillas() -> None:
    records = [record("pld", turn=1, decode_s=2.0), record("pld", repeat=1), record(turn=1)]
    frame = make_table(records).frame
    assert frame["baseline_row"].tolist() == [2, -1, 2]
    assert frame["baseline_wall_s"].tolist() == [1.0, 0.0, 1.0]
    assert frame["is_same"].tolist() == [True, False, True]
