"""The reports in git of recorded runs are up to date.

Texts are compared whole, numbers to nine digits, since processors round sums differently.
Plots, and the page that holds them, are compared where they were made by the matplotlib that
is installed; another one places words elsewhere. The page then still has to carry the digest
of today's numbers.
"""

import re
from math import isclose
from pathlib import Path

import matplotlib
import pytest

from specbench.log.store import read_run
from specbench.report.build import make_report, report_files
from specbench.report.export.json import digest

ROOT = Path(__file__).parents[2]
RECORDED = sorted(path.parent for path in (ROOT / "results" / "recorded").glob("*/run.json"))
RUNS = [run for run in RECORDED if (ROOT / "reports" / run.name).is_dir()]
HINT = "stale: run `make reports`"
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@pytest.fixture(autouse=True)
def no_published_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages in the repository hold no prompts of others, so none may be found in the cache."""
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path))


def is_same(one: bytes, other: bytes) -> bool:
    """True if two texts differ only in the last digits of numbers."""
    texts = [content.decode("utf-8") for content in (one, other)]
    words, other_words = (NUMBER.split(text) for text in texts)
    if words != other_words:
        return False
    pairs = zip(*(NUMBER.findall(text) for text in texts), strict=True)
    return all(a == b or isclose(float(a), float(b), rel_tol=1e-9, abs_tol=2e-6) for a, b in pairs)


def test_numbers_are_compared_to_nine_digits_and_words_exactly() -> None:
    assert is_same(b"a 1.00000000012 b", b"a 1.00000000013 b")
    assert not is_same(b"a 1.2345 b", b"a 1.2346 b")
    assert not is_same(b"a 1.5 b", b"a 1.5 c")
    assert not is_same(b"a 12", b"a 1 2")


@pytest.mark.slow
@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.name)
def test_the_report_of_a_recorded_run_is_up_to_date(run: Path) -> None:
    every = report_files(make_report(read_run(run), sort="speedup"))
    now = {name: content for name, content in every.items() if not name.endswith(".png")}
    stored = [*(ROOT / "reports" / run.name).iterdir()]
    ignored = (".png", ".json")  # by git
    then = {path.name: path.read_bytes() for path in stored if path.suffix not in ignored}
    numbers = digest(now.pop("report.json").decode())
    assert set(now) == set(then), HINT
    for name in ("table.md", "table.csv", "table.tex"):
        assert is_same(now[name], then[name]), f"reports/{run.name}/{name} is {HINT}"
    assert f'content="{numbers}"' in then["report.html"].decode(), f"report.html is {HINT}"
    if f"Matplotlib v{matplotlib.__version__}," not in then["speedup.svg"].decode():
        return
    for name in now:
        assert is_same(now[name], then[name]), f"reports/{run.name}/{name} is {HINT}"
