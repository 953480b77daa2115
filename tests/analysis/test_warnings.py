"""Runs with and without warnings.

Methods are compared on the requests that all of them finished.
"""

import math
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.stats.estimates import Missing
from specbench.analysis.warnings import RunWarning, not_significant
from specbench.log.run import Run
from specbench.report.fact_notes import fact_notes
from specbench.report.texts import make_note
from specbench.types import Record
from tests.analysis.run_factory import full_run, header, make_run, number, record
from tests.judge.changing import broken

GPU_WITH_CLOCKS = {"sm_clock_mhz": {"min": 900, "mean": 1200, "max": 1400}}
METHODS, TASKS = ("vanilla", "pld"), ("gsm8k", "alpaca")


def run(
    pace: Callable[[str, int], float],
    num_samples: int = 40,
    *,
    has_clocks: bool = False,
    machine_in: str = "",
) -> RunMetrics:
    """Two tasks, one after the other; `pace` of (method, place) scales a step's 10 ms.

    `machine_in` is the field of a record that distinguishes the first half of each task's samples
    from the second.
    """
    draw = random.Random(3)
    records: list[Record] = []
    for task in TASKS:
        for sample in range(num_samples):
            for method in METHODS:
                lengths = [1 if method == "vanilla" else draw.choice((1, 3))] * draw.randint(20, 60)
                task_s = 0.010 if task == "gsm8k" else 0.013
                step_s = task_s * pace(method, len(records)) * draw.lognormvariate(0, 0.03)
                seconds = step_s * len(lengths)
                timed = record(method, str(sample), task=task, decode_s=seconds,
                              prefill_s=0.01, accept_lengths=lengths)  # fmt: skip
                half = str(2 * sample // num_samples)
                where: dict[str, Any] = {machine_in: half} if machine_in else {}
                records.append(replace(timed, **where))
    return measure(
        make_run(records, header(METHODS, TASKS, gpu=GPU_WITH_CLOCKS if has_clocks else None))
    )


def of(metrics: RunMetrics, key: str) -> list[RunWarning]:
    return [warning for warning in metrics.warnings if warning.key == key]


@pytest.mark.parametrize("gain", [0.0, 0.2])
def test_a_steady_run_and_one_that_gets_faster_raise_no_warning(gain: float) -> None:
    assert run(lambda method, place: 1.2 - gain * (place % 80) / 80).warnings == ()


@pytest.mark.parametrize("has_clocks", [False, True])
def test_a_baseline_that_slows_is_throttled_unless_the_driver_tells_clocks(
    has_clocks: bool,
) -> None:
    metrics = run(lambda method, place: 1 + 0.2 * (place % 80) / 80, has_clocks=has_clocks)
    throttled = of(metrics, "throttling")
    assert len(throttled) == (not has_clocks)
    for warning in throttled:
        assert warning.numbers["change"] == pytest.approx(0.13, abs=0.04)


@pytest.mark.parametrize("machine_in", ["", "origin", "worker"])
def test_a_second_machine_that_is_slower_is_no_throttled_one(machine_in: str) -> None:
    metrics = run(lambda _, place: 1.2 if place % 80 >= 40 else 1.0, machine_in=machine_in)
    assert len(of(metrics, "throttling")) == (not machine_in)


def test_speedups_that_slow_completions_decide_stand_beside_those_of_the_median() -> None:
    """Every fifth completion of a method takes three times as long, and the total 1.4 times."""
    metrics = run(lambda method, place: 3.0 if method == "pld" and place // 2 % 5 == 0 else 1.0)
    (warning,) = of(metrics, "disagreement")
    assert {cell["task"] for cell in warning.numbers["cells"]} == {"gsm8k", "alpaca"}
    for cell in warning.numbers["cells"]:
        assert cell["method"] == "pld"
        assert cell["median"] == pytest.approx(1.4 * cell["speedup"], rel=0.1)


def test_tasks_with_too_few_samples_for_a_claim_are_named_unless_all_are_alike() -> None:
    (few,) = of(run(lambda *_: 1.0, 3), "few_samples")
    assert few.numbers == {"tasks": [], "bare": 3, "few": None, "methods": [], "needed": 6}
    (few,) = of(run(lambda *_: 1.0, 4), "few_samples")
    assert few.numbers == {"tasks": [], "bare": None, "few": 4, "methods": [], "needed": 6}
    uneven = full_run(num_samples=9)
    kept = [r for r in uneven.records if r.key.task != "gsm8k" or r.key.sample_id.endswith("/0")]
    (few,) = of(measure(make_run(kept, uneven.header)), "few_samples")
    assert few.numbers["tasks"] == [{"task": "gsm8k", "samples": 1}]


def test_a_speedup_that_is_not_significant_says_how_many_samples_would_do() -> None:
    records: list[Record] = []
    for sample, repeat in product(range(30), range(3)):
        seconds = (1.5 if sample % 2 else 0.6) * (1 + 0.001 * repeat)
        records += [
            record(sample=str(sample), repeat=repeat),
            record("pld", str(sample), repeat=repeat, decode_s=seconds),
        ]
    metrics = measure(make_run(records, header(METHODS, ("gsm8k",))))
    (weak,) = of(metrics, "not_significant")
    assert weak.numbers["possible"][0]["factor"] > 1


def test_methods_that_no_number_of_prompts_tells_apart_are_named_for_themselves() -> None:
    metrics = measure(make_run([], header((*METHODS, "sps"), ("gsm8k",))))
    warning = not_significant(0.0, {"pld": 3.24, "sps": math.inf})
    note = make_note(warning.key, metrics.info, **warning.numbers).text
    assert "A difference would show for PLD with 3.2x as many prompts." in note
    assert "For SpS, no number of prompts is enough: use more passes or runs." in note


@pytest.mark.parametrize(
    ("accepting", "drafts", "is_told"),
    [(1, 2516, True), (1, 200, True), (1, 199, False), (2, 200, False), (0, 199, False)],
)
def test_drafts_of_which_next_to_none_is_accepted_are_named(
    accepting: int, drafts: int, is_told: bool
) -> None:
    """Steps without a draft do not count."""
    lengths = [2] * accepting + [1] * (drafts - accepting) + [1] * 500
    drafted = replace(record("pld", accept_lengths=lengths), num_nodes=(4,) * drafts + (1,) * 500)
    metrics = measure(make_run([record("vanilla"), drafted], header(METHODS, TASKS)))
    idle = [
        (warning.numbers["accepting"], warning.numbers["drafts"])
        for warning in of(metrics, "idle_drafts")
    ]
    assert idle == [(accepting, drafts)] * is_told


def survivors_run(num_failed: int) -> Run:
    """EAGLE and PLD are equally fast, at speedups from 0.5 to 2. EAGLE fails on its slowest
    answers.
    """
    records: list[Record] = []
    for i in range(16):
        speed = 0.5 + i / 10
        timed = record("eagle", str(i), decode_s=1 / speed)
        records += [
            record("vanilla", str(i)),
            record("pld", str(i), decode_s=1 / speed),
            broken(timed) if i < num_failed else timed,
        ]
    return make_run(records, header(["vanilla", "pld", "eagle"], ("gsm8k",)))


def test_failing_on_the_worst_prompts_moves_no_method_ahead() -> None:
    metrics = measure(survivors_run(num_failed=4))
    pld, eagle = (metrics.overall[method, 0.0].speedup for method in ("pld", "eagle"))
    assert number(eagle) == pytest.approx(number(pld))
    cells = [metrics.cell(method, 0.0, "gsm8k") for method in ("pld", "eagle")]
    counts = [(cell.num_done, cell.num_failed, cell.num_samples) for cell in cells]
    assert counts == [(16, 0, 12), (12, 4, 12)]  # of all completions, and of those compared
    assert number(eagle) > number(measure(survivors_run(0)).overall["pld", 0.0].speedup)
    (warning,) = of(metrics, "survived")
    assert warning.numbers == {"shared": 12, "requests": 16}


def test_a_request_with_a_pause_is_left_out_for_all_methods() -> None:
    whole = survivors_run(0)
    slow = replace(record("pld", "3", decode_s=1e6), is_paused=True)
    records = [slow if record.key == slow.key else record for record in whole.records]
    paused = measure(make_run(records, whole.header))
    rest = [record for record in whole.records if record.key.sample_id != slow.key.sample_id]
    without = measure(make_run(rest, whole.header))
    for method in ("pld", "eagle"):
        assert paused.overall[method, 0.0].speedup == without.overall[method, 0.0].speedup
    (warning,) = of(paused, "pauses")
    assert warning.numbers == {"paused": 1, "requests": 16}
    assert not of(paused, "survived")


@pytest.mark.parametrize(
    ("num_failed", "reason"), [(9, "not comparable: finished 7 of 16"), (16, "all failed")]
)
def test_a_method_that_fails_on_most_prompts_is_not_compared_and_takes_none_from_others(
    num_failed: int, reason: str
) -> None:
    metrics = measure(survivors_run(num_failed))
    assert metrics.cell("eagle", 0.0, "gsm8k").speedup == Missing(reason)
    assert metrics.cell("pld", 0.0, "gsm8k").num_samples == 16
    assert "eagle" not in metrics.rankings[0.0].methods


def test_a_sample_that_is_not_finished_by_all_yet_does_not_count_yet() -> None:
    whole = survivors_run(0)
    metrics = measure(make_run([*whole.records, record("vanilla", "new")], whole.header))
    for method in ("pld", "vanilla"):
        assert metrics.cell(method, 0.0, "gsm8k").num_samples == 16


def weighted(*methods: str, **options: Any) -> dict[str, Any]:
    """A header whose methods draft with weights, except vanilla."""
    about = header(("vanilla", *methods), TASKS)
    for method in methods:
        about["methods"][method] |= {"weights": {"revision": None, "files": {}}, "options": options}
    return about


def drafting(method: str, sample: str, lengths: list[int], repeat: int = 0) -> Record:
    answer = record(method, sample, accept_lengths=lengths, repeat=repeat)
    return replace(answer, num_nodes=(5,) * len(lengths))


@pytest.mark.parametrize(
    ("drafts", "options", "is_told"),
    [
        ([19, 13], {}, True),
        ([19, 12], {}, False),
        ([90], {}, False),
        ([19, 13], {"datastore": "a.store"}, False),  # a look-up in texts
        ([150, 50], {"other": "eagle2"}, True),
        ([150, 49], {"other": "eagle2"}, False),  # look-ups among others
    ],
)
def test_trained_drafts_that_nothing_accepts_are_named_after_few_steps(
    drafts: list[int], options: dict[str, str], is_told: bool
) -> None:
    records = [drafting("eagle", str(i), [1] * steps) for i, steps in enumerate(drafts)]
    run = make_run([record("vanilla"), *records], weighted("eagle", **options))
    assert [warning.numbers["drafts"] for warning in of(measure(run), "idle_drafts")] == (
        [sum(drafts)] * is_told
    )


def test_neither_copies_of_answers_nor_drafts_beside_an_accepted_one_make_a_head_idle() -> None:
    few = [drafting("eagle", "a", [1] * 19, repeat) for repeat in range(3)]
    few += [drafting("eagle", "b", [1] * 12, repeat) for repeat in range(3)]
    assert not of(measure(make_run(few, weighted("eagle"))), "idle_drafts")
    many = [drafting("eagle", str(i), [1] * 19) for i in range(5)]
    assert of(measure(make_run(many, weighted("eagle"))), "idle_drafts")
    many.append(drafting("eagle", "z", [1, 2]))
    assert not of(measure(make_run(many, weighted("eagle"))), "idle_drafts")


def test_steps_beyond_the_positions_of_weights_are_a_share_with_mat_on_either_side() -> None:
    about = header(("vanilla", "eagle", "sps"), TASKS)
    steps = {"mode": "eager", "reason": None}
    about["execution"] = {"eagle": {**steps, "num_positions": 60}, "sps": steps}
    prompt_tokens = {"a": 55, "b": 61}  # steps of `a` begin after 56, 59 and 63 tokens
    lengths = {"a": [3, 4, 4], "b": [1, 2]}
    records = [
        replace(drafting(method, sample, lengths[sample], repeat), prompt_tokens=num)
        for sample, num in prompt_tokens.items()
        for method in ("vanilla", "eagle", "sps")
        for repeat in range(2)
    ]
    metrics = measure(make_run(records, about))
    (warning,) = of(metrics, "long_prompts")
    assert make_note(warning.key, metrics.info, **warning.numbers).text == (
        "60.0 % of the steps behind the means of EAGLE lie beyond the 60 positions that its "
        "weights were made for: MAT is 2.33 there and 3.50 before."
    )
    beyond = [answer for answer in records if answer.prompt_tokens > 60]
    (warning,) = of(measure(make_run(beyond, about)), "long_prompts")
    assert make_note(warning.key, **warning.numbers).text.endswith("MAT is 1.50 there.")
    within = [answer for answer in records if answer.prompt_tokens < 56]
    about["execution"]["eagle"]["num_positions"] = 63
    assert not of(measure(make_run(within, about)), "long_prompts")


def test_facts_about_checkpoints_are_no_warnings() -> None:
    about = header(("vanilla", "eagle"), TASKS)
    facts = ["output layer: the target's", "rope_theta 700.0, the target's 10000.0"]
    about["execution"] = {"eagle": {"mode": "eager", "reason": None, "weights_facts": facts}}
    (note,) = (
        note for note in fact_notes(measure(make_run([], about))) if note.label == "Draft weights"
    )
    assert not note.is_warning
    assert note.text == f"EAGLE: {facts[0]}, {facts[1]}."
