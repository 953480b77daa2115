"""The files of a report: Markdown, CSV and plots.

The JSON document: every number once, no NaN, and the golden file.
"""

import json
import math
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specbench.errors import RunFolderError
from specbench.report.build import make_report, write_report
from specbench.report.export.json import SCHEMA, digest, plain
from tests.analysis.run_factory import failed, header, make_run, record
from tests.report.drawing import EVERY_RUN, all_failed, no_baseline, one_sample, render


def test_markdown_signs_in_names_do_not_break_a_table() -> None:
    described = header(["vanilla", "pld"], ("gsm8k",))
    described["methods"]["pld"]["title"] = "a|b\n*c*"
    text = render(make_run([record(), record("pld")], described), "markdown")
    assert "| a\\|b \\*c\\* |" in text


@pytest.mark.parametrize("make", [one_sample, no_baseline, all_failed, make_run])
def test_csv_has_no_nan(make: type) -> None:
    text = render(make(), "csv")
    assert "nan" not in text.lower()
    assert "inf" not in text.lower()
    frame = pd.read_csv(StringIO(text))
    for value in frame.select_dtypes("number").to_numpy().ravel():
        assert isfinite(value) or pd.isna(value)


def test_a_report_writes_its_files_and_leaves_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "report"
    paths = write_report(make_report(one_sample()), folder)
    names = {path.name for path in paths}
    assert {"table.md", "table.csv", "table.tex", "report.json"} <= names
    assert {"report.html", "speedup.png", "speedup.svg", "positions.svg"} <= names
    assert sorted(folder.iterdir()) == sorted(paths)
    before = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in write_report(make_report(one_sample()), folder)] == before


def test_a_report_that_cannot_be_written_names_the_folder(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("mine")
    with pytest.raises(RunFolderError, match="file"):
        write_report(make_report(one_sample()), taken)
    assert taken.read_text() == "mine"


def test_an_error_text_of_many_lines_is_one_line_of_the_footer() -> None:
    records = [record(), failed("pld", error="\x1b[31mout of memory\x07\nTraceback ...")]
    text = render(make_run(records, header(["vanilla", "pld"], ("gsm8k",))), "markdown")
    line = next(line for line in text.splitlines() if "Failed completions" in line)
    assert "out of memory" in line
    assert "Traceback" not in text
    assert "\x1b" not in text


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize("make", EVERY_RUN)
def test_the_document_is_strict_json_and_says_what_it_is(make: Any) -> None:
    document = json.loads(render(make(), "json"), parse_constant=refuse)
    assert document["schema"] == SCHEMA
    assert document["kind"] == "specbench report"


def test_nan_is_written_as_missing() -> None:
    assert plain({"a": math.nan, "b": [math.inf]}) == {
        "a": {"missing": "not a finite number"},
        "b": [{"missing": "not a finite number"}],
    }


def test_a_digest_ignores_rounding_and_nothing_else() -> None:
    assert digest('{"a": 1.2345678901}') == digest('{"a": 1.2345678902}')
    assert digest('{"a": 1.23456}') != digest('{"a": 1.23457}')
    assert digest('{"a": 1}') != digest('{"a": 2}')
