"""Equal warnings about several methods, loads or runs become one."""

import re
from dataclasses import replace
from html import unescape

import pytest

from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.log.run import Run
from specbench.report.build import make_report
from specbench.report.texts import _texts, make_notes
from tests.analysis.run_factory import full_run
from tests.judge.changing import with_header, with_records
from tests.report.drawing import render, report_of, two_temperatures
from tests.support.headers import make_header


def differing(methods: tuple[str, ...]) -> Run:
    """A run whose methods' first answers differ from vanilla's, one answer more for each method."""
    run = full_run(("vanilla", "pld", "sps", "lookahead"), ("gsm8k",), num_samples=8)
    num_left = {method: number for number, method in enumerate(methods, 1)}

    def changed(record):  # type: ignore[no-untyped-def]
        if num_left.get(record.key.method, 0) <= 0:
            return record
        num_left[record.key.method] -= 1
        return replace(record, token_ids=(9, *record.token_ids[1:]))

    return with_records(run, changed)


def warnings_of(run: Run | list[Run]) -> list[str]:
    return [note.text for note in make_report(run, Bootstrap(50)).notes if note.is_warning]


def test_methods_that_differ_from_vanilla_share_a_warning() -> None:
    (text,) = [text for text in warnings_of(differing(("pld", "sps", "lookahead"))) if "0," in text]
    assert text.startswith("3 methods should give vanilla's tokens at temperature 0, but differ in")
    assert "in 1 to 3 of 8 completions: PLD, SpS, Lookahead." in text
    (text,) = [text for text in warnings_of(differing(("sps",))) if "0," in text]
    assert text.startswith("SpS should give vanilla's tokens at temperature 0, but differs in 1 of")


def test_a_warning_of_some_runs_names_them() -> None:
    text = "The clock of the CPU changed during the run."
    runs = [with_header(full_run(), id=name, warnings=[text]) for name in ("a", "b")]
    other = with_header(full_run(), id="c")
    assert warnings_of(runs).count(text) == 1
    shared = [shown for shown in warnings_of([*runs, other]) if text in shown]
    assert len(shared) == 1
    assert shared[0].startswith("run a, run b: ")


@pytest.mark.parametrize("key", [key for key, entry in _texts().items() if "several" in entry])
def test_every_text_for_several_methods_is_complete(key: str) -> None:
    """The text has all numbers, and shows none as a list."""
    findings = [
        {
            "method": method,
            "temperature": 0.0,
            "first_position": 3,
            "different": number,
            "compared": 8,
            "tokens": number,
            "answers": number,
            "requests": number,
            "blocks": number,
            "accepting": number,
            "drafts": 9,
        }
        for number, method in enumerate(("pld", "sps"), 1)
    ]
    (note,) = make_notes(key, make_header({}), findings)
    assert note.is_warning
    assert "1 to 2" in note.text
    assert "pld, sps" in note.text.lower()
    assert not any(sign in note.text for sign in "{}[]")


def test_the_page_has_every_warning() -> None:
    report = report_of(two_temperatures)
    warnings = [note.text.split("'")[0] for note in report.notes if note.is_warning]
    text = unescape(re.sub("</?(span|code)[^>]*>", "", render(report, "html")))
    assert warnings
    assert all(warning in text for warning in warnings)
