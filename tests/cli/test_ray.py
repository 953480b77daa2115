"""`--ray` on the command line, with a cluster in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specbench.cli.app import with_address
from specbench.log.store import read_run
from tests.cli.conftest import Specbench
from tests.support.backend import answering
from tests.support.cluster import FakeRay, use_ray

RUN = ("run", "--method", "pld", "--dataset", "gsm8k", "--limit", 3, "--output", "run")


@pytest.fixture
def addresses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A cluster of two workers at every address. The fixture lists the requested addresses."""
    methods = {"vanilla": answering(1), "pld": answering(2)}
    return use_ray(monkeypatch, FakeRay(methods, num_workers=2)).addresses


def test_a_run_on_a_cluster_has_a_report_that_counts_its_workers(
    specbench: Specbench, addresses: list[str]
) -> None:
    said = specbench(*RUN, "--ray", code=0)
    assert addresses == ["auto"]
    assert "fake model on 2 workers" in said.err
    assert "on 2 workers on " in said.out.splitlines()[0]
    assert {record.worker for record in read_run(Path("run")).records} == {"worker-1", "worker-2"}
    facts = " ".join(specbench("report", "run", "--full").out.split())
    assert "Workers" in facts and "worker-2, node node-1" in facts
    assert specbench(*RUN, "--ray", "--resume").code == 0


def test_a_suite_uses_one_cluster_for_all_its_runs(
    specbench: Specbench, addresses: list[str], tmp_path: Path
) -> None:
    recipe = tmp_path / "two.toml"
    recipe.write_text(
        'title = "Two"\n[values]\nlimit = 2\ntasks = ["gsm8k"]\nmethods = ["pld"]\n'
        '[[runs]]\nmodels = ["tiny", "tiny"]\n'
    )
    specbench("suite", "--ray", recipe, "--quiet", code=0)
    assert addresses == ["auto"]
    runs = [read_run(Path("results/suites/two") / name) for name in ("01-tiny", "02-tiny")]
    assert [{*run.header.workers} for run in runs] == [{"worker-1", "worker-2"}] * 2


@pytest.mark.parametrize(
    ("words", "filled"),
    [
        ("", ""),
        ("--ray", "--ray auto"),
        ("--ray 10.0.0.1:6379", "--ray 10.0.0.1:6379"),
        ("--ray two.toml", "--ray auto two.toml"),
        ("--ray --limit 2", "--ray auto --limit 2"),
        ("--ray=local --rayon", "--ray=local --rayon"),
    ],
)
def test_ray_needs_no_value(words: str, filled: str) -> None:
    assert with_address(words.split()) == filled.split()


@pytest.mark.usefixtures("answers")
def test_without_the_option_no_module_of_clusters_is_loaded(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray is not imported either: without it, `import ray` would fail."""
    monkeypatch.delitem(sys.modules, "specbench.measure.cluster", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    assert specbench(*RUN).code == 0
    assert "specbench.measure.cluster" not in sys.modules
    run = read_run(Path("run"))
    assert not run.header.workers and {record.worker for record in run.records} == {""}
    assert '"worker' not in Path("run/run.json").read_text()
