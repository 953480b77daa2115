"""The sentence below a table claims only what the intervals support."""

import random
import re

import pytest

from specbench.analysis.metrics import measure
from specbench.log.run import Run
from specbench.report.build import make_report
from specbench.report.notes import short_notes
from specbench.report.verdict import verdict
from tests.analysis.run_factory import header, make_run, record


def run(num_passes: int, **speeds: float) -> Run:
    """A run of 20 samples, on which each method has this speedup, within 5 %, in each pass."""
    generator = random.Random(3)
    records = [
        record(method, str(i), repeat=repeat, decode_s=generator.lognormvariate(0, 0.05) / speed)
        for repeat in range(num_passes)
        for i in range(20)
        for method, speed in {"vanilla": 1.0, **speeds}.items()
    ]
    return make_run(records, header(["vanilla", *speeds], ("gsm8k",)))


SLOWER = "No method is faster than vanilla; PLD comes closest"
OTHERS = ("sps", "lookahead", "medusa", "hydra", "eagle", "eagle2", "eagle3")
EQUAL = dict.fromkeys(("pld", *OTHERS), 1.01)
"""Without a correction for eight methods, the best of them would often seem to win."""


@pytest.mark.parametrize(
    ("speeds", "said", "untold"),
    [
        (
            {"pld": 1.5, "sps": 2.0},
            "^SpS is the fastest in this run, at 2.0.*It is 1.3",
            "signific",
        ),
        ({"pld": 1.5, "sps": 1.51}, "not a significant difference", "is the fastest"),
        ({"pld": 0.8, "sps": 0.6}, f"^{SLOWER} \\(0.8", "fastest|significant"),
        ({"pld": 0.98}, f"^{SLOWER} \\(0.9.*That is not a significant difference.$", "fastest"),
        (EQUAL, "not significantly different from vanilla", "is the fastest"),
        ({}, "^No speedup to report: only vanilla was run.$", "vanilla's"),
    ],
)
def test_the_sentence_about_three_passes_claims_what_they_show(
    speeds: dict[str, float], said: str, untold: str
) -> None:
    text = verdict(measure(run(3, **speeds)), 0.0)
    assert re.search(said, text) and not re.search(untold, text)


def test_a_difference_that_the_interval_alone_shows_is_marked_and_reported() -> None:
    """The same lead supports a claim for a single method, but not for one among eight."""
    for others, mark in (((), ""), (OTHERS, "~")):
        report = make_report(run(3, pld=1.05, **dict.fromkeys(others, 1.0)))
        metrics = report.sources[0].metrics
        (pld,) = (m for m in report.blocks[0].methods if m.method == "pld")
        interval = metrics.rankings[0.0].speedups["pld"].interval
        assert interval and interval.low > 1.0
        assert [task.mark for task in pld.tasks] == [mark]
        words = f"on its own, but not after correcting for {1 + len(others)} comparisons"
        assert (words in verdict(metrics, 0.0)) is bool(mark)
        assert any(words in note.text for note in short_notes(report.notes)) is bool(mark)


def test_without_a_baseline_the_sentence_names_no_speedup() -> None:
    metrics = measure(make_run([record("pld")], header(["vanilla", "pld"], ("gsm8k",))))
    assert verdict(metrics, 0.0) == "No speedup to report: no baseline."
