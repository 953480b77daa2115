"""What makes the first hour good: sentences with a doubt or a remedy, tables that fit, a calm page.

Elsewhere: verdicts (`test_verdict`), Ctrl-C (`cli/test_interrupts`, `cli/test_ended_runs`),
messages (`cli/test_bad_input`), faked times (`judge/test_files`), the live view
(`measure/test_progress`), one file without a network (`test_html`).
"""

from __future__ import annotations

import re
from io import StringIO

import pytest
from rich.console import Console

from specbench.cli.progress import progress_view
from specbench.report.build import make_report
from tests.analysis.run_factory import TITLES, full_run, record
from tests.report.drawing import drawn, nine_methods, render
from tests.report.test_html import Outline, answering
from tests.report.test_table import TEXTS

ADVICE = re.compile(
    r"(^|[.!:\]] ?)\[? ?"
    r"(Repeat|Keep|Stop|Raise|Run|Use|Turn|Lower|See|Check|Compare|Read|Continue)\b|`specbench "
)
FACTS = {
    "more_warnings",
    "running",
    "failed_run",
    "incomplete",
    "failed_completions",
    "left_out",
    "recorded",
    "survived",
    "slow_baseline",
    "interrupted_blocks",
    "long_drafts",
    "busy",
    "changed_weights",
}
"""Warnings that tell a fact about the run; the others ask for something."""


@pytest.mark.parametrize("key", [key for key, entry in TEXTS.items() if "label" not in entry])
def test_a_warning_says_what_to_do(key: str) -> None:
    assert bool(ADVICE.search(TEXTS[key]["text"])) is (key not in FACTS)


def test_the_screen_begins_with_the_answer_the_fastest_and_a_measured_doubt() -> None:
    report = make_report(nine_methods(), sort="speedup")
    text = drawn(report, width=80, is_full=False)
    names = [title for title in TITLES.values() if title != "Vanilla"]
    rows = [line for line in text.splitlines() if line.startswith(tuple(names)) and "±" in line]
    speeds = [float(found[0]) for row in rows if (found := re.findall(r"([\d.]+)x", row))]
    assert len(speeds) > 5 and speeds == sorted(speeds, reverse=True)
    assert re.search(r"is [\d.]+x as fast as \S+, the next", " ".join(text.split()))


def test_a_wide_screen_has_more_tasks_and_no_name_or_page_is_broken() -> None:
    run = full_run(("vanilla", "pld", "eagle2:depth=5,total_tokens=40"))
    narrow, wide = (drawn(run, width=width, is_full=False) for width in (80, 120))
    assert narrow.count("n=8") < wide.count("n=8")
    for text in (narrow, wide):
        assert re.search(r"EAGLE-2 \(depth=5,\s+total_tokens=40\)", text)
        assert "--repeats 3" in text and max(map(len, text.splitlines())) <= 120


def test_the_page_has_tiles_both_themes_a_fixed_first_column_and_intervals_below() -> None:
    text = render(answering(), "html")
    outline = Outline(text)
    tiles = text.partition('<dl class="figures">')[2].partition("</dl>")[0]
    assert tiles.count("<dt>") >= 3 and "tokens/s" in tiles
    assert "prefers-color-scheme: dark" in text
    assert re.search(r"tbody th[^}]*position: sticky; left: 0", text)
    assert re.search(r"\dx(</b>)?<small>", render(nine_methods(), "html"))
    assert {"h1", "nav", "figure", "button"} <= {tag for tag, _ in outline.tags}


def test_the_live_table_has_speed_accepted_tokens_and_the_time_left() -> None:
    stream = Console(file=StringIO(), force_terminal=True, width=80, height=24, color_system=None)
    with progress_view(console=stream) as view:
        view.started(4)
        view.sample_finished(record("pld", decode_s=0.25))
    assert isinstance(stream.file, StringIO)
    text = stream.file.getvalue()
    assert all(word in text for word in ("tok/s", "MAT", "1/4", "left"))
