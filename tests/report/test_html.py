"""The HTML page is self-contained, readable at every width, and free of repetition.

It shows answers, and where their steps end.
"""

import re
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from markupsafe import escape
from msgspec import structs

from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.data.prompts import load_prompt_sets, plan_tasks
from specbench.log.run import Run
from specbench.report.answers import SAMPLES_PER_TASK, pick_answers
from specbench.report.build import make_report
from tests.analysis.run_factory import failed, full_run, header, make_run, record
from tests.judge.changing import with_header
from tests.report.browser import Browser, problems_of
from tests.report.drawing import EVERY_RUN, render, report_of
from tests.support.ends import wait_until
from tests.support.texts import assert_in

RUNS = {make.__name__: make for make in EVERY_RUN}
VOID = {"meta", "link", "img", "br", "hr", "input"}


def page(run: Any) -> str:
    return render(make_report(run, Bootstrap(200)), "html")


@cache
def page_of(name: str) -> str:
    return render(report_of(RUNS[name]), "html")


def answering() -> Run:
    """Three samples of two tasks with the same text: PLD takes one step, vanilla three."""
    written: dict[str, Any] = {"text": "one <b> & two", "token_ids": (5, 6, 7, 8)}
    written["token_ends"] = (3, 7, 9, 13)
    records = []
    for task in ("gsm8k", "alpaca"):
        for sample in "012":
            at: dict[str, Any] = {"task": task, "prefill_s": 0.1}
            plain = record(sample=sample, **at)
            quick = record("pld", sample, **at, accept_lengths=[3], decode_s=0.3)
            records += [replace(record, **written) for record in (plain, quick)]
            records.append(failed("sps", sample, task=task))
    return make_run(records, header(["vanilla", "pld", "sps"], ("gsm8k", "alpaca")))


class Outline(HTMLParser):
    """A parser of start tags with their attributes. It checks that elements are closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.mark.parametrize(
    "name", ["nine_methods", "two_temperatures", "two_models", "all_failed", "make_run"]
)
def test_a_page_is_self_contained(name: str) -> None:
    outline = Outline(page_of(name))
    assert not any("src" in attributes for attributes in outline.of("script"))
    assert not re.search(r"fetch\(|XMLHttp|import\(|WebSocket", page_of(name))
    assert not outline.of("iframe")
    assert {link["href"] for link in outline.of("link")} == {"data:,"}
    sources = [str(image["src"]) for image in outline.of("img")]
    assert all(source.startswith("data:image/svg+xml;") for source in sources)
    style = page_of(name).partition("<style>")[2].partition("</style>")[0]
    assert style and "@import" not in style and "url(" not in style


def test_names_are_escaped() -> None:
    run = make_run([record(), record("pld")], header(["vanilla", "pld"], ("gsm8k",)))
    text = page(
        with_header(
            run,
            methods__pld__title="<script>alert(1)</script>",
            columns__gsm8k="a & b",
            command=["run", "--model", "my <model>; rm -r"],
        )
    )
    assert "<script>alert" not in text
    assert_in(text, "a &amp; b", "'my &lt;model&gt;; rm -r'")


def test_published_values_are_shown_beside_ours() -> None:
    model = {"name": "vicuna-13b", "label": "Vicuna 13B", "is_stand_in": False, "dtype": "float16"}
    run = full_run(("vanilla", "eagle2"), ("mt_bench",), model=model)
    text = page(run)
    assert "Published and measured here" in text
    assert "4.26x" in text  # the EAGLE-2 paper's Vicuna 13B on MT-bench
    assert "https://arxiv.org/abs/2406.16858" in text
    assert "4.26x" not in page(with_header(run, model__is_stand_in=True))


def test_the_page_has_the_answers_of_the_first_samples_of_each_task() -> None:
    text = page(answering())
    assert text.count("<details>") == 2 * SAMPLES_PER_TASK
    assert "<summary>GSM8K, 1</summary>" in text
    assert "<summary>GSM8K, 2</summary>" not in text
    assert_in(
        text,
        '<h4>Vanilla, PLD</h4>\n<p class="answer">one &lt;b&gt; &amp; two</p>',
        "SpS failed: boom",
    )


def test_the_page_has_tiles_both_themes_a_fixed_first_column_and_intervals_below() -> None:
    text = page(answering())
    tiles = text.partition('<dl class="figures">')[2].partition("</dl>")[0]
    assert tiles.count("<dt>") >= 3 and "tokens/s" in tiles
    assert "prefers-color-scheme: dark" in text
    assert re.search(r"tbody th[^}]*position: sticky; left: 0", text)
    assert re.search(r"\dx(</b>)?<small>", page_of("nine_methods"))
    assert {"h1", "nav", "figure", "button"} <= {tag for tag, _ in Outline(text).tags}


def test_a_method_slower_than_vanilla_is_never_called_fastest() -> None:
    records = [record(), record("pld", decode_s=8.0)]
    text = page(make_run(records, header(["vanilla", "pld"], ("gsm8k",))))
    assert "<dt>Closest to vanilla</dt><dd>0.12x</dd>" in text and "Highest speedup" not in text


def test_the_page_has_the_prompts_of_its_answers_its_contents_and_short_commands() -> None:
    prompts = load_prompt_sets(plan_tasks(["gsm8k"], "bundled"), "bundled", num_prompts=1)[0]
    run = full_run(("vanilla", "pld", "sps", "eagle2:depth=5,top_k=2"), ("gsm8k",))
    key = replace(run.records[0].key, sample_id=prompts.prompts[0].sample_id)
    about = structs.replace(run.header, prompts=(prompts.describe(),))
    text = render(make_run([replace(run.records[0], key=key), *run.records], about), "html")
    assert str(escape(prompts.prompts[0].turns[0])) in text
    outline = Outline(text)
    ids = {attributes["id"] for _, attributes in outline.tags if "id" in attributes}
    links = [
        str(attributes["href"])[1:]
        for _, attributes in outline.tags
        if str(attributes.get("href")).startswith("#")
    ]
    assert len(links) > 4 and ids >= {*links}
    whole = '<span class="whole">--method</span>'
    assert f"{whole} pld,sps " in text and f"{whole} eagle2:depth=5,top_k=2" in text


@pytest.mark.parametrize(
    ("text", "lengths", "ends", "steps"),
    [
        # The bonus token is not part of the draft.
        ("abcdefgh", (2, 1), (2, 3, 7, 8), [(0, 2), (3, 7), (7, 8)]),
        # An older record's text is shared evenly among its tokens.
        ("abcdefgh", (2, 1), (), [(0, 2), (4, 6), (6, 8)]),
        # A server counts an end token that is not in its text. The ends are those of the text.
        ("abcdef", (2, 1), (2, 4, 6), [(0, 1), (3, 4), (4, 6)]),
        # An answer without steps is shown as a whole.
        ("abcdefgh", (), (), [(0, 2), (2, 4), (4, 6), (6, 8)]),
    ],
)
def test_steps_end_where_their_tokens_end(
    text: str,
    lengths: tuple[int, ...],
    ends: tuple[int, ...],
    steps: list[tuple[int, int]],
) -> None:
    answer_record = record(accept_lengths=lengths, token_ids=range(4))
    answer_record = replace(answer_record, text=text, token_ends=ends)
    (answers,) = pick_answers(make_run([answer_record], header(["vanilla"], ["gsm8k"])))
    (answer,) = answers.replay()["answers"]
    assert answer["steps"] == steps
    assert (answer["exact"], answer["counted"]) == (len(ends) == 4, bool(lengths))


def test_shown_answers_are_those_of_the_first_repeat() -> None:
    records = [
        record(sample="7", turn=1, temperature=1.0),
        record(sample="7", temperature=0.0),
        record(sample="8", repeat=1),
    ]
    picked = pick_answers(make_run(records, header(["vanilla"], ["gsm8k"], (0.0, 1.0))))
    assert [shown.title for shown in picked] == ["GSM8K, 7, turn 2, T=1", "GSM8K, 7, T=0"]


def test_a_replay_has_each_text_once_and_leaves_failures_out() -> None:
    records = [record(), record("pld"), failed("sps")]
    (answers,) = pick_answers(make_run(records, header(["vanilla", "pld", "sps"], ["gsm8k"])))
    replay = answers.replay("Run 1: ")
    assert replay["title"] == "Run 1: GSM8K, a"
    assert replay["texts"] == [""]
    assert [answer["method"] for answer in replay["answers"]] == ["Vanilla", "PLD"]
    assert answers.failed == {"SpS": "boom"}


def opened(chromium: Browser, folder: Path, text: str, width: int = 1280) -> Path:
    """Show this page in the browser, and return its file."""
    path = folder / "report.html"
    path.write_text(text, encoding="utf-8")
    chromium.resize(width)
    chromium.open(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_page_has_no_errors_and_no_sideways_scrolling(
    name: str, chromium: Browser, tmp_path: Path
) -> None:
    assert problems_of(chromium, opened(chromium, tmp_path, page_of(name))) == []
    images = chromium.run(
        "return [...document.images].map(i => [i.alt.length, i.naturalWidth, i.width])"
    )
    assert all(alt and natural and shown for alt, natural, shown in images)


@pytest.mark.slow
def test_the_replay_writes_each_answer_in_its_steps(chromium: Browser, tmp_path: Path) -> None:
    opened(chromium, tmp_path, page(answering()), 390)
    shown = "return [...document.querySelectorAll('.pane .text')].map(p => p.innerHTML)"
    press = "document.querySelectorAll('#replay button')[{}].click()".format
    assert chromium.run(shown) == ['<span class="step">one</span>'] * 3  # the first frame
    chromium.run(press(1))  # PLD's step ends before vanilla's
    vanilla, pld, _ = chromium.run(shown)
    assert vanilla == '<span class="step">one</span>'
    assert pld == f'{vanilla}<span class="step"><mark> &lt;b&gt; &amp;</mark> two</span>'
    for _ in range(3):
        chromium.run(press(1))
    states = chromium.run("return [...document.querySelectorAll('.state')].map(p => p.textContent)")
    assert states[:2] == [
        "4 tokens in 3 steps, 1.10 s: 3.6 tokens/s",
        "4 tokens in 1 step, 0.40 s: 10.0 tokens/s",
    ]
    text = "return [...document.querySelectorAll('.pane .text')].map(p => p.textContent)"
    assert chromium.run(text) == ["one <b> & two"] * 3
    chromium.run(press(2))
    chromium.run("document.querySelectorAll('.controls select')[1].value = 1")
    chromium.run(press(0))
    assert wait_until(lambda: chromium.run(text) == ["one <b> & two"] * 3)
    assert chromium.console() == []


@pytest.mark.slow
def test_text_has_enough_contrast_in_light_and_dark(chromium: Browser, tmp_path: Path) -> None:
    """All text has the contrast of 4.5 to 1 that WCAG 2 requires for small text."""
    for scheme in ("light", "dark"):
        chromium.colours(scheme)
        opened(chromium, tmp_path, page_of("two_temperatures"))
        worst = chromium.run(_CONTRAST)
        assert worst["ratio"] >= 4.5, f"{scheme}: {worst}"


_CONTRAST = """
const part = v => { v /= 255; return v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4; };
const light = ([r, g, b]) => .2126 * part(r) + .7152 * part(g) + .0722 * part(b);
const rgb = text => text.match(/[\\d.]+/g).map(Number);
const ground = e => {
  for (; e; e = e.parentElement) {
    const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length === 3 || c[3] > 0) return c;
  }
  return [255, 255, 255];
};
let worst = {ratio: 99};
for (const e of document.querySelectorAll("body *")) {
  if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
  const [a, b] = [light(rgb(getComputedStyle(e).color)), light(ground(e))];
  const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  if (ratio < worst.ratio) worst = {ratio, text: e.textContent.slice(0, 40), tag: e.tagName};
}
return worst;
"""


@pytest.mark.slow
def test_a_click_on_a_heading_sorts_a_table_of_the_report(
    tmp_path: Path, chromium: Browser
) -> None:
    opened(chromium, tmp_path, page_of("nine_methods"))
    for row, cell, first in ((2, 1, "EAGLE-3"), (1, 1, "EAGLE")):  # speedup, then the names
        click = f"document.querySelector('.paper thead tr:nth-child({row}) th:nth-child({cell})')"
        chromium.run(f"{click}.click()")
        top = chromium.run("return document.querySelector('.paper tbody tr th').textContent")
        assert top == first
    assert chromium.run("return document.querySelector('.task').textContent") == "Mean"
    assert chromium.console() == []
