"""The data frames for notebooks and CSV files."""

import math
from dataclasses import replace

import pytest

from specbench.analysis.frames import summary_frame
from specbench.analysis.metrics import measure
from specbench.analysis.records import make_table, records_frame
from specbench.analysis.stats.bootstrap import Bootstrap, Estimate
from specbench.types import Phases
from tests.analysis.run_factory import failed, full_run, header, make_run, record


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


def test_missing_numbers_are_nan_whether_or_not_another_record_has_them() -> None:
    frame = records_frame([failed("pld"), replace(record(), energy_j=3.0)])
    assert math.isnan(frame["wall_s"][0])
    assert math.isnan(frame["energy_j"][0])
    assert frame["peak_memory_bytes"].isna().all()
    assert records_frame([]).empty


def test_the_dtypes_do_not_depend_on_the_records() -> None:
    dtypes = [
        records_frame(records).dtypes.astype(str).to_dict()
        for records in ([], [failed("pld")], [replace(record(), energy_j=3.0)])
    ]
    assert dtypes[0] == dtypes[1] == dtypes[2]


def test_the_summary_has_a_row_for_every_cell_with_its_numbers() -> None:
    run = measure(full_run(("vanilla", "pld"), ("gsm8k", "alpaca")), Bootstrap(200))
    frame = summary_frame(run).set_index(["method", "temperature", "task"])
    assert [task for _, _, task in frame.index] == ["gsm8k", "alpaca", "mean", "pooled"] * 2
    cell, row = run.cell("pld", 0.0, "alpaca"), frame.loc["pld", 0.0, "alpaca"]
    assert isinstance(cell.speedup, Estimate)
    assert cell.speedup.interval is not None
    assert row["speedup"] == cell.speedup.value
    assert row["speedup_low"] == cell.speedup.interval.low
    assert row["num_tokens"] == cell.num_tokens
    assert row["step_s"] == pytest.approx(row["relative_step_cost"] * frame["step_s"].iloc[1])
    mats = [frame.loc["pld", 0.0, task]["mat"] for task in ("gsm8k", "alpaca", "mean")]
    assert mats[2] == pytest.approx(sum(mats[:2]) / 2)


def test_the_summary_says_why_a_number_is_missing() -> None:
    run = measure(
        make_run([record("pld"), failed("vanilla")], header(["vanilla", "pld"], ["gsm8k"]))
    )
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
