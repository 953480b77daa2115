"""The LaTeX table: the golden file, and compilation if a LaTeX engine is installed."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench import __version__
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.errors import UserError
from specbench.log.folders import read_runs
from specbench.log.run import Run
from specbench.registry import get
from specbench.report.build import for_paper, make_report, parse_columns
from specbench.report.export.bibtex import files as files_of_bibtex
from specbench.report.export.bibtex import papers
from specbench.report.export.latex import files
from specbench.report.latex_text import escape
from specbench.report.results import COLUMNS, Report
from tests.analysis.run_factory import TASKS, TITLES, full_run, header, make_run, record
from tests.report.drawing import EVERY_RUN, render, report_of, two_models, two_temperatures
from tests.support.paths import RECORDED_RUNS

ENGINES = {
    "pdflatex": ["-interaction=nonstopmode", "-halt-on-error"],
    "lualatex": ["-interaction=nonstopmode", "-halt-on-error"],
    "tectonic": ["--chatter=minimal"],
}


def test_the_caption_names_the_formula_of_the_speedups() -> None:
    """The golden file has the caption for our formula."""
    text = render(make_report(two_models(), arithmetic="paper"), "latex")
    assert "Speedup: the published formula: mean tokens/s" in text


def test_warnings_reach_the_author_as_comments() -> None:
    text = render(report_of(two_temperatures), "latex")
    assert "% Warning: The run was interrupted" in text
    assert "interrupted" not in text.split(r"\begin{table*}")[1]


@given(st.text(max_size=30))
def test_an_escaped_text_has_no_active_sign_of_latex(text: str) -> None:
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


def chosen_by_auto() -> Run:
    """Twelve methods with long settings, as `auto` on a CPU gives them."""
    methods = [*TITLES, "eagle3:depth=2,top_k=4", "eagle3:depth=5", "medusa:tree=4x2x1"]
    described = header(methods)
    for number, method in enumerate(methods[3:]):
        described["methods"][method] |= {
            "options": {"total_tokens": 12 + number, "depth": 3, "weights": "a/long/folder/head"},
            "settings": {"source": "cut", "paper": {"total_tokens": 60, "depth": 7}},
        }
    described["threads"] = {"num": 2, "chosen_by": "measured", "waiting": "brief"}
    described["threads"]["methods"] = {"vanilla": 2, "eagle2": 1}
    described["model"] |= {"label": "Q4_1 → bfloat16"}
    described["prompts"] = [{"task": task} for task in TASKS]
    return make_run(full_run(methods).records, described)


def many_tasks() -> Run:
    tasks = {f"task{number}": f"A long title {number}" for number in range(11)}
    with patch.dict(TASKS, tasks):
        return full_run(("vanilla", "pld", "eagle2"), tuple(tasks))


def every_table() -> Iterator[tuple[str, Report]]:
    """The tables that must fit: of hand-made runs, of a run with `auto`, and of recorded runs."""
    for make in (*EVERY_RUN, odd_names, chosen_by_auto, many_tasks):
        yield make.__name__, make_report(make(), Bootstrap(50))
    auto = make_report(chosen_by_auto(), Bootstrap(50))
    for columns in ("speedup,mean", "mat", "mean"):
        report = for_paper(auto, parse_columns(columns), ["eagle2"])
        yield f"auto-{columns.replace(',', '-')}", report
    for folder in RECORDED_RUNS:
        yield folder.name, make_report(read_runs(folder), Bootstrap(50))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_every_table_fits_a_two_column_article(engine: str, tmp_path: Path) -> None:
    """One article contains all tables. It loads only the packages that the tables name."""
    if not shutil.which(engine):
        pytest.skip(f"{engine} is not installed (Debian: texlive-latex-recommended)")
    names = []
    for name, report in every_table():
        (tmp_path / f"{name}.tex").write_text(files(report)["table.tex"], encoding="utf-8")
        names.append(name)
    text = (tmp_path / f"{names[0]}.tex").read_text(encoding="utf-8")
    (tmp_path / "article.tex").write_text(article(text, names), encoding="utf-8")
    said = compiled(engine, tmp_path, "article")
    log = tmp_path / "article.log"
    text = log.read_text(errors="replace") if log.exists() else said
    assert len(names) == len(RECORDED_RUNS) + 13
    wide = re.search(r"Table of \S+(?=(?:(?!Table of).)*Overfull)", text, re.DOTALL)
    assert "Overfull" not in said and not wide, wide
    sizes = {float(size) for size in re.findall(r"\\(?:T1|TU|O\w+)/\w+/\w+/\w+/([\d.]+) ", text)}
    assert engine == "tectonic" or min(sizes) == 7, sizes
    assert (tmp_path / "article.pdf").stat().st_size > 5000


def article(table: str, names: Sequence[str]) -> str:
    packages = re.findall(r"^%\s+(\\usepackage.*)$", table, re.MULTILINE)
    assert len(packages) == 2
    parts = [r"\documentclass[twocolumn,a4paper]{article}", *packages, r"\begin{document}"]
    # The log has the font of each character on a page.
    parts.append(r"\tracingoutput=1\showboxbreadth=10000\showboxdepth=10000")
    for name in names:
        parts.append(rf"\typeout{{Table of {name}}}Text.\input{{{name}}}\clearpage")
    return "\n".join([*parts, r"\end{document}"])


def compiled(engine: str, folder: Path, name: str) -> str:
    command: list[Any] = [engine, *ENGINES[engine], f"{name}.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    return done.stdout


def test_settings_are_notes_below_the_table_and_labels_are_short() -> None:
    text = render(make_report(chosen_by_auto()), "latex")
    table, _, notes = text.partition(r"\end{tabular}")
    assert "paper" not in table.partition(r"\begin{tabular}")[2]
    assert r"EAGLE-2 (" in table and "; paper: 60 nodes, 8 levels" in notes
    assert r"Q4\_1 \ensuremath{\to} bfloat16" in text
    for command in ("tiny", "scriptsize", "footnotesize", "resizebox", "scalebox"):
        assert rf"\{command}" not in text


@pytest.mark.parametrize(
    ("columns", "headings", "has_mean", "has_tasks"),
    [
        ("speedup,mat,mean", ("Speedup", r"$\tau$"), True, True),
        ("speedup,mean", ("Speedup",), True, True),
        ("mat", (r"$\tau$",), False, True),
        ("mean", ("Speedup", r"$\tau$"), True, False),
    ],
)
def test_columns_are_chosen(
    columns: str, headings: Sequence[str], has_mean: bool, has_tasks: bool
) -> None:
    text = render(for_paper(report_of(two_models), parse_columns(columns), ()), "latex")
    head = text.partition(r"\toprule")[2].partition(r"\midrule")[0]
    assert {word for word in ("Speedup", r"$\tau$") if word in head} == {*headings}
    assert ("{Mean}" in head, "{GSM8K}" in head) == (has_mean, has_tasks)
    assert "Mean: the arithmetic" in text or not has_mean
    row = next(line for line in text.splitlines() if line.startswith("EAGLE-2"))
    num_tasks = 2 * has_tasks + has_mean
    assert row.count("&") == num_tasks * len(headings)


def test_our_row_is_marked_and_unknown_names_are_refused() -> None:
    report = report_of(two_models)
    text = render(for_paper(report, COLUMNS, ["EAGLE-2"]), "latex")
    assert len(re.findall(r"^\\specbenchours\{EAGLE-2\} &", text, re.MULTILINE)) == 2
    assert text.count(r"\specbenchours{") == 2
    with pytest.raises(UserError, match="No method in these runs 'eagle5'"):
        for_paper(report, COLUMNS, ["eagle5"])
    with pytest.raises(UserError, match="No column 'speed'"):
        parse_columns("speed,mat")


def test_a_bibliography_includes_the_papers_of_methods_that_methods_use() -> None:
    described = header(("vanilla", "sps", "sam"), ("gsm8k",))
    described["methods"]["sam"]["options"] = {"other": "eagle3"}
    described["methods"]["mine"] = {"title": "Mine", "options": {"other": "eagle2:depth=5"}}
    records = [record(method) for method in described["methods"]]
    text = render(make_run(records, described), "bibtex")
    keys = re.findall(r"^@\w+\{(\w+),", text, re.MULTILINE)
    assert keys == ["specbench", "sps", "sam", "eagle3", "eagle2"]
    assert "No paper is known for Mine" in text and __version__ in text
    assert text.count("{") == text.count("}")
    assert files_of_bibtex(make_report(make_run(records, described))) == {"methods.bib": text}


@pytest.mark.parametrize("name", sorted(papers().keys() - {"specbench"}))
def test_the_entry_of_a_method_has_the_author_and_the_year_that_it_declares(name: str) -> None:
    declared = re.match(r"(\S+) (?:et al\. )?(\d{4})", get(name).paper)
    assert declared
    author, year = declared.groups()
    entry = papers()[name]
    assert re.search(rf"author\s*= \{{+{author}\b", entry), entry
    assert re.search(rf"year\s*= \{{{year}\}}", entry), entry
    assert re.search(r"url\s*= \{https://\S+\},", entry), entry
