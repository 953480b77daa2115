"""Servers in reports: tables, notes, warnings and plots."""

import csv
import json
from io import StringIO
from typing import Any

import msgspec
import pytest

from specbench.log.backend import BlockHeader, ServerHeader
from specbench.log.run import Load, Run
from specbench.report.build import make_report
from specbench.report.facts import full_command
from specbench.report.report import Report
from specbench.types import Record
from tests.analysis.run_factory import make_run
from tests.analysis.test_serving import ACCEPTING, answer, block, of_counts, run
from tests.judge.changing import with_header
from tests.report.drawing import render

LOADS = (Load(concurrency=1), Load(concurrency=8), Load(request_rate=2.5))


def served(*, goodput: str = "ttft:60", num_retries: int = 0, **more: Any) -> Run:
    """EAGLE-3 is twice as fast as vanilla at one request, and slower at eight."""
    records: list[Record] = []
    blocks: list[BlockHeader] = []
    for load, ratio in zip(LOADS, (2.0, 0.8, 1.0), strict=True):
        for method, speed in (("vanilla", 1.0), ("eagle3", ratio)):
            counts: dict[str, Any] = {"num_accepted": 5, "num_drafts": 4}
            own = {**counts, "num_retries": num_retries} if speed == ratio else {}
            records += [answer(method, i, load, wall_s=1 / speed, **own) for i in range(4)]
            blocks.append(block(method, load, duration_s=4 / speed, **more))
    made = run(records, blocks, LOADS, goodput=goodput)
    server = ServerHeader(
        url="http://127.0.0.1:8000", software="vLLM 0.32.0", model="tiny", protocol="completions"
    )
    return make_run(made.records, msgspec.structs.replace(made.header, servers={"eagle3": server}))


@pytest.fixture(scope="module")
def report() -> Report:
    return make_report(served())


def test_the_work_of_servers_is_not_that_of_other_programs() -> None:
    shares, clocks = (
        {"min": 0.1, "mean": 0.6, "max": 0.9},
        {"min": 2400, "mean": 2500, "max": 2600},
    )
    use = {"num_samples": 60, "interval_s": 1.0, "share_of_others": shares, "clock_mhz": clocks}
    text = render(with_header(served(), cpu=use), "markdown")
    assert "**Processor:** clock 2400 to 2600 MHz" in text
    assert "ther programs" not in text


def test_each_load_has_rows_of_its_own_in_every_table(report: Report) -> None:
    text = render(report, "markdown")
    for load in ("1 request at a time", "8 requests at once", "2.5 requests/s"):
        assert text.count(f"*{load} (1.0 in flight, at most 4)*") >= 3
    assert "| eagle3 | 2.00 | 22 |" in text and "| 1.0 (4) |" in text
    assert "TTFT mean" in text and "E2E p99" in text
    block_ = "A block, the requests of a method on a task at a load"
    assert f"{block_}, is one sample of the machine." in text


def test_the_document_has_the_numbers_of_every_load(report: Report) -> None:
    runs = json.loads(render(report, "json"))["runs"]
    assert [one["loads"][0]["concurrency"] for one in runs] == [1, 8, 0]
    assert runs[1]["serving"][1]["output_throughput"]["value"] == pytest.approx(8.8)


def test_the_page_has_both_plots(report: Report) -> None:
    plots = {plot.name: plot for plot in report.plots}
    assert "8.8 tokens/s of all requests at 8 requests at once" in plots["frontier"].alt
    assert "2 times as fast at 1 request at a time" in plots["speedup_by_load"].alt
    assert "requests/s" not in plots["speedup_by_load"].alt
    assert "requests at once" in plots["speedup_by_load"].images.svg.decode()
    assert "Throughput" in render(report, "html")


def test_no_line_over_loads_is_of_two_runs() -> None:
    runs = [with_header(served(), id=name) for name in "ab"]
    assert {plot.name for plot in make_report(runs).plots} == {"speedup", "speedup_by_mat"}


def test_a_bound_of_one_run_among_several_names_it() -> None:
    runs = [with_header(of_counts(ACCEPTING, stop), id=stop) for stop in ("eos", "budget")]
    notes = make_report(runs).results.notes
    (text,) = [one.text for one in notes if one.key == "least_mat"]
    assert text.startswith("run eos: sps: at least 1.67")


def test_a_server_that_lost_its_counters_in_a_block_is_named() -> None:
    made = served(counters={"num_drafts": 9.0, "num_accepted": 8.0})
    last = msgspec.structs.replace(made.header.blocks[0], task="alpaca", counters={})
    header = msgspec.structs.replace(made.header, blocks=(*made.header.blocks, last))
    found = [one.text for one in make_report(make_run(made.records, header)).results.notes]
    (text,) = [text for text in found if "lost its counters" in text]
    assert (
        text.startswith("1 request at a time") and "vanilla lost its counters in 1 block:" in text
    )


@pytest.mark.parametrize(
    ("software", "phrase"),
    [
        ("vLLM 0.32.0", "vLLM 0.32.0"),
        ("vLLM unknown", "vLLM, version unknown"),
        ("unknown", "version unknown"),
        ("llama.cpp b11434-unknown", "llama.cpp b11434"),
    ],
)
def test_an_engine_of_unknown_version_is_called_so(software: str, phrase: str) -> None:
    notes = make_report(with_header(served(), servers__eagle3__software=software)).results.notes
    (text,) = [one.text for one in notes if one.label == "Servers"]
    assert text == f"eagle3: {phrase} at http://127.0.0.1:8000, completions"


def test_the_csv_has_a_column_of_the_load(report: Report) -> None:
    rows = [*csv.DictReader(StringIO(render(report, "csv")))]
    assert list(dict.fromkeys(row["load"] for row in rows)) == [load.text for load in LOADS]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (served(client_s=0.5), "client itself takes"),
        (served(num_retries=1), "refused 4 requests at first"),
        (served(counters={"num_cached_tokens": 7.0}), "took 7 prompt tokens from its prefix cache"),
        (served(counters={"num_drafts": 9.0, "num_accepted": 0.0}), "0 of 9 drafting steps of"),
        (served(), "8 requests at once were at most 4 in some blocks. Use 8 prompts a task"),
    ],
)
def test_a_doubtful_number_is_warned_about(made: Run, words: str) -> None:
    notes = make_report(made).results.notes
    of_client = len(made.loads) if "client" in words else 0
    assert [note.key for note in notes].count("slow_client") == of_client
    assert any(words in note.text for note in notes if note.is_warning)


def test_the_full_command_names_servers_and_loads() -> None:
    names = ["vanilla", "eagle3"]
    values: dict[str, Any] = {"backend": "server", "labels": names, "methods": names}
    values |= {"urls": ["http://a:1", "http://b:2"], "request_timeout_s": 30.0}
    changes = {f"spec__values__{name}": value for name, value in values.items()}
    made = with_header(served(), **changes)
    command = " ".join(full_command(made.header).split()).replace("\\ ", "")
    assert "--url http://a:1 --label vanilla --url http://b:2 --label eagle3" in command
    assert "--concurrency 1,8 --request-rate 2.5 --goodput ttft:60 --request-timeout 30" in command
    assert "--method" not in command
