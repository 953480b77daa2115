"""Rules about speed that drafting does not explain: they find cheats, and no honest run."""

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from msgspec import convert
from msgspec.structs import replace

from specbench.analysis.cheats import find_cheats
from specbench.analysis.idle_after_long import find_idle_after_long
from specbench.analysis.idle_drafts import find_idle_drafts
from specbench.analysis.metrics import measure
from specbench.analysis.records import make_table
from specbench.analysis.tables import RunTables, tabled
from specbench.judge.sources import check_sources
from specbench.log.files import open_lines
from specbench.log.header import RunHeader
from specbench.log.machine import Threads
from specbench.log.record import RecordLine, to_record
from specbench.log.run import Run
from specbench.log.store import read_run
from specbench.report.warning_notes import warnings
from specbench.types import Record
from tests.analysis.run_factory import header, make_run, record
from tests.before_after import RECORDED, _chosen, _noisy

METHODS, TASKS = ("vanilla", "pld", "sps"), ("gsm8k", "alpaca")
At = dict[str, Any]
"""A completion's method, repeat, whether it ran after vanilla, and the method before it."""


def run(
    cheat: Callable[[At], At], *, repeats: int = 1, num_samples: int = 12, seed: int = 5
) -> Run:
    """Two tasks; methods have a MAT of 1 to 3 and steps of 15 ms, vanilla's take 10 ms."""
    draw = random.Random(seed)
    mats = draw.choices((1, 2, 3), k=num_samples * len(TASKS))
    records: list[Record] = []
    before = ""
    for repeat in range(repeats):
        for number in range(num_samples * len(TASKS)):
            task, mat = TASKS[number % 2], mats[number]
            order = draw.sample(METHODS, len(METHODS))
            for method in order:
                is_after = order.index("vanilla") < order.index(method)
                at: At = {"method": method, "repeat": repeat, "is_after": is_after}
                at |= {"before": before, "prefill_s": 0.02, "step_s": 0.015}
                at |= {"mat": 1, "step_s": 0.01} if method == "vanilla" else {"mat": mat}
                at |= cheat(at)
                steps = [at["mat"]] * (60 // at["mat"])
                noise = draw.lognormvariate(0, 0.03)
                records.append(
                    record(method, str(number), task=task, repeat=repeat, accept_lengths=steps,
                           decode_s=at["step_s"] * len(steps) * noise,
                           prefill_s=at["prefill_s"] * noise)
                )  # fmt: skip
                before = method
    return make_run(records, header(METHODS, TASKS))


def methods_named(judged: Run) -> dict[str, dict[str, float]]:
    """The ratios of the methods that each rule names."""
    return {
        warning.key: {about["method"]: about["ratio"] for about in warning.numbers["methods"]}
        for warning in find_cheats(make_table(judged.records), judged.header)
    }


CHEATS: dict[str, tuple[str, float, Callable[[At], At]]] = {
    "remembered_answers": ("pld", 0.3, lambda at: {"mat": 6} if at["repeat"] else {}),
    "known_answers": ("pld", 0.3, lambda at: {"mat": 6} if at["is_after"] else {}),
    "fast_step": ("sps", 0.5, lambda at: {"step_s": 0.005}),
    "fast_prefill": ("pld", 0.5, lambda at: {"prefill_s": 0.01}),
}


@pytest.mark.parametrize("key", CHEATS)
def test_each_rule_names_its_method_alone_and_fails_the_check(key: str) -> None:
    method, ratio, change = CHEATS[key]
    cheated = run(lambda at: change(at) if at["method"] == method else {}, repeats=2)
    assert methods_named(cheated) == {key: {method: pytest.approx(ratio, abs=0.06)}}
    metrics = measure(cheated)
    (warning,) = [warning for warning in warnings(metrics) if warning.key == key]
    assert f"{metrics.info.method(method).label} 0." in warning.text and warning.is_warning
    (check,) = check_sources(RunTables(cheated), RunTables(cheated))
    status = "skipped" if key == "fast_step" else "failed"
    assert (check.text, check.status) == (warning.text, status)


def test_a_fast_step_fails_only_where_the_baseline_run_has_none() -> None:
    fast = run(lambda at: {"step_s": 0.005} if at["method"] != "vanilla" else {})
    assert methods_named(fast).keys() == {"slow_vanilla"}
    for baseline, status in ((run(lambda at: {}), "failed"), (fast, "skipped")):
        checks = check_sources(RunTables(fast), RunTables(baseline))
        assert [check.status for check in checks] == [status]


def test_a_step_with_more_threads_than_vanillas_has_a_narrower_limit() -> None:
    near = run(lambda at: {"step_s": 0.0092} if at["method"] == "pld" else {}, num_samples=40)
    assert not methods_named(near)
    threads = Threads(1, "measured", "brief", methods={"vanilla": 1, "pld": 2, "sps": 1})
    changed = make_run([*near.records], replace(near.header, threads=threads))
    assert methods_named(changed) == {"fast_step": {"pld": pytest.approx(0.92, abs=0.02)}}


def test_vanilla_is_slowed_by_the_method_before_it() -> None:
    def slow(at: At) -> At:
        return {"step_s": 0.013} if (at["method"], at["before"]) == ("vanilla", "sps") else {}

    slowed = methods_named(run(slow, num_samples=20))
    assert slowed == {"slowed_vanilla": {"sps": pytest.approx(1.25, abs=0.08)}}


@cache
def recorded() -> tuple[dict[str, Any], list[Any]]:
    source = RECORDED / "amd-epyc-2-cores"
    with open_lines(source / "samples.jsonl") as lines:
        return json.loads((source / "run.json").read_bytes()), [*map(json.loads, lines)]


def honest(seed: int) -> Run:
    """Some methods, tasks, prompts and passes of the recorded run, with noise and failures."""
    rng = random.Random(f"honest/{seed}")
    about, records = _chosen(*recorded(), rng)
    records_drawn = (
        to_record(convert(line, RecordLine), {}) for line in _noisy(records, rng, "vanilla")
    )
    return Run(convert(about, RunHeader), tuple(records_drawn))


def test_no_rule_fires_on_the_recorded_runs_and_on_50_honest_random_ones() -> None:
    stored = [read_run(path) for path in sorted(RECORDED.iterdir())]
    assert len(stored) >= 4
    parts = [part.at(load) for part in stored for load in part.loads]
    every = [*stored, *map(honest, range(50))]
    idle = (find_idle_drafts(part.records, part.header) for part in (*parts, *every))
    assert [*map(list, idle)] == [[]] * (len(parts) + len(every))
    after_long = (
        find_idle_after_long(tabled(part).table, part.header) for part in (*parts, *every)
    )
    assert [*map(list, after_long)] == [[]] * (len(parts) + len(every))
    assert {part.header.id: methods_named(part) for part in every if methods_named(part)} == {}
