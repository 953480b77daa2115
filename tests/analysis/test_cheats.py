"""Speed that drafting does not explain: the rules find cheats and spare honest runs."""

import json
import random
from collections.abc import Callable
from dataclasses import replace as replace_record
from functools import cache
from typing import Any, NamedTuple

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


class Answer(NamedTuple):
    """An answer before its noise is drawn."""

    method: str
    repeat: int
    is_after_vanilla: bool
    """True if vanilla has already answered the prompt in this pass."""
    before: str
    """The method that answered just before."""
    mat: int
    step_s: float
    prefill_s: float = 0.02


Change = Callable[[Answer], Answer]
"""A cheat, as a function of an honest answer."""


def unchanged(answer: Answer) -> Answer:
    return answer


def of(method: str, change: Change) -> Change:
    """The change, applied only to the answers of this method."""
    return lambda answer: change(answer) if answer.method == method else answer


def run(cheat: Change, *, repeats: int = 1, num_samples: int = 12, seed: int = 5) -> Run:
    """A run of two tasks.

    Methods have a MAT of 1 to 3 and steps of 15 ms, vanilla has steps of 10 ms.
    """
    draw = random.Random(seed)
    mats = draw.choices((1, 2, 3), k=num_samples * len(TASKS))
    records: list[Record] = []
    before = ""
    for repeat in range(repeats):
        for sample, mat in enumerate(mats):
            order = draw.sample(METHODS, len(METHODS))
            for method in order:
                is_vanilla = method == "vanilla"
                answer = cheat(
                    Answer(
                        method,
                        repeat,
                        is_after_vanilla=order.index("vanilla") < order.index(method),
                        before=before,
                        mat=1 if is_vanilla else mat,
                        step_s=0.01 if is_vanilla else 0.015,
                    )
                )
                num_steps = 60 // answer.mat
                noise = draw.lognormvariate(0, 0.03)
                records.append(
                    record(
                        method,
                        str(sample),
                        task=TASKS[sample % 2],
                        repeat=repeat,
                        accept_lengths=[answer.mat] * num_steps,
                        decode_s=answer.step_s * num_steps * noise,
                        prefill_s=answer.prefill_s * noise,
                    )
                )
                before = method
    return make_run(records, header(METHODS, TASKS))


def methods_named(judged: Run) -> dict[str, dict[str, float]]:
    """For each rule, the ratios of the methods that it names."""
    return {
        warning.key: {method["method"]: method["ratio"] for method in warning.numbers["methods"]}
        for warning in find_cheats(make_table(judged.records), judged.header)
    }


def remembering(answer: Answer) -> Answer:
    return answer._replace(mat=6) if answer.repeat else answer


def knowing(answer: Answer) -> Answer:
    return answer._replace(mat=6) if answer.is_after_vanilla else answer


def stepping_fast(answer: Answer) -> Answer:
    return answer._replace(step_s=0.005)


class Cheat(NamedTuple):
    """A cheat of one method."""

    method: str
    ratio: float
    """The ratio that its rule gives."""
    change: Change


CHEATS = {
    "remembered_answers": Cheat("pld", 0.3, remembering),
    "known_answers": Cheat("pld", 0.3, knowing),
    "fast_step": Cheat("sps", 0.5, stepping_fast),
    "fast_prefill": Cheat("pld", 0.5, lambda answer: answer._replace(prefill_s=0.01)),
}
"""Cheats, by the key of the rule that finds them."""


@pytest.mark.parametrize(("num_samples", "seed"), [(12, 7028), (24, 7072)])
def test_a_method_with_harder_prompts_in_one_order_is_not_named(
    num_samples: int, seed: int
) -> None:
    """PLD is honest, but its harder prompts came before vanilla's answers."""
    judged = run(of("sps", stepping_fast), repeats=2, num_samples=num_samples, seed=seed)
    assert {*methods_named(judged)} == {"fast_step"}


@pytest.mark.parametrize(
    ("key", "method", "ratio", "change"), [(key, *cheat) for key, cheat in CHEATS.items()]
)
def test_each_rule_names_only_its_method(
    key: str, method: str, ratio: float, change: Change
) -> None:
    cheated = run(of(method, change), repeats=2)
    assert methods_named(cheated) == {key: {method: pytest.approx(ratio, abs=0.06)}}
    metrics = measure(cheated)
    (warning,) = [warning for warning in warnings(metrics) if warning.key == key]
    assert f"{metrics.info.method(method).label} 0." in warning.text and warning.is_warning
    (check,) = check_sources(RunTables(cheated), RunTables(cheated))
    status = "skipped" if key == "fast_step" else "failed"
    assert (check.text, check.status) == (warning.text, status)


def test_rules_that_count_steps_ignore_pauses() -> None:
    cheated = run(of("pld", remembering), repeats=2)
    paused = [replace_record(answer, is_paused=True) for answer in cheated.records]
    assert methods_named(make_run(paused, cheated.header)).keys() == {"remembered_answers"}


def test_a_fast_step_fails_only_if_the_baseline_has_none() -> None:
    fast = run(lambda answer: answer if answer.method == "vanilla" else stepping_fast(answer))
    assert methods_named(fast).keys() == {"slow_vanilla"}
    for baseline, status in ((run(unchanged), "failed"), (fast, "skipped")):
        checks = check_sources(RunTables(fast), RunTables(baseline))
        assert [check.status for check in checks] == [status]


def test_steps_with_more_threads_than_vanillas_have_a_narrower_limit() -> None:
    near = run(of("pld", lambda answer: answer._replace(step_s=0.0092)), num_samples=40)
    assert not methods_named(near)
    threads = Threads(1, "measured", "brief", methods={"vanilla": 1, "pld": 2, "sps": 1})
    with_more_threads = make_run([*near.records], replace(near.header, threads=threads))
    assert methods_named(with_more_threads) == {"fast_step": {"pld": pytest.approx(0.92, abs=0.02)}}


def test_vanilla_is_slowed_by_the_method_before_it() -> None:
    def slowed(answer: Answer) -> Answer:
        return answer._replace(step_s=0.013) if answer.before == "sps" else answer

    named = methods_named(run(of("vanilla", slowed), num_samples=20))
    assert named == {"slowed_vanilla": {"sps": pytest.approx(1.25, abs=0.08)}}


@cache
def recorded() -> tuple[dict[str, Any], list[Any]]:
    source = RECORDED / "amd-epyc-2-cores"
    with open_lines(source / "samples.jsonl") as lines:
        return json.loads((source / "run.json").read_bytes()), [*map(json.loads, lines)]


def honest(seed: int) -> Run:
    """Some methods, tasks, prompts and passes of the recorded run, with noise and failures."""
    rng = random.Random(f"honest/{seed}")
    chosen_header, chosen_lines = _chosen(*recorded(), rng)
    lines = _noisy(chosen_lines, rng, "vanilla")
    records = [to_record(convert(line, RecordLine), {}) for line in lines]
    return Run(convert(chosen_header, RunHeader), tuple(records))


@pytest.mark.slow
def test_no_rule_fires_on_the_recorded_runs_and_on_50_honest_random_ones() -> None:
    stored = [read_run(path) for path in sorted(RECORDED.iterdir())]
    assert len(stored) >= 4
    runs = [*stored, *map(honest, range(50))]
    for judged in runs:
        assert methods_named(judged) == {}, judged.header.id
    by_load = [stored_run.at(load) for stored_run in stored for load in stored_run.loads]
    for judged in (*by_load, *runs):
        assert [*find_idle_drafts(judged.records, judged.header)] == [], judged.header.id
        after_long = find_idle_after_long(tabled(judged).table, judged.header)
        assert [*after_long] == [], judged.header.id
