"""The table, its layout on a terminal, and the export formats.

The table of texts turns a note's key and numbers into a sentence.
"""

import json
import re
import tomllib
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len

from specbench.report import export, texts
from specbench.report.console import text_table, wrapped
from specbench.report.export import FORMATS, load_format
from specbench.report.export.json import SCHEMA
from specbench.report.formats import at_least, num_bytes
from specbench.report.layout import draw
from specbench.report.table import Cell, Column, Group, Row, Table
from specbench.report.texts import make_note
from tests.report.drawing import EVERY_RUN, Make, one_sample, render, report_of
from tests.support.printing import printed


def table(*columns: Column) -> Table:
    cells = tuple(Cell(f"{i}.00") for i, _ in enumerate(columns))
    return Table("", columns, (Group("", (Row("pld", "PLD", cells),)),))


def shown(drawn_table: Table, width: int) -> str:
    return printed(lambda console: [*map(console.print, draw(drawn_table, width))], width)


def test_the_column_of_highest_rank_is_dropped_first() -> None:
    drawn_table = table(Column("stays"), Column("second", rank=1), Column("first", rank=2))
    for width, words in (
        (40, ["stays", "second", "first"]),
        (24, ["stays", "second"]),
        (14, ["stays"]),
    ):
        assert re.findall("stays|second|first", shown(drawn_table, width)) == words


def test_columns_that_may_not_be_dropped_continue_in_a_further_table() -> None:
    drawn_table = table(*(Column("MAT", f"Task-{i}") for i in range(4)))
    assert shown(drawn_table, 60).count("Method") == 1
    text = shown(drawn_table, 25)
    assert text.count("Method") == text.count("PLD") > 1
    assert all(f"Task-{i}" in text for i in range(4))


def test_every_file_of_export_is_a_format() -> None:
    stems = {path.stem for path in Path(export.__path__[0]).glob("*.py")} - {"__init__", "terminal"}
    assert set(FORMATS) == {"table", *stems}
    report = report_of(one_sample)
    names: list[str] = []
    for name in FORMATS:
        assert load_format(name).render(report)
        names += load_format(name).files(report)
    assert len(names) == len(set(names))


ROOT = Path(texts.__file__).parents[1]
TEXTS = tomllib.loads((ROOT / "report" / "texts.toml").read_text(encoding="utf-8"))


def test_every_text_belongs_to_a_note_of_the_code() -> None:
    files = [*(ROOT / "report").rglob("*.py"), *(ROOT / "analysis").glob("*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in files)
    named = {key for key in TEXTS if f'"{key}"' in code}
    by_arithmetic = {f"{name}_{of}" for name in ("formula", "speedup") for of in ("ours", "paper")}
    assert set(TEXTS) - named <= by_arithmetic


ADVICE = re.compile(
    r"(^|[.!:\]}] ?)\[? ?"
    r"(Repeat|Keep|Stop|Raise|Run|Use|Turn|Lower|See|Check|Compare|Read|Continue)\b|`specbench "
)
FACTS = (
    "more_warnings running failed_run incomplete failed_completions left_out recorded survived "
    "slow_baseline interrupted_blocks long_drafts long_prompts passed_ends busy imported_oddity "
    "changed_weights impossible_speedup"
)
"""The warnings that state a fact about the run. The others ask for something."""


def test_a_warning_says_what_to_do_or_is_a_fact() -> None:
    warnings = {key: entry["text"] for key, entry in TEXTS.items() if "label" not in entry}
    silent = {key for key, text in warnings.items() if not ADVICE.search(text)}
    assert silent == {*FACTS.split()}


@pytest.mark.parametrize("make", EVERY_RUN)
def test_the_document_is_strict_json_with_the_numbers_of_each_sentence(make: Make) -> None:
    report = report_of(make)
    document = json.loads(render(report, "json"), parse_constant=pytest.fail)
    assert (document["schema"], document["kind"]) == (SCHEMA, "specbench report")
    notes = document["notes"]
    assert [note["text"] for note in notes] == [note.text for note in report.notes]
    for note in notes:
        assert note["key"] in TEXTS
        required = re.sub(r"\[[^\[\]]*\{[^\[\]]*\]", "", TEXTS[note["key"]]["text"])
        assert set(re.findall(r"\{(\w+)", required)) <= set(note["numbers"])
        assert not re.search(r"[{}]|\bNone\b|, ,|  ", note["text"])


def test_a_clause_is_left_out_if_its_number_is_missing() -> None:
    values = {"methods": [{"method": "pld", "failed": 2}, {"method": "sps", "failed": 1}]}
    failed = make_note("failed_completions", error="{methods} [{error}]", **values)
    assert failed.text == "Failed completions: pld 2, sps 1. The first error: {methods} [{error}]"
    assert failed.is_warning and failed.label == "Warning"
    modes = [
        {"mode": "graph", "reason": None, "methods": []},
        {"mode": "eager", "reason": "too large", "methods": ["pld", "sps"]},
    ]
    steps = make_note("steps", modes=modes, kernels="torch", reason="too old").text
    assert steps == (
        "CUDA graphs; operations launched one by one for pld, sps (too large); "
        "layers by torch (too old)"
    )
    assert (
        make_note("gpu", clock=None, power={"min": 70.2, "mean": 80.0, "max": 99.6}).text
        == "70 to 100 W (mean 80)"
    )
    cells = [{"method": str(place), "task": None} for place in range(9)]
    missing = make_note("missing", reason="it was not run", cells=cells).text
    assert missing == "It was not run: 0, 1, 2, 3, 4, 5 and 3 more."


def test_large_numbers_are_written_in_full() -> None:
    assert (num_bytes(999.9e9), at_least(3, 1234.4)) == ("1000 GB", "1234")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_prose_wraps_at_words_on_a_terminal_and_names_and_commands_stay_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    command = "specbench run --model org/a-name-that-is-long --output results/20261123 --resume"
    text = (
        "The connection to the server of the Hugging Face Hub failed (ConnectError).\n"
        f"Continue with: {command}\nSee https://example.org/a-very-long-address/of-some-page or "
        "`specbench show tiny` for more of it.\n推測的復号 の モデル が どこ に も 見つかりません。"
    )
    lines = wrapped(text, Terminal()).split("\n")
    assert command in lines
    assert "https://example.org/a-very-long-address/of-some-page" in lines
    assert any("`specbench show tiny`" in line for line in lines)
    assert " ".join(lines).split() == text.split()
    assert all(cell_len(line) <= 40 for line in lines if " " in line and line != command)
    assert wrapped(text, StringIO()) == text


def test_ids_in_a_table_are_not_broken_if_the_last_column_can_wrap() -> None:
    rows = [["llama2-70b-chat", "meta-llama/Llama-2-70b-chat-hf", "one, two, three, four, five"]]
    drawn_table = text_table(["model", "weights", "draft weights"], rows)
    text = printed(lambda console: console.print(drawn_table), 64)
    assert "meta-llama/Llama-2-70b-chat-hf" in text and "five" in text
