"""The reports in git of recorded runs are up to date.

Texts are compared whole, numbers to nine digits, since processors round sums differently. Plots are
compared if the installed matplotlib made them; other versions place words elsewhere.
"""

import re
from math import isclose
from pathlib import Path

import matplotlib
import pytest

from specbench.log.store import read_run
from specbench.report.build import make_report, report_files
from tests.support.paths import RECORDED_RUNS, ROOT

RUNS = [run for run in RECORDED_RUNS if (ROOT / "reports" / run.name).is_dir()]
HINT = "stale: run `make reports`"
IN_GIT = (".md", ".svg")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@pytest.fixture(autouse=True)
def no_published_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages in the repository contain no prompts of others, so none may be found in the cache."""
    monkeypatch.setenv("SPECBENCH_CACHE", str(tmp_path))


def is_same(first: bytes, second: bytes) -> bool:
    """True if two texts differ only in the last digits of numbers."""
    texts = [content.decode("utf-8") for content in (first, second)]
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
    files = report_files(make_report(read_run(run), sort="speedup"))
    fresh = {name: content for name, content in files.items() if name.endswith(IN_GIT)}
    stored = {
        path.name: path.read_bytes()
        for path in (ROOT / "reports" / run.name).iterdir()
        if path.name.endswith(IN_GIT)
    }
    assert set(fresh) == set(stored), HINT
    made_with = f"Matplotlib v{matplotlib.__version__},"
    if made_with not in stored["speedup.svg"].decode():
        stored = {name: content for name, content in stored.items() if name.endswith(".md")}
    for name, content in stored.items():
        assert is_same(fresh[name], content), f"reports/{run.name}/{name} is {HINT}"


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.name)
def test_a_report_in_git_is_linked_to(run: Path) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert any(f"reports/{run.name}/" in page.read_text(encoding="utf-8") for page in pages)
