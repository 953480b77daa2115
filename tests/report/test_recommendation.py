"""A report recommends a method by the ranking's tests, or says why it recommends none."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from specbench.analysis.metrics import RunMetrics, measure
from specbench.analysis.warnings import RunWarning
from specbench.log.run import Run
from specbench.machine.environment import BUSY_AT_START, with_one_start
from specbench.report.build import make_report
from specbench.report.recommendation import recommendation
from tests.analysis.run_factory import full_run, make_run
from tests.judge.changing import several, slower, with_header
from tests.report.drawing import drawn, render
from tests.support.audits import failed_audit, passed_audit, stored_audit

METHODS = ("vanilla", "pld", "sps", "lookahead")
OTHERS = {"num_samples": 9, "interval_s": 1.0, "share_of_others": {"min": 0, "max": 1}}


def with_passes(run: Run) -> Run:
    """The run, made in three passes."""
    pool = several(run, 3)
    return make_run(pool.records, pool.header)


@cache
def sound_run() -> Run:
    """Three passes in which SpS is by far the fastest, and PLD and Lookahead are alike."""
    return with_passes(slower(full_run(METHODS), {"pld": 1.1, "lookahead": 1.1}))


def recommended(run: Run) -> str:
    return recommendation(measure(run), 0.0)


def changed(**changes: Any) -> Run:
    return with_header(sound_run(), **changes)


def test_the_fastest_is_recommended_and_then_audited_and_tuned() -> None:
    use = "Use SpS on this machine: it is the fastest in this run. Next: "
    assert recommended(sound_run()) == f"{use}run `specbench audit` on the run's folder."
    audited = replace(sound_run(), audit=stored_audit(passed_audit("sps", 0.0)))
    assert recommended(audited) == f"{use}run `specbench tune` to look for faster settings."


def test_a_method_that_is_not_shown_to_be_the_fastest_is_named_with_the_others() -> None:
    run = with_passes(slower(full_run(METHODS), {"sps": 1.1}))
    text = recommended(replace(run, audit=stored_audit(passed_audit("sps", 0.0))))
    assert text.startswith("Use ")
    assert " on this machine. These are not significantly slower: " in text
    assert text.endswith("Next: use more prompts: `specbench report RUN --plan` tells how many.")


def test_nothing_slower_than_vanilla_is_recommended() -> None:
    run = with_passes(slower(full_run(METHODS), dict.fromkeys(METHODS[1:], 3.0)))
    start = "No method is shown to be faster than vanilla on this machine. Next: "
    assert recommended(run) == f"{start}run `specbench tune` to look for faster settings."


CASES: Mapping[str, tuple[Callable[[], Run], str, str]] = {
    "one pass": (
        lambda: full_run(METHODS),
        "there is only one pass",
        "use --repeats 3 or --runs 5",
    ),
    "busy": (
        lambda: changed(cpu={**OTHERS, "share_of_others": {"min": 0, "mean": 0.5, "max": 1}}),
        "the machine was busy",
        "stop other programs",
    ),
    "stand-in": (
        lambda: changed(model__is_stand_in=True),
        "a stand-in accepts the same tokens as tiny",
        "measure the model's own weights",
    ),
    "few prompts": (
        lambda: with_passes(full_run(METHODS, ("gsm8k",), num_samples=2)),
        "there are too few prompts",
        "use --prompts paper --limit 6",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_missing_recommendation_has_a_reason(name: str) -> None:
    make, reason, step = CASES[name]
    assert recommended(make()) == f"Nothing is recommended: {reason}. Next: {step}."


def named_by_a_rule() -> RunMetrics:
    numbers = {"methods": [{"method": "sps", "temperature": 0.0, "ratio": 0.5}]}
    return replace(measure(sound_run()), warnings=(RunWarning("known_answers", numbers),))


@pytest.mark.parametrize(
    ("make", "label", "reason"),
    [
        (
            lambda: measure(changed(methods__sps__is_lossless=False)),
            "SpS*",
            "its output may differ",
        ),
        (
            lambda: measure(
                replace(sound_run(), audit=stored_audit(failed_audit("sps", 0.0, 0.0)))
            ),
            "SpS",
            "it failed the audit",
        ),
        (named_by_a_rule, "SpS", "a warning says that its speed is unreliable"),
    ],
    ids=["lossy", "failed audit", "named by a rule"],
)
def test_a_doubtful_method_is_passed_over(
    make: Callable[[], RunMetrics], label: str, reason: str
) -> None:
    text = recommendation(make(), 0.0)
    assert text.startswith(("Use PLD on this machine", "Use Lookahead on this machine"))
    assert f" Not recommended: {label} ({reason}). Next: " in text


def test_the_recommendation_is_on_every_screen_and_page() -> None:
    text = recommended(sound_run())
    assert text in " ".join(drawn(sound_run(), is_full=False).split())
    assert text in " ".join(drawn(sound_run()).split())
    assert text in render(sound_run(), "markdown").replace("\\", "")
    assert "Use SpS on this machine: it is the fastest in this run." in render(sound_run(), "html")
    (verdict,) = json.loads(render(sound_run(), "json"))["runs"][0]["verdicts"]
    assert verdict["recommendation"] == text


def test_a_busy_machine_gives_one_warning() -> None:
    warnings = [f"{BUSY_AT_START} (load 9.0 on 2 cores): times are noisy.", "Another warning."]
    keys_of_run = []
    for mean in (0.0, 0.5):
        cpu = {**OTHERS, "share_of_others": {"min": 0, "mean": mean, "max": 1}}
        report = make_report(changed(cpu=cpu, warnings=warnings))
        keys_of_run.append([note.key for note in report.notes if note.is_warning])
    assert [keys.count("recorded") for keys in keys_of_run] == [2, 1]
    assert [keys.count("busy") for keys in keys_of_run] == [0, 1]


def test_two_busy_starts_of_a_run_give_one_sentence() -> None:
    starts = [f"{BUSY_AT_START} (load {load} on 2 cores): noisy." for load in (1.5, 1.9)]
    both = f"{BUSY_AT_START} (load 1.5 on 2 cores) and again later (load 1.9 on 2 cores): noisy."
    assert with_one_start([*starts, "Another,\nof two lines."]) == [both, "Another,\nof two lines."]
