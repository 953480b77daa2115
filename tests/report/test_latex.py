"""The LaTeX table: the golden file, and compilation if a LaTeX engine is installed."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.log.run import Run
from specbench.report.build import make_report
from specbench.report.export.latex import escape, files
from tests.analysis.run_factory import header, make_run, record
from tests.report.drawing import EVERY_RUN, render, report_of, two_models, two_temperatures

ENGINES = {
    "pdflatex": ["-interaction=nonstopmode", "-halt-on-error"],
    "lualatex": ["-interaction=nonstopmode", "-halt-on-error"],
    "tectonic": ["--chatter=minimal"],
}


def test_the_caption_says_by_which_formula_the_speedups_are() -> None:
    """The golden file has the caption for our formula."""
    text = render(make_report(two_models(), arithmetic="paper"), "latex")
    assert "Speedup: the published formula: mean tokens/s" in text


def test_warnings_reach_the_author_as_comments() -> None:
    text = render(report_of(two_temperatures), "latex")
    assert "% Warning: The run was interrupted" in text
    assert "interrupted" not in text.split(r"\begin{table*}")[1]


@given(st.text(max_size=30))
def test_an_escaped_text_has_no_bare_sign_of_latex(text: str) -> None:
    shown = escape(text)
    assert "\n" not in shown
    assert not re.search(r"(?<!\\)[#%&$_]", shown)
    bare = re.sub(r"\\[{}]", "", shown)
    assert bare.count("{") == bare.count("}")


def odd_names() -> Run:
    described = header(["vanilla", "pld", "sps"], ("gsm8k", "alpaca"))
    described["methods"]["pld"]["title"] = r"\end{table*} $x_1^2$ & 50% #~{} --verbose `'\""
    described["methods"]["sps"]["title"] = "方法 ½ é Łódź ß – … ✓"
    described["columns"] = {"gsm8k": "<数学>", "alpaca": "a|b"}
    return make_run([record(), record("pld", decode_s=0.5), record("sps")], described)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_the_table_compiles_as_it_is(engine: str, tmp_path: Path) -> None:
    """The article has only the packages that the table names."""
    if not shutil.which(engine):
        pytest.skip(f"{engine} is not installed (Debian: texlive-latex-recommended)")
    for make in (*EVERY_RUN, odd_names):
        folder = tmp_path / make.__name__
        folder.mkdir()
        report = make_report(make())
        for name, content in files(report).items():
            (folder / name).write_text(content, encoding="utf-8")
        text = files(report)["table.tex"]
        (folder / "article.tex").write_text(article(text), encoding="utf-8")
        assert "Overfull" not in compiled(engine, folder, "article"), make.__name__
        assert (folder / "article.pdf").stat().st_size > 5000


def article(table: str) -> str:
    packages = re.findall(r"^%\s+(\\usepackage.*)$", table, re.MULTILINE)
    assert len(packages) == 2
    margins = r"\usepackage[margin=25mm,a4paper]{geometry}"
    parts = [r"\documentclass{article}", *packages, margins, r"\begin{document}"]
    return "\n".join([*parts, r"Text.\input{table}", r"\end{document}"])


def compiled(engine: str, folder: Path, name: str) -> str:
    command: list[Any] = [engine, *ENGINES[engine], f"{name}.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout
