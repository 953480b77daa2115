"""The files of a report: Markdown, CSV and plots.

The JSON document has every number once and no NaN, and equals the golden file.
"""

import math
import re
from pathlib import Path
from unittest import mock

import pytest

from specbench.analysis.metrics import measure
from specbench.errors import RunFolderError
from specbench.log.run import Run
from specbench.report.build import make_report, write_report
from specbench.report.export import FORMATS
from specbench.report.export.json import digest, plain
from tests.analysis.run_factory import failed, header, make_run, record
from tests.report.drawing import (
    all_failed,
    no_baseline,
    one_sample,
    render,
    report_of,
    with_phases,
)
from tests.support.products import each_once

FAST = record("pld", accept_lengths=[3, 1])
MADE = (one_sample, no_baseline, all_failed, make_run, with_phases)
ODD: dict[str, Run] = {
    **{make.__name__: make() for make in MADE},
    "only the baseline": make_run([record(), record(sample="b")]),
    "the baseline failed": make_run([failed("vanilla"), FAST]),
    "unicode": make_run([record(sample="数学/🙂"), record("größe:名=値", "数学/🙂")]),
    "a cell missing": make_run([record(), FAST, record(task="alpaca")]),
    "two temperatures": make_run(
        [record(method, temperature=t) for t in (0.0, 1.0) for method in ("vanilla", "pld")]
    ),
    "one token each": make_run([record(accept_lengths=()), record("pld", accept_lengths=())]),
    "no time passed": make_run([record(decode_s=0.0), record("pld", decode_s=0.0)]),
}


@pytest.mark.parametrize(("name", "arithmetic"), each_once([*ODD], ["ours", "paper"]))
def test_every_format_is_rendered_without_nan(name: str, arithmetic: str) -> None:
    report = make_report(ODD[name], arithmetic=arithmetic)
    for form in FORMATS:
        shown = re.sub(
            r"<(style|script|svg).*?</\1>|base64,[^\"')]*", "", render(report, form), flags=re.S
        )
        assert not re.search(r"\b([Nn]a[Nn]|[Ii]nf|Infinity|None)\b", shown), form


def test_a_report_measures_a_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "deep" / "report"
    paths = write_report(report_of(one_sample), folder)
    names = {path.name for path in paths}
    assert {"table.md", "table.csv", "table.tex", "report.json"} <= names
    assert {"report.html", "speedup.png", "speedup.svg", "positions.svg"} <= names
    assert sorted(folder.iterdir()) == sorted(paths)
    before = [path.read_bytes() for path in paths]
    counted = mock.Mock(wraps=measure)
    monkeypatch.setattr("specbench.report.build.measure", counted)
    assert [path.read_bytes() for path in write_report(make_report(one_sample()), folder)] == before
    assert counted.call_count == 1


def test_plots_are_written_as_pdf_on_request(tmp_path: Path) -> None:
    report = report_of(one_sample)
    without, with_pdf = (
        {path.name for path in write_report(report, tmp_path, has_pdf=has_pdf)}
        for has_pdf in (False, True)
    )
    assert with_pdf - without == {f"{plot.name}.pdf" for plot in report.plots} != set()
    assert {"methods.bib", "table.tex"} <= without


def test_a_report_that_cannot_be_written_names_the_folder(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.write_text("mine")
    with pytest.raises(RunFolderError, match="file"):
        write_report(report_of(one_sample), taken)
    assert taken.read_text() == "mine"


def test_markdown_in_names_and_long_errors_do_not_break_a_document() -> None:
    described = header(["vanilla", "pld"], ("gsm8k",))
    described["methods"]["pld"]["title"] = "a|b\n*c*"
    error = "\x1b[31mout of memory\x07\nTraceback ..."
    records = [record(), record("pld"), failed("pld", "b", error=error)]
    text = render(make_run(records, described), "markdown")
    assert "| a\\|b \\*c\\* |" in text
    (line,) = (line for line in text.splitlines() if "Failed completions" in line)
    assert "out of memory" in line
    assert "Traceback" not in text and "\x1b" not in text


def test_nan_is_written_as_missing() -> None:
    missing = {"missing": "not a finite number"}
    assert plain({"a": math.nan, "b": [math.inf]}) == {"a": missing, "b": [missing]}


def test_a_digest_ignores_only_rounding() -> None:
    assert digest('{"a": 1.2345678901}') == digest('{"a": 1.2345678902}')
    assert digest('{"a": 1.23456}') != digest('{"a": 1.23457}')
    assert digest('{"a": 1}') != digest('{"a": 2}')
