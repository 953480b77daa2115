"""The table of texts makes one sentence of a note's key and numbers."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from specbench.report import texts
from specbench.report.build import make_report
from specbench.report.texts import note
from tests.report.drawing import EVERY_RUN, render

ROOT = Path(texts.__file__).parents[1]
TEXTS = tomllib.loads((ROOT / "report" / "texts.toml").read_text(encoding="utf-8"))


def test_every_text_belongs_to_a_note_of_the_code() -> None:
    files = [*(ROOT / "report").glob("*.py"), *(ROOT / "analysis").glob("*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in files)
    named = {key for key in TEXTS if f'"{key}"' in code}
    by_arithmetic = {f"{name}_{of}" for name in ("formula", "speedup") for of in ("ours", "paper")}
    assert set(TEXTS) - named <= by_arithmetic


@pytest.mark.parametrize("make", EVERY_RUN)
def test_the_document_has_the_numbers_of_each_sentence(make: type) -> None:
    report = make_report(make())
    found = json.loads(render(report, "json"))["notes"]
    assert [one["text"] for one in found] == [one.text for one in report.results.notes]
    for one in found:
        assert one["key"] in TEXTS
        required = re.sub(r"\[[^\[\]]*\{[^\[\]]*\]", "", TEXTS[one["key"]]["text"])
        assert set(re.findall(r"\{(\w+)", required)) <= set(one["numbers"])
        assert not re.search(r"[{}]|\bNone\b|, ,|  ", one["text"])


def test_a_clause_goes_without_its_number_and_values_are_no_templates() -> None:
    values = {"methods": [{"method": "pld", "failed": 2}, {"method": "sps", "failed": 1}]}
    failed = note("failed_completions", error="{methods} [{error}]", **values)
    assert failed.text == "Failed completions: pld 2, sps 1. The first error: {methods} [{error}]"
    assert failed.is_warning and failed.label == "Warning"
    modes = [
        {"mode": "graph", "reason": None, "methods": []},
        {"mode": "eager", "reason": "too large", "methods": ["pld", "sps"]},
    ]
    steps = note("steps", modes=modes)
    assert steps.text == "CUDA graphs; one by one for pld, sps (too large)"
    assert note("gpu", clock=None, power={"min": 70.2, "mean": 80.0, "max": 99.6}).text == (
        "70 to 100 W (mean 80)"
    )
    cells = [{"method": str(place), "task": None} for place in range(9)]
    missing = note("missing", reason="it was not run", cells=cells).text
    assert missing == "It was not run: 0, 1, 2, 3, 4, 5 and 3 more."
