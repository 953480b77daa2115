"""Servers in reports: tables, notes, warnings and plots. The texts are in a golden file."""

import csv
import json
from io import StringIO

import pytest

from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.log.run import Run
from specbench.report.build import make_report
from specbench.report.commands import full_command
from tests.analysis.test_server_steps import ACCEPTING, of_counts
from tests.judge.changing import with_header
from tests.report.drawing import LOADS, render, report_of, served
from tests.support.headers import values_of
from tests.support.texts import assert_in


def test_the_document_and_the_csv_have_the_numbers_of_every_load() -> None:
    runs = json.loads(render(report_of(served), "json"))["runs"]
    assert [run_facts["loads"][0]["concurrency"] for run_facts in runs] == [1, 8, 0]
    assert runs[1]["serving"][1]["output_throughput"]["value"] == pytest.approx(8.8)
    rows = csv.DictReader(StringIO(render(report_of(served), "csv")))
    assert [*dict.fromkeys(row["load"] for row in rows)] == [load.text for load in LOADS]


def test_both_plots_show_one_run_over_its_loads() -> None:
    plots = {plot.name: plot for plot in report_of(served).plots}
    assert "8.8 tokens/s of all requests at 8 requests at once" in plots["frontier"].alt
    assert "2 times as fast at 1 request at a time" in plots["speedup_by_load"].alt
    assert "requests/s" not in plots["speedup_by_load"].alt
    assert "requests at once" in plots["speedup_by_load"].images.svg.decode()
    assert "Throughput" in render(report_of(served), "html")
    runs = [with_header(served(), id=name) for name in "ab"]
    assert {plot.name for plot in make_report(runs).plots} == {"speedup", "speedup_by_mat"}


def test_a_bound_of_one_run_among_several_names_it() -> None:
    runs = [with_header(of_counts(ACCEPTING, stop), id=stop) for stop in ("eos", "budget")]
    notes = make_report(runs, Bootstrap(50)).notes
    (text,) = [note.text for note in notes if note.key == "least_mat"]
    assert text.startswith("run eos: the MAT of sps is at least 1.67")


@pytest.mark.parametrize(
    ("software", "phrase"),
    [
        ("vLLM 0.32.0", "vLLM 0.32.0"),
        ("vLLM unknown", "vLLM, version unknown"),
        ("unknown", "version unknown"),
        ("llama.cpp b11434-unknown", "llama.cpp b11434"),
    ],
)
def test_the_phrase_about_an_engine_has_its_version_if_it_is_known(
    software: str, phrase: str
) -> None:
    header = with_header(served(), servers__eagle3__software=software).header
    assert header.servers["eagle3"].software_phrase == phrase


def restarted() -> Run:
    """A run in which one block of vanilla has no counters, and all others have."""
    served_run = served(counters={"num_drafts": 9.0, "num_accepted": 8.0})
    blocks = values_of(served_run.header)["blocks"]
    return with_header(
        served_run, blocks=[*blocks, {**blocks[0], "task": "alpaca", "counters": {}}]
    )


@pytest.mark.parametrize(
    ("served_run", "words"),
    [
        (served(client_s=0.5), "client itself takes"),
        (served(num_retries=1), "refused 4 requests at first"),
        (served(counters={"num_cached_tokens": 7.0}), "took 7 prompt tokens from their prefix"),
        (served(counters={"num_drafts": 9.0, "num_accepted": 0.0}), "0 of 9 drafting steps of"),
        (restarted(), "vanilla lost its counters in 1 block:"),
    ],
)
def test_a_doubtful_number_is_warned_about(served_run: Run, words: str) -> None:
    notes = make_report(served_run, Bootstrap(50)).notes
    assert ("slow_client" in [note.key for note in notes]) == ("client" in words)
    assert any(words in note.text for note in notes if note.is_warning)


def test_the_full_command_names_servers_and_loads() -> None:
    names = ["vanilla", "eagle3"]
    changed = with_header(
        served(),
        spec__values__backend="server",
        spec__values__labels=names,
        spec__values__methods=names,
        spec__values__urls=["http://a:1", "http://b:2"],
        spec__values__request_timeout_s=30.0,
    )
    command = " ".join(full_command(changed.header).split())
    command = command.replace("\\ ", "")
    assert_in(
        command,
        "--url http://a:1 --label vanilla --url http://b:2 --label eagle3",
        "--concurrency 1,8 --request-rate 2.5 --goodput ttft:60 --request-timeout 30",
    )
