"""Every output shows untrusted text with visible signs in place of control characters."""

import csv
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specbench.data.prompts import Prompt
from specbench.errors import printable, terminal_text, visible
from specbench.log.header import RunHeader
from specbench.log.store import HEADER, RunFolder, header_json, read_header, read_run
from specbench.measure.header import control_warning
from specbench.measure.run_folder import claim_folder
from specbench.report.console import SafeConsole
from specbench.report.export.csv import safe_cell
from specbench.report.export.markdown import escape
from specbench.report.latex_text import escape as latex
from specbench.report.plots.style import Plot, tiles
from specbench.types import Record, RecordKey
from tests.support.backend import answering, fake_plan
from tests.support.headers import make_header, values_of

ESCAPES = "\x1b[31m\x07\r\n\x9b\x7f\u202e\u2028"


def test_control_characters_become_visible_and_letters_stay() -> None:
    assert printable(ESCAPES) == "␛[31m␇␍␊�␡��"
    assert printable("café 漢字 → ½") == "café 漢字 → ½"
    assert printable("\udcff") == "�"


def test_names_in_run_files_are_read_without_control_characters(tmp_path: Path) -> None:
    values = values_of(make_header({"methods": {f"a{ESCAPES}": {"title": ESCAPES}}}))
    values["model"]["label"] = ESCAPES
    header = msgspec.convert(values, RunHeader)
    key = RecordKey(f"a{ESCAPES}", 0.0, "gsm8k", ESCAPES, 0, 0)
    with RunFolder(tmp_path) as folder:
        (tmp_path / HEADER).write_bytes(header_json(header))
        folder.append(Record(key, "error", 1, error=ESCAPES))
    read, (record,) = read_header(tmp_path), read_run(tmp_path).records
    shown = printable(ESCAPES)
    assert (read.model.label, read.method(f"a{shown}").title) == (shown, shown)
    assert (record.key.sample_id, record.error) == (shown, shown)


def test_a_line_of_a_log_is_never_a_command_of_github_actions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    shown = terminal_text("a\n ::error::b ##[error]c")
    assert "::" not in shown and "##[" not in shown and shown.count("\n") == 1
    monkeypatch.delenv("GITHUB_ACTIONS")
    assert terminal_text("torch::jit") == "torch::jit"


def test_an_answer_keeps_its_lines_and_its_length() -> None:
    answer = "a\tb\n\x1b[2J\n ::error::c"
    assert visible(answer) == "a\tb\n␛[2J\n ꞉:error::c"
    assert len(visible(answer)) == len(answer)


def test_a_console_shows_markup_and_escapes_as_they_are() -> None:
    stream = StringIO()
    SafeConsole(file=stream, width=80).print("[bold]a[/] \x1b[31m :smile:")
    assert stream.getvalue() == "[bold]a[/] ␛[31m :smile:\n"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-a", "@SUM(A1)", " =1", "::error::a", "＝1"])
def test_a_cell_that_a_spreadsheet_would_compute_is_text(text: str) -> None:
    assert safe_cell(text) == f"'{text}"
    assert next(csv.reader([safe_cell(text)])) == [f"'{text}"]


@pytest.mark.parametrize("text", ["a;=1", "a|@b", "a\t+1", 'a; "=1'])
def test_a_formula_after_another_separator_is_text(text: str) -> None:
    assert safe_cell(text) == f"{text[:2]}'{text[2:]}"


def test_numbers_and_names_are_cells_as_they_are() -> None:
    assert (safe_cell(-1.5), safe_cell(None), safe_cell("EAGLE-2")) == (-1.5, None, "EAGLE-2")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[a](javascript:b)", r"[a\](javascript:b)"),
        ("![a](http://b)", r"![a\](http:\//b)"),
        ("<img src=x>", r"\<img src=x>"),
        ("www.a.b", r"www\.a.b"),
        ("@someone", r"\@someone"),
        ("&lt;", r"\&lt;"),
        ("::error::", r":\:error:\:"),
        ("1.42x [1.38, 1.46] & ~5 at 12:30", "1.42x [1.38, 1.46] & ~5 at 12:30"),
    ],
)
def test_markdown_from_outside_is_text(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_two_colons_in_latex_are_not_a_command_of_a_ci_system() -> None:
    assert latex("::error::") == ":{}:error:{}:"


@pytest.mark.parametrize("name", ["$x$", "$\\frac{", "a $ b", "\\$", "{}$^"])
def test_a_dollar_in_a_name_is_drawn_as_a_dollar(name: str) -> None:
    def draw() -> Any:
        drawn, (axes,) = tiles(name, name, 1, height=1.0)
        axes.set_xticks([0], [name])
        axes.bar([0], [1], label=name)
        drawn.legend()
        return drawn

    plot = Plot(name, title=name, alt="", caption="", draw=draw)
    assert plot.images.svg.count(name.encode()) == 4
    assert plot.images.png


def test_special_tokens_in_a_prompt_give_a_warning_with_the_samples_id() -> None:
    prompts = [Prompt("a/1", "", ("fine",)), Prompt("a/2", "", ("an end </s> here",))]
    warning = control_warning(fake_plan({"vanilla": answering(1)}, {"a": prompts}, None))
    assert warning is not None and "a/2 (</s>)" in warning and "a/1" not in warning
    assert control_warning(fake_plan({"vanilla": answering(1)}, {"a": prompts[:1]}, None)) is None


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "20261120-120000-tiny"
    claimed = [claim_folder(path) for _ in range(3)]
    assert [folder.name.removeprefix(path.name) for folder in claimed] == ["", "-2", "-3"]
    assert all(folder.is_dir() for folder in claimed)
