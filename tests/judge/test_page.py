"""The site of many runs: its rows, its files, and its page in a browser."""

import json
import re
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from specbench.analysis.metrics import measure
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.errors import RunFolderError
from specbench.judge.page import MEAN, engine_name, run_rows, write_site
from specbench.log.run import Run
from tests.analysis.run_factory import full_run, number
from tests.judge.changing import with_header, with_records
from tests.report.browser import Browser, problems_of
from tests.report.drawing import served
from tests.report.test_few_samples import noisy
from tests.report.test_html import Outline
from tests.support.records import store

FEW = Bootstrap(50)
TASKS = ("gsm8k", "alpaca")
CPU = "Example CPU 9000"


@cache
def runs() -> dict[str, Run]:
    """Runs on two machines with two models, one of which has published numbers.

    The run `few` is newer. It has few samples and another number of threads.
    """
    tiny = full_run(tasks=TASKS, num_samples=6)
    vicuna = {"name": "vicuna-13b", "label": "Vicuna 13B", "is_stand_in": False, "dtype": "float16"}
    real = full_run(("vanilla", "eagle2"), ("gsm8k", "mt_bench"), (0.0, 1.0), 6, model=vicuna)
    other = with_header(tiny, environment__cpu__model="Small CPU <b>")
    threads = {"num": 1, "chosen_by": "option", "waiting": "brief"}
    few = full_run(tasks=TASKS, num_samples=1, created="2026-11-23T12:00:00+00:00", threads=threads)
    return {"tiny": tiny, "real": real, "other": other, "few": few}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    return {name: store(root / name, run.header, run.records) for name, run in runs().items()}


@pytest.fixture(scope="module")
def site(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    write_site([*folders.values()], out, bootstrap=FEW, say=lambda text: None)
    return out


def data(site: Path) -> Any:
    text = (site / "index.html").read_text(encoding="utf-8")
    (json_text,) = re.findall(r'id="site-data">(.*?)</script>', text, re.DOTALL)
    return json.loads(json_text)


def test_a_run_gives_a_row_per_method_task_and_their_mean() -> None:
    metrics = measure(runs()["tiny"], FEW)
    rows = [*run_rows(metrics, 3)]
    assert len(rows) == 4 * 3
    row = next(row for row in rows if (row.method, row.task) == ("PLD", MEAN))
    assert row.speedup == metrics.overall["pld", 0.0].speedup
    assert (row.run, row.machine, row.engine) == (3, CPU, "specbench")
    assert (row.num_samples, row.threads) == (12, 2)
    assert not row.is_claimed  # from one pass
    stopped = with_records(full_run(), lambda record: record if record.key.task in TASKS else None)
    for some in (metrics, measure(stopped, FEW)):
        of_more = {row.task for row in run_rows(some, 3, num_tasks=6)}
        assert "Mean of 2 of 6 tasks" in of_more and MEAN not in of_more


def test_intervals_too_wide_for_a_claim_are_not_on_the_page(tmp_path: Path) -> None:
    run = noisy(4)  # PLD's mean has narrow intervals, SpS's a wide one
    out = tmp_path / "site"
    folder = store(tmp_path / "run", run.header, run.records)
    write_site([folder], out, bootstrap=FEW, say=lambda text: None)
    means = {
        row["method"]: row for row in data(out)["rows"] if row["task"] == MEAN and row["run"] == 0
    }
    assert len(means["PLD"]["speedup"]) == 3 and len(means["SpS"]["speedup"]) == 1


def test_an_odd_run_leaves_the_others_on_the_page(tmp_path: Path) -> None:
    """A run stays although its method has lost an option since then. Unreadable runs are named."""
    tiny = runs()["tiny"]
    settings = {"source": "tuned", "paper": {"nope": 1, "total_tokens": 60}}
    lost = with_header(tiny, methods__pld__settings=settings)
    named = {"good": tiny, "lost": lost, "broken": tiny, "empty": tiny}
    paths = [store(tmp_path / name, run.header, run.records) for name, run in named.items()]
    (paths[2] / "run.json").write_text("{")
    (paths[3] / "samples.jsonl").unlink()
    said: list[str] = []
    write_site(paths, tmp_path / "site", bootstrap=FEW, say=said.append)
    assert [line for line in said if "broken" in line and line.startswith("Left out: ")]
    folders = {run["folder"] for run in data(tmp_path / "site")["runs"]}
    assert folders == {"runs/good", "runs/lost", "runs/empty"}
    with pytest.raises(RunFolderError):
        write_site(paths[2:3], tmp_path / "none", bootstrap=FEW, say=said.append)


def test_the_page_names_folders_only_in_the_command(tmp_path: Path) -> None:
    here = "/home/me/models/hf"
    run = with_header(runs()["tiny"], model__source=here, spec__values__model=here)
    folder = store(tmp_path / "run", run.header, run.records)
    write_site([folder], tmp_path / "site", bootstrap=FEW, say=lambda text: None)
    page = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    outside = re.sub("<pre>.*?</pre>", "", page, flags=re.DOTALL)
    assert here in page and here not in outside


def test_a_served_model_has_its_usual_name() -> None:
    software = "llama.cpp b7-unknown"
    server = {"url": "u", "software": software, "model": "m", "protocol": "chat"}
    served = with_header(
        runs()["tiny"], servers={"vanilla": server}, model__label="tiny, served by llama.cpp"
    )
    row = next(iter(run_rows(measure(served, FEW), 0)))
    assert (row.model, row.engine) == ("tiny", "llama.cpp b7")
    loaded = with_header(served, spec__values__concurrency=[8]).header
    assert engine_name(loaded) == "llama.cpp b7, 8 requests at once"


def test_servers_are_compared_by_the_throughput_of_all_requests() -> None:
    run = served()
    rows = [row for load in run.loads for row in run_rows(measure(run.at(load), FEW), 0)]
    ratios = {(row.engine, row.method): row.throughput_ratio for row in rows}
    at_eight = ratios["vLLM 0.32.0, 8 requests at once", "eagle3"]
    assert number(at_eight) == pytest.approx(0.8)
    assert all(isinstance(row.throughput, Estimate) for row in rows)
    local = run_rows(measure(runs()["tiny"], FEW), 0)
    assert all(isinstance(row.throughput, Missing) for row in local)


@pytest.mark.slow
def test_the_site_shows_throughput_if_there_are_servers(
    site: Path, tmp_path: Path, chromium: Browser
) -> None:
    run = served()
    folder = store(tmp_path / "served", run.header, run.records)
    write_site([folder], tmp_path / "site", bootstrap=FEW, say=lambda text: None)
    shown = (
        "return [...document.querySelectorAll('#throughputs tbody tr')].map(row => row.innerText)"
    )
    chromium.open(tmp_path / "site" / "index.html")
    lines = chromium.run(shown)
    assert len(lines) == 2 and "8.80" in " ".join(lines)
    assert "to vanilla" in chromium.run("return document.querySelector('#table thead').innerText")
    chromium.open(site / "index.html")
    assert chromium.run(shown) == []
    assert chromium.run("return document.getElementById('served').hidden")


def test_every_row_links_to_its_run_or_source(site: Path, folders: dict[str, Path]) -> None:
    page = data(site)
    measured = [row for row in page["rows"] if row["run"] is not None]
    assert {row["run"] for row in measured} == {0, 1, 2, 3}
    for run, folder in zip(page["runs"], folders.values(), strict=True):
        copied = site / run["folder"]
        assert (copied / "report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
        for name in ("run.json", "samples.jsonl"):
            assert (copied / name).read_bytes() == (folder / name).read_bytes()
    published = [row for row in page["rows"] if row["run"] is None]
    assert all("http" in row["url"] and row["source"] for row in published)
    named = ("model", "method", "task", "source", "speedup")
    assert ["Vicuna 13B", "EAGLE-2", "MT-bench", "EAGLE-2 paper", [4.26]] in [
        [row[name] for name in named] for row in published
    ]


def test_the_page_is_self_contained(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    tags = [attributes for _, attributes in Outline(text).tags]
    named = {str(tag[name]) for tag in tags for name in ("href", "src") if name in tag}
    links = named - {"data:,"}
    assert links and all((site / link).is_file() for link in links)
    assert "Small CPU <b>" not in text and "specbench run <" in text
    assert text.count('<span class="mark">faulty</span>') == 4  # no run writes such seeds


def test_runs_of_the_same_name_have_their_own_folders(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    few = runs()["few"]
    for name in ("run-1", "run-2"):
        store(tmp_path / "pool" / name, few.header, few.records)
    paths = [folders["few"], folders["few"], tmp_path / "pool"]
    write_site(paths, tmp_path, bootstrap=FEW, say=lambda text: None)
    expected = ["runs/few", "runs/few-2", "runs/run-1", "runs/run-2"]
    assert [run["folder"] for run in data(tmp_path)["runs"]] == expected
    assert (tmp_path / "runs/few-2/report.html").is_file()


ROWS = "return [...document.querySelectorAll('#table tbody tr')].map(r => r.innerText)"
CHOOSE = """
const select = document.querySelector('[data-field={}]');
select.value = {!r}; select.onchange();
return select.value;
""".format


@pytest.mark.slow
def test_filters_narrow_every_table(site: Path, chromium: Browser) -> None:
    assert problems_of(chromium, site / "index.html") == []  # errors, or sideways scrolling
    chromium.resize(1280)
    chromium.open(site / "index.html")
    assert "measured on 2 machines in 4 runs" in chromium.run("return document.body.innerText")
    for table in ("machines", "rates"):  # a machine's run with the most samples
        row = f"return document.querySelector('#{table} tbody tr').innerText"
        assert "n 12" in chromium.run(row) and "n 2" not in chromium.run(row)
    all_rows = data(site)["rows"]
    means = [row for row in all_rows if row["task"] == MEAN]
    assert len(chromium.run(ROWS)) == len(means)  # the first view is of the means
    chromium.run("const box = document.getElementById('published'); box.click()")
    assert len(chromium.run(ROWS)) == len([row for row in means if row["run"] is not None])
    assert chromium.run(CHOOSE("model", "Vicuna 13B")) == "Vicuna 13B"
    assert len(chromium.run(ROWS)) == 4
    chromium.run(CHOOSE("temperature", "1"))
    rows = chromium.run(ROWS)
    assert len(rows) == 2 and "EAGLE-2" in rows[0]  # the fastest comes first
    chromium.run(CHOOSE("method", "EAGLE-2"))
    chromium.run(CHOOSE("task", ""))
    assert len(chromium.run(ROWS)) == 3
    pivot = "return document.getElementById('{}').innerText".format
    assert CPU in chromium.run(pivot("machines")) and "Vicuna 13B" in chromium.run(pivot("models"))
    chromium.run("document.getElementById('eligible').click()")
    assert chromium.run(ROWS) == ["No result has these values."]
    assert chromium.console() == []


@pytest.mark.slow
def test_the_address_keeps_the_view_and_a_click_on_a_heading_sorts(
    site: Path, chromium: Browser
) -> None:
    chromium.open(site / "index.html")
    chromium.run(CHOOSE("model", "Vicuna 13B"))
    chromium.run("document.getElementById('published').click()")
    chromium.run("document.querySelector('#table thead th:nth-child(3)').click()")
    before, address = chromium.run(ROWS), chromium.run("return location.hash")
    assert address == "#model=Vicuna+13B&order=MAT&published=false"
    assert before[0].startswith("EAGLE-2") and chromium.run(
        "return document.querySelector('#table [aria-sort]').textContent"
    ).startswith("MAT")
    chromium.open(site / "index.html")
    assert chromium.run(ROWS) != before
    chromium.run(f"location.hash = {address!r}")
    time.sleep(0.2)
    assert chromium.run(ROWS) == before
    chromium.run("location.hash = '#run-1'")
    time.sleep(0.2)
    assert chromium.run("return document.getElementById('run-1').open")
