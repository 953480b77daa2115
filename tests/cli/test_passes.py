"""Passes, runs and plans on the command line."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specbench.cli.run import FIRST_LIMIT
from specbench.log.store import read_run
from specbench.measure.local import device
from specbench.measure.suite import runs
from specbench.measure.suite.apart import complete
from tests.cli.conftest import Specbench
from tests.support.backend import Answer, answering
from tests.support.checkpoint import write_prompts


@pytest.fixture
def call(tmp_path: Path, answers: dict[str, Answer]) -> tuple[object, ...]:
    """A run of PLD on eight prompts, with a fake backend."""
    prompts = write_prompts(tmp_path / "mine.jsonl", *([f"ab {i} ab"] for i in range(8)))
    return ("run", "--method", "pld", "--prompts", prompts)


def test_one_pass_is_labelled_beside_its_intervals(
    specbench: Specbench, call: tuple[object, ...]
) -> None:
    label = "prompts only, not the machine's variance"
    said = specbench(*call, "--repeats", "1", "--output", "one")
    assert label in " ".join(said.out.split())
    for form in ("markdown", "csv", "html", "json"):
        assert label in specbench("report", "one", "--format", form).out, form
    assert read_run(Path("one")).header.spec.values.repeats == 1  # not 3, the default for tiny


def test_passes_end_when_intervals_are_narrow_and_a_resumed_run_adds_none(
    specbench: Specbench, call: tuple[object, ...]
) -> None:
    assert specbench(*call, "--output", "mine", "--until-ci", "50%").code == 0
    header = read_run(Path("mine")).header
    assert (header.spec.values.repeats, header.status) == (3, "complete")
    assert specbench("run", "--output", "mine", "--resume").code == 0
    assert len(read_run(Path("mine")).records) == 3 * 16


def test_a_dry_run_shows_the_plan_and_makes_no_run(
    specbench: Specbench, call: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = (*call, "--method", "sps")
    dry = specbench(*call, "--dry-run")
    assert (dry.code, "Prompts: 8" in dry.out, "completions: 72" in dry.out) == (0, True, True)
    rows = [line.split() for line in specbench(*call, "--runs", 2, "--dry-run").out.splitlines()]
    assert [row[:3] for row in rows if row and row[0].startswith("run-")] == [
        ["run-1", "3", "72"],
        ["run-2", "3", "72"],
    ]
    assert "No earlier run of this model shows" in dry.out and "About" not in dry.out
    assert not Path("results").exists()
    assert specbench(*call).code == 0
    (path,) = Path("results/runs").iterdir()
    planned = specbench("report", path, "--plan")
    assert planned.code == 0
    assert "prompts and 3 passes" in planned.out
    shares = [line.split("%")[0].strip() for line in planned.out.splitlines()[4:7]]
    assert shares == ["2", "5", "10"]
    monkeypatch.setattr("specbench.measure.earlier_runs.MIN_TOKENS", 1)
    dry = specbench(*call, "--dry-run")
    assert "Decoding: from the latest comparable run." in dry.out
    assert "It would show differences of" in dry.out and path.name not in dry.out
    few = specbench(*call, "--limit", 1, "--dry-run")
    assert "Too few prompts to show a difference: use --limit 6, or more prompts." in few.out
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "here")
    far = specbench(*call, "--model", "vicuna-7b", "--dry-run")  # it has no files here
    assert re.search(r"run-1 +3 +24 +13\.\d GB", far.out) and "completions" not in far.out
    assert far.code == 0, far.err


def test_a_dry_run_on_several_gpus_asks_the_bandwidth_of_the_first(
    specbench: Specbench, call: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def bandwidth(device: torch.device) -> float:
        asked.append(str(device))
        return 1e12

    monkeypatch.setattr(device, "count_gpus", lambda torch: 2)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda number: (80 * 10**9, 80 * 10**9))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda number: (9, 0))
    monkeypatch.setattr("specbench.machine.bandwidth.bandwidth", bandwidth)
    stand_in = ("--model", "llama3-8b", "--weights", "stand-in")
    said = specbench(*call, *stand_in, "--device", "cuda:0-1", "--dry-run")
    assert (said.code, asked) == (0, ["cuda:0"])


def test_missing_runs_are_made_with_the_options_of_the_first_and_pooled(
    specbench: Specbench,
    call: tuple[object, ...],
    answers: dict[str, Answer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = itertools.count(1)
    answers["pld"] = lambda request: replace(answering(2)(request), decode_s=next(seconds))
    monkeypatch.setattr(runs, "complete_apart", complete)
    call = (*call, "--seed", 3, "--repeats", 1, "--runs", 1)
    assert specbench(*call, "--output", "mine/run-1").code == 0
    several = ("run", "--runs", 2, "--output", "mine")
    again = specbench(*several)
    assert (again.code, "has runs already" in again.err) == (2, True)
    resumed = specbench(*several, "--resume")
    assert resumed.code == 0 and "prompts and 2 runs" in " ".join(resumed.out.split()), resumed.err
    first, second = (read_run(Path("mine") / f"run-{number}").header for number in (1, 2))
    assert second.spec.values == first.spec.values and second.uid != first.uid
    assert {*second.spec.given} == {*first.spec.given, "resume"}
    other = specbench(*several, "--resume", "--seed", 5)
    assert (other.code, "seed is 3 in the run and 5 here" in other.err) == (2, True)
    for words in ("report mine", "compare mine mine/run-1", "report mine --plan"):
        said = specbench(*words.split())
        assert said.code == 0, said.err


@pytest.mark.usefixtures("answers")
def test_a_run_without_options_is_titled_a_first_look(
    specbench: Specbench,
) -> None:
    first = specbench("run", "--output", "first", "--settings", "paper")
    assert "First look: " in first.out and "of 48 prompts" in first.out
    every = specbench("run", "--output", "every", "--thorough")
    assert "First look" not in every.out and "48 prompts" in every.out
    asked = specbench("run", "--output", "asked", "--dataset", "gsm8k")
    assert "First look" not in asked.out
    headers = [read_run(Path(name)).header.spec.values for name in ("first", "every", "asked")]
    assert [(values.limit, values.repeats) for values in headers] == [
        (FIRST_LIMIT, 1),
        (None, 3),
        (None, 3),
    ]
    assert specbench("run", "--output", "first", "--resume").code == 0
    assert "First look: " in specbench("report", "first").out
