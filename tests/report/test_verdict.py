"""The sentence below a table claims only what the intervals support.

Reports name CPU threads that differ between methods.
"""

import random
import re
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.log.machine import Threads
from specbench.log.run import Run
from specbench.report.notes import notes, short_notes
from specbench.report.results import build_results, verdict
from specbench.types import Phases
from tests.analysis.run_factory import full_run, header, make_run, number, record


def run(num_passes: int, **speeds: float) -> Run:
    """20 samples on which a method has this speedup, within 5 %, in each pass."""
    generator = random.Random(3)
    records = [
        record(method, str(i), repeat=repeat, decode_s=generator.lognormvariate(0, 0.05) / speed)
        for repeat in range(num_passes)
        for i in range(20)
        for method, speed in {"vanilla": 1.0, **speeds}.items()
    ]
    return make_run(records, header(["vanilla", *speeds], ("gsm8k",)))


SLOWER = "No method is faster than vanilla; PLD comes closest"


@pytest.mark.parametrize(
    ("speeds", "told", "untold"),
    [
        (
            {"pld": 1.5, "sps": 2.0},
            "^SpS is the fastest in this run, at 2.0.*It is 1.3",
            "signific",
        ),
        ({"pld": 1.5, "sps": 1.51}, "not a significant difference", "is the fastest"),
        ({"pld": 0.8, "sps": 0.6}, f"^{SLOWER} \\(0.8", "fastest|significant"),
        ({"pld": 0.98}, f"^{SLOWER} \\(0.9.*That is not a significant difference.$", "fastest"),
        ({}, "^No speedup to report: only vanilla was run.$", "vanilla's"),
    ],
)
def test_what_is_said_of_three_passes(speeds: dict[str, float], told: str, untold: str) -> None:
    text = verdict(measure(run(3, **speeds)), 0.0)
    assert re.search(told, text) and not re.search(untold, text)


def test_a_difference_that_the_interval_alone_shows_is_marked_and_told() -> None:
    """The same lead is a claim where the method is alone, and a doubt among eight."""
    names = ("sps", "lookahead", "medusa", "hydra", "eagle", "eagle2", "eagle3")
    for others, mark in (((), ""), (names, "~")):
        metrics = measure(run(3, pld=1.05, **dict.fromkeys(others, 1.0)))
        results = build_results([metrics])
        (pld,) = (m for m in results.blocks[0].methods if m.method == "pld")
        interval = metrics.rankings[0.0].speedups["pld"].interval
        assert interval and interval.low > 1.0
        assert [task.mark for task in pld.tasks] == [mark]
        told = f"alone a difference, not among {1 + len(others)}"
        assert (told in verdict(metrics, 0.0)) is bool(mark)
        assert any(told in note.text for note in short_notes(results.notes)) is bool(mark)


@pytest.mark.parametrize("older", [{}, {"stored_spread": {"sd": 0.01, "degrees": 8}}])
def test_one_pass_claims_nothing_and_says_why(older: dict[str, Any]) -> None:
    """Nor does it in an older header, which may have the spread of other runs."""
    described = header(["vanilla", "pld", "sps"], ("gsm8k",), **older)
    text = verdict(measure(make_run(run(1, pld=1.5, sps=2.0).records, described)), 0.0)
    assert text.startswith("SpS has the highest speedup, 2.0")
    assert "Nothing is claimed from one pass" in text


def test_the_best_of_many_equal_methods_is_no_winner() -> None:
    """Without a correction for their number, the best of eight would often seem to win."""
    names = ("pld", "sps", "lookahead", "medusa", "hydra", "eagle", "eagle2", "eagle3")
    text = verdict(measure(run(3, **dict.fromkeys(names, 1.01))), 0.0)
    assert "not significantly different from vanilla" in text


def test_a_slower_method_without_an_interval_is_not_called_the_fastest() -> None:
    records = [record(), record("pld", decode_s=8.0)]
    text = verdict(measure(make_run(records, header(["vanilla", "pld"], ("gsm8k",)))), 0.0)
    assert text == f"{SLOWER} (0.12x)."


def test_a_run_with_phases_is_not_answered_by_an_instruction() -> None:
    phased = [replace(r, phases=Phases(0.1, 0.1, 0.1, 0.1)) for r in run(3, pld=2.0).records]
    text = verdict(measure(make_run(phased, header(["vanilla", "pld"], ("gsm8k",)))), 0.0)
    assert text.startswith("No speedup to report: the phases of steps were timed")
    assert "run with" not in text


def test_without_a_baseline_the_reason_is_said() -> None:
    described = header(["pld"], ("gsm8k",))
    text = verdict(measure(make_run([record("pld")], described)), 0.0)
    assert text == "No speedup to report: no baseline."


def test_threads_of_a_method_are_in_its_label_and_a_note_has_its_speedup_without_them() -> None:
    run = full_run(methods=("vanilla", "pld", "sps:num_tokens=2"), tasks=("gsm8k",))
    threads = Threads(
        1, "measured", "brief", prefill=2, methods={"pld": 1, "sps:num_tokens=2": 2},
        method_step_s={"sps:num_tokens=2": {"1": 0.004, "2": 0.002}},
    )  # fmt: skip
    run = replace(run, header=structs.replace(run.header, threads=threads))
    labels = [one.label for one in run.header.method_labels]
    assert labels == ["Vanilla", "PLD", "SpS (num_tokens=2, 2 threads)"]
    metrics = measure(run, Bootstrap(50))
    speedup = number(metrics.overall["sps:num_tokens=2", 0.0].decode_speedup)
    (found,) = [one.text for one in notes([metrics], ["run"]) if one.label == "Threads"]
    assert found == (
        "1 for vanilla's steps, 2 for all prefills; where a method has its own number, the decode "
        f"speedup with vanilla's would be about: SpS (num_tokens=2, 2 threads) {speedup / 2:.2f}x."
    )
