"""Step costs and the memory limit in reports."""

import csv
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from typing import Any

from specbench.log.run import Run
from specbench.types import Phases
from tests.analysis.run_factory import full_run, make_run
from tests.judge.changing import with_header
from tests.report.drawing import drawn, render

MEMORY = {
    "bandwidth_bytes_per_s": 3e9,
    "target_bytes": 3_000_000,
    "cache_bytes": 1_000_000,
    "kv_bytes_per_token": 1000,
    "is_mixture_of_experts": False,
    "draft_bytes": {"vanilla": 0, "pld": 0, "eagle": 1_000_000},
}


def run(**roofline: Any) -> Run:
    """Vanilla's step takes 2.5 ms, of which reading its weights would take 1 ms."""
    memory = {**MEMORY, **roofline}
    return full_run(("vanilla", "pld", "eagle"), ("gsm8k", "alpaca"), roofline=memory)


def with_phases(done: Run) -> Run:
    records = [
        replace(r, phases=Phases(*(part * (r.decode_s or 0) for part in (0.3, 0.5, 0.15, 0.05))))
        for r in done.records
    ]
    return make_run(records, with_header(done, spec__values__phases=True).header)


def listing(text: str) -> Mapping[str, list[str]]:
    """The lines of the table of costs, with its heading, by their first words."""
    below = text.split("The cost of a step")[1].splitlines()
    lines = [line.split() for line in below[1 : below.index("", 1)]]
    return {line[0]: line[1:] for line in lines if line}


def test_the_listing_shows_the_limit_and_how_much_of_it_is_reached() -> None:
    text = drawn(run())
    shown = listing(text)
    assert shown["Method"] == ["MAT", "cost", "speedup", "limit", "limit", "step"]
    mat, cost, speedup, limit, reached, unit, _ = shown["EAGLE"]
    assert abs(float(limit[:-1]) - float(mat) * 0.75) < 0.01
    assert abs(float(mat) / float(cost) - float(speedup[:-1])) < 0.03
    assert abs(float(speedup[:-1]) / float(limit[:-1]) - float(reached) / 100) < 0.01
    assert unit == "%"
    assert "Keys and values" in text


def test_a_run_with_phases_shows_them_and_no_speedup() -> None:
    shown = listing(drawn(with_phases(run())))
    assert shown["Method"][:6] == ["MAT", "cost", "draft", "verify", "commit", "host"]
    _, cost, *parts = (float(text) for text in shown["EAGLE"][:6])
    assert abs(sum(parts) - cost) < 0.03


def test_a_baseline_far_from_the_bandwidth_is_a_warning() -> None:
    slow = " ".join(drawn(run()).split())
    assert "Vanilla uses 40 % of the memory bandwidth, less than 60 %" in slow
    assert "A slow baseline inflates every speedup" in slow and "3 GB/s." in slow
    told = " ".join(drawn(run(block_bytes=64_000_000)).split())
    assert "less than 60 %: 3 GB/s, measured by reads of 64 MB." in told
    assert "3 GB/s measured on 64 MB." in told
    assert "inflates" not in drawn(run(target_bytes=6_000_000))
    assert "inflates" not in drawn(with_phases(run()))


def test_weights_in_the_cache_have_no_limit_and_the_report_says_so() -> None:
    text = drawn(run(cache_bytes=2_000_000))
    assert "limit" not in listing(text)["Method"]
    assert "much of it from a cache of 2 MB" in " ".join(text.split())
    assert "inflates" not in text


def test_load_by_other_programs_and_the_clock_stand_below_the_table() -> None:
    use = {
        "num_samples": 60, "interval_s": 1.0,
        "share_of_others": {"min": 0.0, "mean": 0.008, "max": 0.05},
        "clock_mhz": {"min": 2400.0, "mean": 2550.2, "max": 2600.0},
    }  # fmt: skip
    run = full_run(("vanilla", "pld"), ("gsm8k",), cpu=use)
    text = " ".join(drawn(run).split())
    others = "Processor other programs took 1 % of it (at most 5 % in a second), "
    assert f"{others}clock 2400 to 2600 MHz (mean 2550)" in text


def test_how_steps_were_run_stands_below_the_table_with_the_reason() -> None:
    graph, eager = {"mode": "graph", "reason": None}, {"mode": "eager", "reason": "no such kernel"}
    modes = {"vanilla": graph, "pld": eager}

    def told(**header: Any) -> str:
        return " ".join(drawn(full_run(("vanilla", "pld"), ("gsm8k",), **header), 160).split())

    text = told(execution=modes, kernels={"name": "triton 3.6.0", "reason": None})
    assert "CUDA graphs; one by one for PLD (no such kernel); layers by triton 3.6.0" in text
    text = told(execution={"vanilla": graph}, kernels={"name": "torch", "reason": "too old"})
    assert "Steps CUDA graphs; layers by torch (too old)" in text
    assert "Steps" not in told(kernels={"name": "torch"})


def test_the_csv_has_costs_per_task_and_pooled() -> None:
    records = [replace(r, energy_j=2.0, peak_memory_bytes=5) for r in with_phases(run()).records]
    rows = list(csv.DictReader(StringIO(render(make_run(records, run().header), "csv"))))
    assert {row["task"] for row in rows if row["limit"]} == {"gsm8k", "alpaca", "pooled"}
    for row in rows:
        if row["task"] == "mean":
            continue
        parts = [float(row[name]) for name in ("draft_s", "verify_s", "commit_s", "host_s")]
        assert abs(sum(parts) - float(row["step_s"])) < 1e-12
        assert float(row["joules_per_token"]) > 0
        assert row["peak_memory_bytes"] == "5"
