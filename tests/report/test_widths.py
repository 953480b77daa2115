"""The layout of pages in a browser, at the widths of a telephone and of a laptop."""

import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.judge.page import write_site
from specbench.log.run import Run
from specbench.log.store import read_run
from specbench.report.arrange import Sort
from specbench.report.build import make_report
from tests.analysis.run_factory import full_run
from tests.judge.changing import with_header
from tests.report.browser import Browser
from tests.report.drawing import render
from tests.support.paths import RECORDED_RUNS

WIDTHS = (400, 1280)
LAYOUT = Path(__file__).with_name("layout.js").read_text(encoding="utf-8")
SPELLINGS = (
    *("vanilla", "pld:ngram=2,num_tokens=10,min_ngram=1", "pld:ngram=3,num_tokens=20,min_ngram=2"),
    *("sps:num_tokens=5", "lookahead", "medusa", "hydra", "eagle"),
    *("eagle2:depth=5,top_k=8,total_tokens=60", "eagle2:depth=7,top_k=10,total_tokens=48"),
    *("eagle3:weights=/srv/checkpoints/some-organisation/eagle3-vicuna-13b-v1.3-longer", "eagle3"),
)
"""Twelve methods with long settings."""


def long_settings() -> Run:
    """A run of twelve methods with long settings."""
    return full_run(SPELLINGS, num_samples=4)


@cache
def page_of(name: str) -> str:
    if name == "long_settings":
        run = long_settings()
    else:
        run = read_run(next(path for path in RECORDED_RUNS if path.name == name))
    return render(make_report(run, Bootstrap(100)), "html")


PAGES = ("long_settings", *(path.name for path in RECORDED_RUNS))


@pytest.fixture(autouse=True)
def no_published_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path))


def layout_problems(chromium: Browser, page: Path) -> list[str]:
    """The problems in a page's layout at each width."""
    problems = []
    for width in WIDTHS:
        chromium.resize(width)
        chromium.open(page)
        chromium.run("for (const part of document.querySelectorAll('details')) part.open = true;")
        chromium.wait_for_frames()
        problems += [f"{width}: {problem}" for problem in chromium.run(LAYOUT)]
    return problems


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_report_fits_any_width(name: str, chromium: Browser, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    page.write_text(page_of(name), encoding="utf-8")
    assert layout_problems(chromium, page) == []


@pytest.mark.slow
def test_the_site_fits_any_width(chromium: Browser, tmp_path: Path) -> None:
    write_site(RECORDED_RUNS, tmp_path, bootstrap=Bootstrap(50), say=lambda text: None)
    assert layout_problems(chromium, tmp_path / "index.html") == []


@pytest.mark.slow
def test_a_page_that_is_too_wide_has_problems(chromium: Browser, tmp_path: Path) -> None:
    """Each kind of damage to the style is found as a problem."""
    page = tmp_path / "report.html"
    for damage in (
        ".label { white-space: nowrap !important; max-width: none !important; }",
        ".scroll { overflow: visible !important; }",
        ".scrolls::before { content: none !important; }",
        ".figures dd { white-space: nowrap; }",
        ".whole { white-space: normal; } p, li { max-width: 5.2rem !important; }",
    ):
        text = page_of("long_settings").replace("</style>", f"{damage}</style>")
        page.write_text(text, encoding="utf-8")
        assert layout_problems(chromium, page), damage


class Methods(HTMLParser):
    """The names of methods in the first column of each table body of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[str]] = []
        self._is_name = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tbody":
            self.tables.append([])
        if tag == "th" and ("scope", "row") in attrs:
            self._is_name = True
            self.tables[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self._is_name = self._is_name and tag != "th"

    def handle_data(self, data: str) -> None:
        if self._is_name:
            self.tables[-1][-1] += data


@pytest.mark.parametrize(
    ("sort", "in_order"),
    [
        ("speedup", ["EAGLE-2", "SpS", "PLD", "Vanilla"]),
        ("paper", ["Vanilla", "PLD", "EAGLE-2", "SpS"]),
    ],
)
def test_a_page_has_one_order_of_methods(sort: Sort, in_order: list[str]) -> None:
    run = full_run(("vanilla", "pld", "eagle2", "sps"), num_samples=3)
    report = make_report(run, Bootstrap(50), sort)
    tables = Methods(render(report, "html")).tables
    assert len(tables) >= 5
    for names in tables:
        assert names == [name for name in in_order if name in names]
    (plot,) = [plot for plot in report.plots if plot.name == "speedup"]
    shown = re.findall(r"(EAGLE-2|SpS|PLD) \d", plot.alt)
    assert shown == [name for name in in_order if name != "Vanilla"]


def test_one_pass_is_one_grey_note_without_colours() -> None:
    coloured = re.compile(r'<td class="[^"]*(green|red|yellow)')
    texts = [render(make_report(run, Bootstrap(50)), "html") for run in (full_run(), two_passes())]
    assert [bool(coloured.search(text)) for text in texts] == [False, True]
    assert [text.count("Measured in one pass") for text in texts] == [1, 0]


def two_passes() -> Run:
    """Each prompt twice, the second time a little slower."""
    run = full_run()
    again = [
        replace(record, key=replace(record.key, repeat=1), decode_s=(record.decode_s or 0) * 1.01)
        for record in run.records
    ]
    changed = with_header(run, spec__values__repeats=2)
    return replace(changed, records=(*run.records, *again))
