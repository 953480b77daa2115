"""The metrics of a run: its cells, means and pooled values."""

import random
from dataclasses import replace

import pytest

from specbench.analysis.cells import ALL_FAILED, NO_CHECKPOINT, NOT_RUN, CellKey
from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.stats.bootstrap import Estimate, Missing, Value
from specbench.log.run import Run
from tests.analysis.run_factory import failed, full_run, header, make_run, number, record
from tests.support.headers import make_header


def two_tasks(*dropped: tuple[str, str]) -> Run:
    """pld is 2 times vanilla's speed on gsm8k and 4 times on alpaca; sps 3 times on both."""
    seconds = {"vanilla": (12.0, 12.0), "pld": (6.0, 3.0), "sps": (4.0, 4.0)}
    records = [
        record(method, task=task, decode_s=own[i], accept_lengths=[2] * (i + 1))
        for method, own in seconds.items()
        for i, task in enumerate(("gsm8k", "alpaca"))
        if (method, task) not in dropped
    ]
    return make_run(records, header(list(seconds), ("gsm8k", "alpaca")))


def speedup(run: RunMetrics, method: str) -> Value:
    return run.overall[method, 0.0].speedup


def test_the_mean_is_arithmetic_over_tasks() -> None:
    run = measure(two_tasks())
    assert number(speedup(run, "pld")) == pytest.approx((2 + 4) / 2)
    assert number(speedup(run, "sps")) == pytest.approx(3)
    assert number(speedup(run, "vanilla")) == 1.0


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


def test_a_method_that_lacks_a_task_has_no_mean() -> None:
    run = measure(two_tasks(("pld", "alpaca")))
    assert speedup(run, "pld") == Missing("1 of 2 tasks")
    assert number(speedup(run, "sps")) == pytest.approx(3)


def test_a_task_that_only_the_baseline_has_takes_no_part_in_means() -> None:
    run = measure(two_tasks(("pld", "alpaca"), ("sps", "alpaca")))
    assert number(speedup(run, "pld")) == pytest.approx(2)
    assert number(speedup(run, "vanilla")) == 1.0


def test_cells_of_a_run_are_all_there_with_a_number_or_a_reason() -> None:
    described = header(["vanilla", "pld", "medusa", "eagle"], ("gsm8k", "alpaca"))
    described["no_checkpoint"] = ["medusa"]
    run = measure(make_run([record(), record("pld"), failed("eagle")], described))
    assert set(run.cells) == {
        CellKey(method, 0.0, task)
        for method in ("vanilla", "pld", "medusa", "eagle")
        for task in ("gsm8k", "alpaca", "")
    }
    assert run.cell("medusa", 0.0, "gsm8k").speedup == NO_CHECKPOINT
    assert run.cell("eagle", 0.0, "gsm8k").speedup == ALL_FAILED
    assert run.cell("pld", 0.0, "alpaca").speedup == NOT_RUN
    assert run.overall["medusa", 0.0].mat == NO_CHECKPOINT


def test_the_baseline_is_the_first_row_and_the_others_stand_as_asked_for() -> None:
    described = header(["sps", "pld", "vanilla"], ("gsm8k",))
    run = measure(make_run([record("extra"), record(), record("pld")], described))
    assert run.methods == ("vanilla", "sps", "pld", "extra")


def test_the_order_in_which_records_were_written_changes_no_number() -> None:
    run = full_run(num_samples=10)
    shuffled = list(run.records)
    random.Random(1).shuffle(shuffled)
    first, second = measure(run), measure(make_run(shuffled, run.header))
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
    assert isinstance(once, Estimate)
    assert isinstance(doubled, Estimate)
    assert once.interval is not None
    assert doubled.interval is not None
    assert doubled.interval.low == pytest.approx(once.interval.low)
    assert doubled.interval.high == pytest.approx(once.interval.high)


def test_an_empty_run_is_measured_without_an_error() -> None:
    run = measure(make_run())
    assert (run.methods, run.tasks, run.temperatures) == ((), (), (0.0,))


def test_a_gpu_is_the_machine_only_where_it_was_used() -> None:
    described = header(["vanilla"])
    gpu = {"name": "NVIDIA H200", "memory_bytes": 139 * 2**30, "driver": "570.1"}
    described["environment"] |= {"gpus": [gpu], "torch": {"devices": ["NVIDIA H200"]}}
    assert make_header(described).machine.device.startswith("Example CPU 9000, 2 cores")
    described["spec"]["values"]["device"] = "cuda:0"
    assert make_header(described).machine.device == "NVIDIA H200, 139 GiB, driver 570.1"


def test_the_machine_of_servers_is_unknown_and_that_of_an_engine_has_no_threads() -> None:
    described = header(["vanilla"])
    described["spec"]["values"] |= {"backend": "server", "urls": ["http://host:8000"]}
    device = make_header(described).machine.device
    assert device == "hardware unknown to the client, client on Example CPU 9000, 2 cores, 8 GiB"
    described["spec"]["values"]["urls"] = []
    assert make_header(described).machine.device == "Example CPU 9000, 2 cores, 8 GiB"


def test_of_several_gpus_the_one_used_is_named_though_torch_orders_them_differently() -> None:
    described = header(["vanilla"])
    gpus = [{"name": name, "memory_bytes": 24 * 2**30, "driver": "1"} for name in ("slow", "fast")]
    described["environment"] |= {"gpus": gpus, "torch": {"devices": ["fast", "slow"]}}
    described["spec"]["values"]["device"] = "cuda:0"
    assert make_header(described).machine.device == "fast, 24 GiB, driver 1"
