"""Explanations of published cells. Rounding makes their numbers uncertain."""

import json
from pathlib import Path

import pytest

from specbench.analysis.metrics import measure
from specbench.cli.app import app
from specbench.errors import UserError
from specbench.judge.explained_cells import explain_cells
from specbench.judge.explanation_formats import ExplainedDocument, render_explanation
from specbench.log.store import read_run
from tests.analysis.run_factory import number
from tests.judge.tables import RUN, write_table
from tests.log.exchange.files import answer, imported, write_lines

SEED = "eagle2:vicuna-13b/{}/mt_bench,temperature=0"
CSV = """table,temperature,model,method,task,speedup,mean_accepted_tokens,tokens_per_s,load,\
num_draft_tokens,time_per_token_s,acceptance_rate
table,0,m,eagle,chat,3.03,3.5,60.5,1,3,0.02,0.5
table,0,m,eagle,chat,2,2.80,40,8,5,0.03,0
table,0,m,plain,chat,,,20,1,,0.05,
table,0,m,timed,chat,,,,1,,0.05,
"""


@pytest.fixture
def table(tmp_path: Path) -> str:
    return f"{write_table(tmp_path, CSV)}:m/"


def factors(document: ExplainedDocument) -> dict[str, float]:
    (explanation,) = document.explanations
    assert explanation["remainder"] == pytest.approx(1, abs=1e-12)
    return {row["factor"]: row["effect"] for row in explanation["factors"]}


def test_two_cells_differ_by_mat_and_the_rest(table: str) -> None:
    document = explain_cells([f"{table}eagle/chat,load=1", f"{table}eagle/chat,load=8"])
    ratio = 3.03 / 2
    assert factors(document) == pytest.approx(
        {"MAT": 3.5 / 2.8, "the rest": ratio / (3.5 / 2.8)}, rel=1e-12
    )
    (explanation,) = document.explanations
    assert explanation["quantity"] == "speedup" and explanation["ratio"] == pytest.approx(ratio)
    others = {row["factor"]: row["effect"] for row in explanation["other_numbers"]}
    assert others == pytest.approx({"tokens/s": 60.5 / 40, "seconds per token after it": 2 / 3})
    assert explanation["settings"] == ["requests at once: 1 against 8", "draft tokens: 3 against 5"]
    assert explanation["not_separable"] == [
        "averaging, counting, prompts, cost and prefill: tables have no answers, so these factors "
        "are in the rest"
    ]
    assert "nothing is claimed" in document.tables.notes[0].text


def test_printed_digits_bound_a_factor(table: str) -> None:
    (explanation,) = explain_cells([f"{table}eagle/chat,load=1"]).explanations
    bounds = {
        row["factor"]: (row["low_by_digits"], row["high_by_digits"])
        for row in explanation["factors"]
    }
    assert bounds["MAT"] == pytest.approx((3.45, 3.55))  # one decimal: 2.80 is read as 2.8
    assert bounds["the rest"] == pytest.approx((3.025 / 3.55, 3.035 / 3.45))
    # This cell is printed as 2, but its column has two decimals.
    (explanation,) = explain_cells([f"{table}eagle/chat,load=8"]).explanations
    (rest,) = [row for row in explanation["factors"] if row["factor"] == "the rest"]
    assert rest["low_by_digits"] == pytest.approx(1.995 / 2.85)


def test_without_mat_there_is_one_factor(table: str) -> None:
    document = explain_cells([f"{table}eagle/chat,load=1", f"{table}plain/chat"])
    assert factors(document) == {"the rest": pytest.approx(60.5 / 20)}
    (explanation,) = document.explanations
    assert explanation["quantity"] == "tokens/s"
    assert explanation["not_separable"][0].startswith("MAT, averaging")
    with pytest.raises(UserError, match="no speedup or tokens/s in common: seconds per token"):
        explain_cells([f"{table}timed/chat", f"{table}plain/chat"])


def test_a_cell_is_explained_against_a_run() -> None:
    cell = SEED.format("eagle2")
    document = explain_cells([cell, RUN], ("", "eagle2"))
    measured = measure(read_run(Path(RUN))).cell("eagle2", 0.0, "mt_bench")
    assert factors(document)["MAT"] == pytest.approx(4.83 / number(measured.mat), rel=1e-12)
    (explanation,) = document.explanations
    assert explanation["ratio"] == pytest.approx(4.26 / number(measured.speedup), rel=1e-12)
    assert any(text.startswith("model: vicuna-13b against") for text in explanation["settings"])


def test_an_imported_run_beside_a_cell_has_only_the_facts_of_its_files(
    table: str, tmp_path: Path
) -> None:
    run = imported(tmp_path, f"eagle={write_lines(tmp_path / 'e.jsonl', answer(1), answer(2))}")
    (explanation,) = explain_cells([f"{table}eagle/chat,load=8", str(run.folder)]).explanations
    assert explanation["settings"] == [
        "model: m against m-temperature-0.0",
        "task: chat against all tasks",
    ]
    assert explanation["ratio"] == pytest.approx(40 / 12) and explanation["quantity"] == "tokens/s"
    assert "40.0 against 12.0" in explanation["sentence"]


def test_the_command_explains_cells_in_every_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = [SEED.format("eagle2"), SEED.format("sps")]
    with pytest.raises(SystemExit):
        app(["compare", *cells, "--explain", "--out", str(tmp_path)], prog_name="specbench")
    text = capsys.readouterr().out
    assert "A's speedup is 2.207 times B's" in text and "x2.128   2.121–2.135" in text
    page = (tmp_path / "explanation.html").read_text(encoding="utf-8")
    assert '<rect class="up faint"' in page and "x2.128" in page
    values = json.loads((tmp_path / "explanation.json").read_text(encoding="utf-8"))
    assert values == json.loads(render_explanation(explain_cells(cells), "json"))
    assert "the rest" in (tmp_path / "explanation.md").read_text(encoding="utf-8")
    with pytest.raises(UserError, match="--load is for runs"):
        app(["compare", *cells, "--explain", "--load", "8", "1"], prog_name="specbench")
