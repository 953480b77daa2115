"""Mapping files, shipped or a user's own, turn aggregates into published tables."""

import csv
import re
from collections import Counter
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from msgspec.structs import replace

from specbench.analysis.break_even import crossing
from specbench.analysis.cells import CellKey
from specbench.analysis.metrics import measure
from specbench.errors import UserError
from specbench.log.exchange.mapping import Column, read_cells, read_mapping, shipped_mappings
from specbench.log.exchange.source import read_source
from specbench.log.exchange.tables import ImportedTable, read_table, table_mapping, write_table
from specbench.report.published import read_publication
from tests.analysis.run_factory import number
from tests.log.exchange.files import (
    PUBLISHED,
    about,
    imported,
    needs_published,
    published,
    write_lines,
)
from tests.log.exchange.test_vllm_bench import RESULT


def table_of(*paths: Path) -> ImportedTable:
    sources = [read_source(path) for path in paths]
    mapping = table_mapping(sources[0], None)
    assert mapping
    return read_table(sources, mapping)


@needs_published
def test_specforges_best_settings_match_its_dashboard() -> None:
    table = table_of(published("specforge/data.json"))
    assert len(table.cells) == 740
    best: dict[tuple[str, str], dict[str, Any]] = {}
    for cell in table.cells:
        key = cell["task"], cell["method"]
        if cell["tokens_per_s"] > best.setdefault(key, cell)["tokens_per_s"]:
            best[key] = cell
    kinds = Counter(
        "tree" if cell["settings"].split()[1] != "1" else cell["settings"].split()[0]
        for (_, method), cell in best.items()
        if method != "vanilla"
    )
    assert kinds == {"7": 33, "5": 24, "3": 23, "tree": 9}
    (oddity,) = table.sources[0].oddities
    assert "Spec for ge" in oddity and "two spellings" in oddity


@needs_published
def test_draftbenchs_speedups_differ_from_its_readmes() -> None:
    cells = table_of(published("draftbench/qwen25-72b.json")).cells
    for target, slowest, fastest in (("72B Q8_0", 6.45, 19.33), ("72B Q4_K_M", 9.36, 18.74)):
        rates = {cell["method"]: cell["tokens_per_s"] for cell in cells if cell["model"] == target}
        assert (rates["vanilla"], max(rates.values())) == (slowest, fastest)


@needs_published
def test_golden_lengths_become_cells_per_number_of_drafts() -> None:
    cells = table_of(published("inferencex/dsv4_mtp.yaml")).cells
    lengths = {(c["settings"], c["num_draft_tokens"]): c["mean_accepted_tokens"] for c in cells}
    assert len(lengths) == 16
    assert (lengths["thinking_on", 1], lengths["thinking_off", 8]) == (1.79, 3.11)


@needs_published
def test_the_vllm_study_breaks_even_between_loads_32_and_64() -> None:
    cells = table_of(*sorted((PUBLISHED / "vllm-sglang-study").glob("*.json"))).cells
    assert len(cells) == 24

    def speedup(load: int, repeats: tuple[int, ...] = (0, 1, 2)) -> float:
        rates = {
            method: mean(
                cell["tokens_per_s"]
                for cell in cells
                if (cell["method"], cell["load"]) == (method, load) and cell["repeat"] in repeats
            )
            for method in ("eagle3", "vanilla")
        }
        return rates["eagle3"] / rates["vanilla"]

    def break_even(repeats: tuple[int, ...]) -> float:
        return crossing((32, 64), [speedup(load, repeats) for load in (32, 64)])

    assert [round(speedup(load), 2) for load in (32, 64)] == [1.22, 0.97]
    assert round(break_even((0, 1, 2))) == 58
    assert sorted(round(break_even((repeat,))) for repeat in range(3)) == [57, 58, 59]


@needs_published
@pytest.mark.parametrize(("backend", "num_equal"), [("cuda", 6), ("vulkan", 8)])
def test_hashes_show_that_outputs_differ(backend: str, num_equal: int, tmp_path: Path) -> None:
    path = published("consumer-gpus/results.json")
    run = imported(tmp_path, f"gpu={path}", baseline=f"gpu {backend} baseline")
    cell = measure(run).cells[CellKey(f"gpu {backend} draft_0_5b", 0.0, "unknown")]
    assert number(cell.match_rate) == num_equal / 12
    if backend == "cuda":
        figures = {(f.method, f.name): f.value for f in about(run).figures}
        assert round(figures["gpu cuda draft_0_5b", "MAT"], 2) == 3.68
        assert round(figures["gpu cuda draft_0_5b", "tokens/s"], 1) == 22.0
        assert round(figures["gpu cuda baseline", "tokens/s"], 1) == 84.7


def test_a_table_is_read_back_as_a_publication(tmp_path: Path) -> None:
    totals = {name: RESULT[name] for name in RESULT if name not in ("itls", "ttfts")}
    table = table_of(write_lines(tmp_path / "\N{ROCKET}.json", totals))
    toml_path, csv_path = write_table(table, tmp_path / "tables" / "bench")
    with csv_path.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["model"], row["load"], row["tokens_per_s"]) == ("m", "2.0", "2.0")
    (value,) = read_publication(toml_path)
    assert (value.model, value.tokens_per_s, value.load, value.speedup) == ("m", 2.0, 2.0, None)
    assert value.publication.files == {"\N{ROCKET}.json": table.sources[0].sha256}
    with pytest.raises(UserError, match="exists already"):
        write_table(table, tmp_path / "tables" / "bench")
    with pytest.raises(UserError, match="is a folder"):
        write_table(table, Path())


def test_a_users_mapping_reads_a_csv(tmp_path: Path) -> None:
    path = tmp_path / "m.toml"
    path.write_text("""
title = "mine"
tool = "mine"
has = []
gives = "cells"
rows = ""
[columns]
model = { path = "Model" }
method = { path = "Kind", words = { base = "vanilla" } }
task = { path = "task", default = "chat" }
time_per_token_s = { path = "ms", scale = 0.001 }
speedup = { path = "x" }
""")
    table = tmp_path / "t.csv"
    table.write_text("Model,Kind,ms,x\nm,base,20,1\nm,eagle,10,2\n")
    cells = read_table([read_source(table)], read_mapping(path)).cells
    assert [(cell["method"], cell["speedup"], cell["task"]) for cell in cells] == [
        ("vanilla", 1.0, "chat"),
        ("eagle", 2.0, "chat"),
    ]
    for wrong in ("fast", "nan", "inf"):
        table.write_text(f"Model,Kind,ms,x\nm,base,{wrong},1\n")
        with pytest.raises(UserError, match=f"line 2: ms: expected a number, found '{wrong}'"):
            read_table([read_source(table)], read_mapping(path))
    path.write_text("title = 3")
    with pytest.raises(UserError, match="is not a mapping"):
        read_mapping(path)


@pytest.mark.parametrize(
    ("row", "text"), [({}, "d"), ({"q": "a"}, "a"), ({"q": "a", "r": "b"}, "a b")]
)
def test_a_column_from_two_paths_has_one_default(
    row: dict[str, str], text: str, tmp_path: Path
) -> None:
    mapping = shipped_mappings()["sglang_bench_speculative"]
    settings = Column(path="q + r", default="d")
    mapping = replace(mapping, rows="", columns={"settings": settings})
    source = read_source(write_lines(tmp_path / "f.jsonl", {"x": 1, **row}))
    assert read_cells(mapping, source) == [{"settings": text}]


def test_a_row_of_answers_with_an_error_is_a_failed_answer(tmp_path: Path) -> None:
    path = tmp_path / "answers.toml"
    path.write_text("""
title = "answers of a tool"
tool = "a tool"
has = ["tokens"]
gives = "answers"
rows = ""
[columns]
tokens = { path = "tokens" }
accepted = { path = "accepted" }
total_s = { path = "seconds", scale = 10.0 }
error = { path = "error" }
""")
    good = {"tokens": 5, "seconds": 1.0, "error": False}
    rows = [good, good | {"error": "false"}, {"tokens": 3, "seconds": 2.0, "error": "cut off"}]
    answers = write_lines(tmp_path / "answers.jsonl", *rows)
    records = imported(tmp_path, f"m={answers}", mapping=read_mapping(path)).records
    answer, second_answer, failure = records
    assert answer.is_ok and answer.num_tokens == second_answer.num_tokens == 5
    assert (failure.is_ok, failure.num_tokens, failure.error) == (False, 0, "cut off")
    assert failure.imported and failure.imported.published_tokens == 3
    wrong_columns = {
        "accepted": (-3, "0 or more, found -3"),
        "seconds": (1e308, "a number, found 1e+308 (scale 10)"),
    }
    for column, (wrong, expected) in wrong_columns.items():
        write_lines(answers, good | {column: wrong})
        with pytest.raises(UserError, match=re.escape(f"line 1: {column}: expected {expected}")):
            imported(tmp_path, f"m={answers}", mapping=read_mapping(path))


SGLANG = {
    "batch_size": 1,
    "steps": 3,
    "topk": 1,
    "num_draft_tokens": 4,
    "acc_length": 2.5,
    "step_time": 0.01,
    "speed": 250.0,
    "completion_tokens": 99,
}
SERVING = {
    "backend": "sglang",
    "dataset_name": "random",
    "duration": 3.0,
    "max_concurrency": 8,
    "total_output_tokens_retokenized": 90,
    "output_throughput": 30.0,
    "accept_length": 2.1,
    "mean_ttft_ms": 50.0,
    "mean_tpot_ms": 8.0,
}
BENCH = {
    "model": "m",
    "gsm8k": [
        {
            "batch_size": 1,
            "steps": 3,
            "topk": 1,
            "num_draft_tokens": 4,
            "metrics": [{"latency": 2.0, "output_throughput": 70.0, "accept_length": 2.2}],
        }
    ],
}


@pytest.mark.parametrize(
    ("content", "name", "rate", "mat"),
    [
        (SGLANG, "sglang_bench_speculative", 250.0, 2.5),
        (SERVING, "sglang_bench_serving", 30.0, 2.1),
        (BENCH, "specforge_bench", 70.0, 2.2),
    ],
)
def test_each_shipped_mapping_reads_a_file_in_its_format(
    content: dict[str, Any], name: str, rate: float, mat: float, tmp_path: Path
) -> None:
    table = table_of(write_lines(tmp_path / "f.jsonl", content))
    (cell,) = table.cells
    assert table.mapping is shipped_mappings()[name]
    assert (cell["tokens_per_s"], cell["mean_accepted_tokens"]) == (rate, mat)


def test_an_unknown_format_or_a_missing_method_gives_one_message(tmp_path: Path) -> None:
    other = read_source(write_lines(tmp_path / "a.json", {"a": 1}))
    assert table_mapping(other, None) is None
    sources = [read_source(write_lines(tmp_path / "b.json", {**BENCH, "model": ""})), other]
    mapping = shipped_mappings()["specforge_bench"]
    with pytest.raises(UserError, match="a row has no model"):
        read_table(sources[:1], mapping)
    with pytest.raises(UserError, match=r"a.json: it is not a file of SpecForge's bench_eagle3"):
        read_table(sources[1:], mapping)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "a: [1", "expected YAML"),
        ("a.yaml", "a: !!python/object:os.system {}", "expected YAML"),
        ("a.csv", 'a,b\n"x,1\n', "expected CSV|it is none of"),
        ("a.csv", "model,method\n", r"a\.csv: the file has no values"),
    ],
)
def test_damaged_yaml_or_csv_gives_one_message(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_table([read_source(path)], shipped_mappings()["inferencex"])
