"""The figures of README.md and of the pages on GPUs and servers have a source.

A sentence with a measured unit is followed by `<!-- from: results/recorded/RUN -->` or
`<!-- from: results/published/TABLE -->`, has a link to results/published, or is an exception. The
numbers of a sentence that names a run are in the run's report, or in the README's table of the run;
the speedups of one that names a table are in that table.
"""

import csv
import re
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.support.paths import ROOT

PAGES = (
    "README.md", "docs/gpu.md", "docs/serving.md", "docs/serving_counts.md",
    "docs/measurements/gpu.md", "docs/measurements/serving.md",
)  # fmt: skip
EXCEPTIONS = {
    "`--request-timeout S`": "a default",
    "The report warns": "a threshold",
    "Every block records": "a threshold",
    "With one request at a time, MAT must be": "a tolerance of a test",
    "These are impossible: a negative count": "a tolerance",
    "If the whole interval of a decode speedup": "a threshold",
    "With a gain of 3 % the kernel enters": "a threshold",
}
"""The beginnings of sentences whose figures were not measured, with the reasons."""

_MARK = re.compile(r"<!-- from: results/(?P<kind>recorded|published)/(?P<name>[\w.-]+) -->")
_UNIT = re.compile(r"\d\s?(?:x|%|ms|s|tok/s|tokens/s|minutes|MB|GB|GiB|J|[GT]B/s)(?![\w/])")
_NUMBER = re.compile(r"(?<![\w.-])\d[\d,]*(?:\.\d+)?")
_SPEEDUP = re.compile(r"(\d+\.(\d+))x")
_GENERATED = re.compile(
    r"<!-- (table|calculated|explained)(?:: [^>]*)? -->.*?<!-- /\1 -->", re.DOTALL
)
_CODE = re.compile(r"```.*?```", re.DOTALL)


class Sentence(NamedTuple):
    """A sentence of a page, and the recorded run or the published table that it names."""

    text: str
    run: str = ""
    table: str = ""


def sentences(page: str) -> Iterator[Sentence]:
    """The sentences and table rows of a page, without code and generated tables."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for paragraph in re.split(r"\n\s*\n", _CODE.sub("", _GENERATED.sub("", text))):
        if paragraph.startswith("|"):
            yield from (Sentence(row) for row in paragraph.splitlines())
            continue
        joined = " ".join(paragraph.split())
        for piece in re.split(r"(?<=[.!?])\s+(?=[A-Z`\"*\[-])|(?<=-->)\s+", joined):
            mark = _MARK.search(piece)
            names = {"recorded": "", "published": ""}
            if mark:
                names[mark["kind"]] = mark["name"]
            yield Sentence(_MARK.sub("", piece).strip(), names["recorded"], names["published"])


def known_numbers(run: str) -> set[str]:
    """The numbers of a recorded run's report, and of the README's table of the run."""
    report = (ROOT / "reports" / run / "table.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    generated = re.search(r"<!-- table -->.*?<!-- /table -->", readme, re.DOTALL)
    assert generated
    # Each table is followed by the link to its run.
    before_link = generated[0].partition(f"(results/recorded/{run})")
    table = before_link[0].rpartition("[Recorded run](results/recorded/")[2]
    is_shown = bool(before_link[1])
    return set(_NUMBER.findall(report)) | (set(_NUMBER.findall(table)) if is_shown else set())


def published_speedups(table: str, digits: int) -> set[str]:
    """The speedups of a published table, rounded to this number of digits."""
    with (ROOT / "results" / "published" / f"{table}.csv").open(newline="") as file:
        speedups = [row["speedup"] for row in csv.DictReader(file) if row["speedup"]]
    return {f"{float(speedup):.{digits}f}" for speedup in speedups}


ALL = [
    pytest.param(page, sentence, id=f"{page}: {sentence.text[:60]}")
    for page in PAGES
    for sentence in sentences(page)
    if _UNIT.search(sentence.text) or sentence.run or sentence.table
]


@pytest.mark.parametrize(("page", "sentence"), ALL)
def test_a_measured_figure_has_its_source(page: str, sentence: Sentence) -> None:
    if sentence.run:
        reported = known_numbers(sentence.run)
        missing = [number for number in _NUMBER.findall(sentence.text) if number not in reported]
        assert missing == [], f"{page}: not in reports/{sentence.run}/table.md"
        return
    if sentence.table:
        for text, decimals in _SPEEDUP.findall(sentence.text):
            assert text in published_speedups(sentence.table, len(decimals)), sentence.text
        return
    is_published = "results/published" in sentence.text
    is_exception = any(begin in sentence.text for begin in EXCEPTIONS)
    assert is_published or is_exception, f"{page}: a figure without a source"


@pytest.mark.parametrize("page", PAGES)
def test_every_mark_follows_a_sentence_with_numbers(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    marked = [sentence for sentence in sentences(page) if sentence.run or sentence.table]
    assert len(marked) == len(_MARK.findall(_CODE.sub("", _GENERATED.sub("", text))))
    for sentence in marked:
        assert _NUMBER.search(sentence.text), sentence.text


def test_the_readme_is_short() -> None:
    """At most 1,000 words without the cells of its tables."""
    text = _GENERATED.sub("", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).split()) <= 1000
