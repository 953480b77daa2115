"""The whole tuner on `tiny`: its choices, its files and the settings kept for later runs."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.data.toml_files import read_toml
from specbench.errors import UserError
from specbench.log.store import read_run
from specbench.measure.local.engine_setup import make_engine_setup
from specbench.measure.spec import make_spec
from specbench.settings.files import SettingsFile, read_settings
from specbench.settings.run_method import RunMethod
from specbench.settings.tuned_settings import TUNED, keep_settings
from specbench.tune import Choice, read_profile, tune
from specbench.tune.choice import Tried, choose, paper_of
from specbench.tune.ranking import halves
from specbench.tune.results import COLUMNS, write_results
from specbench.zoo import TINY
from tests.support.methods import parse_methods
from tests.support.own_cache import own_cache
from tests.tune import WORK, time_few_rows

VALUES = WORK | {"limit": 4, "max_new_tokens": 12}
METHODS = ["medusa", f"eagle2:depth=2,top_k=2,weights={TINY / 'eagle'}", "recycling"]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The user's cache, beside a tune's folder."""
    folder = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        own_cache(patch, folder)
        patch.setattr("specbench.tune.tuner.CHANGED", inf)  # even on a busy machine
        time_few_rows(patch)
        yield folder


@pytest.fixture(scope="module")
def choices(home: Path) -> list[Choice]:
    return tune("tiny", METHODS, output=home / "tune", minutes=0.1, **VALUES)


def test_settings_are_chosen_on_one_half_of_the_prompts_and_measured_on_the_other(
    home: Path, choices: list[Choice]
) -> None:
    first, second = halves(read_profile(home / "tune" / "profile"))
    assert len(first) == len(second) == 2 and not first & second
    run = read_run(home / "tune" / "run")
    assert {f"gsm8k/{record.key.sample_id}/0" for record in run.records} == second
    assert [choice.label for choice in choices] == METHODS
    for choice in choices:
        assert choice.paper.settings == paper_of(choice.label)
        assert all(tried.measured for tried in choice.tried)
        measured = [tried.settings for tried in choice.tried]
        assert len(measured) == len({*measured, choice.best.settings, choice.paper.settings})
    medusa, eagle, recycling = choices
    assert len(medusa.tried) >= 3 and medusa.tried[0].predicted
    assert eagle.tried[0].predicted and eagle.paper.predicted is None  # too deep
    assert [tried.predicted for tried in recycling.tried] == [None]
    (arguments,) = [line for line in eagle.lines if "EAGLE's arguments" in line]
    assert "total_token=" in arguments and "expected" in medusa.lines[0]


def test_commands_read_the_files_of_a_tune(home: Path, choices: list[Choice]) -> None:
    with (home / "tune" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == sum(len(choice.tried) for choice in choices)
    first, about = rows[0], choices[0].tried[0]
    assert about.predicted and about.measured
    speedups = [float(first[f"{kind}_speedup"]) for kind in ("predicted", "measured")]
    assert speedups == pytest.approx([about.predicted.speedup, about.measured.value], abs=1e-4)
    assert (home / "tune" / "predicted_and_measured.svg").is_file()
    medusa = [row["settings"] for row in rows if row["method"] == "medusa"]
    trees = [json.loads(text.partition("tree=")[2]) for text in medusa if "tree=" in text]
    assert trees and all(len(paths) < 60 for paths in trees)
    settings = read_settings(str(home / "tune" / "settings.toml"), "tiny")
    assert {*settings.methods} == {"medusa", "eagle2", "recycling"}
    with pytest.raises(UserError, match="are for tiny, not for vicuna"):
        read_settings(str(home / "tune" / "settings.toml"), "vicuna-7b")


def test_a_second_call_measures_nothing_and_another_machine_is_refused(
    home: Path, choices: list[Choice]
) -> None:
    lines: list[str] = []
    given = VALUES | {"output": home / "tune", "minutes": 0.1}
    again = tune("tiny", METHODS, say=lines.append, **given)
    assert [choice.best.settings for choice in again] == [
        choice.best.settings for choice in choices
    ]
    assert not any("/" in line and "tok/s" in line for line in lines)
    with pytest.raises(UserError, match="threads: 1 in the curve, 2 here"):
        tune("tiny", METHODS, **given | {"threads": 2})
    for methods, changes in ((METHODS, {"limit": 2}), (METHODS[1:], {})):
        with pytest.raises(UserError, match="profile for other prompts, lengths or methods"):
            tune("tiny", methods, **given | changes)


@pytest.mark.usefixtures("choices")
def test_a_profile_of_another_temperature_is_refused_before_a_curve_is_measured(
    home: Path, tmp_path: Path
) -> None:
    shutil.copytree(home / "tune" / "profile", tmp_path / "profile")
    with pytest.raises(UserError, match="temperature: 0 in the profile, 1 here"):
        tune("tiny", METHODS, output=tmp_path, **VALUES | {"temperatures": 1})


@pytest.mark.usefixtures("choices")
@pytest.mark.parametrize("is_steady", [True, False])
def test_nothing_is_kept_for_auto_if_the_machines_speed_changed(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_steady: bool
) -> None:
    shutil.copytree(home / "tune", tmp_path / "tune")
    own_cache(monkeypatch, tmp_path / "cache")
    if not is_steady:
        monkeypatch.setattr("specbench.tune.tuner.CHANGED", 1.2)
        curve = tmp_path / "tune" / "cost" / "cost.json"
        curve.write_text(curve.read_text().replace('"vanilla_s": ', '"vanilla_s": 9'))
    lines: list[str] = []
    tune("tiny", METHODS, output=tmp_path / "tune", minutes=0.1, say=lines.append, **VALUES)
    warned = [line for line in lines if "took 0% of its time in the cost curve" in line]
    assert len(warned) == (not is_steady)
    assert len([*(tmp_path / "cache").rglob("*.toml")]) == is_steady


@pytest.mark.parametrize("changed", ["sha256", "seed", "machine"])
def test_a_run_of_other_work_or_another_machine_is_refused_and_nothing_is_kept(
    home: Path, choices: list[Choice], changed: str, tmp_path: Path
) -> None:
    folder = tmp_path / "tune"
    shutil.copytree(home / "tune", folder)
    settings = (folder / "settings.toml").read_bytes()
    header = json.loads((folder / "run" / "run.json").read_bytes())
    if changed == "sha256":
        header["model"]["files"]["model.safetensors"]["sha256"] = "0" * 64
    elif changed == "seed":
        header["spec"]["values"]["seed"] = 7
    else:
        header["environment"]["cpu"]["model"] = "Slow CPU 1"
    (folder / "run" / "run.json").write_text(json.dumps(header))
    with pytest.raises(UserError, match=f"Slow CPU 1|{changed}"):
        tune("tiny", METHODS, output=folder, minutes=0.1, **VALUES)
    assert (folder / "settings.toml").read_bytes() == settings


def test_each_of_a_methods_weights_keeps_its_own_entry(
    choices: list[Choice], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache(monkeypatch, tmp_path)
    for name in ("a", "b"):
        shutil.copytree(TINY / "medusa", tmp_path / name)
    config = tmp_path / "b" / "config.json"
    config.write_text(config.read_text() + "\n")  # another hash
    weights = [f"medusa:weights={tmp_path / name}" for name in ("a", "b")]
    setup = make_engine_setup(make_spec(model="tiny", methods=weights))
    spellings = [f"{weights[0]},nodes=4", f"{weights[1]},tree=[[0], [0, 0], [1]]"]
    chosen = [
        Choice(entry, best=Tried(best, None, Estimate(2.0)), paper=Tried(paper, None), tried=())
        for entry, best, paper in zip(
            weights, parse_methods(spellings), parse_methods(weights), strict=True
        )
    ]
    entered = setup.methods[1:]  # without vanilla
    headers = {
        choice.best.method.label: method.describe()
        for choice, method in zip(chosen, entered, strict=True)
    }
    run: Any = SimpleNamespace(header=SimpleNamespace(methods=headers, created="2026-11-29"))
    write_results(tmp_path, chosen, setup, run)

    file = read_toml(tmp_path / "settings.toml", SettingsFile, what="", hint="")
    expected = {"nodes": 4}, {"tree": [[0], [0, 0], [1]]}
    assert file.methods == dict(zip([method.label for method in entered], expected, strict=True))
    stored = read_settings(str(tmp_path / "settings.toml"), "tiny").of(entered)
    tuned = make_engine_setup(make_spec(model="tiny", methods=weights, settings="auto"))
    for first, second in (stored, tuned.methods[1:]):
        assert first.options.nodes == 4 and first.options.tree == "mc_sim_7b_63"
        assert second.options.nodes == 0 and second.options.tree == "[[0], [0, 0], [1]]"
    assert [first.label, second.label] == ["medusa:weights=a", "medusa:weights=b"]
    assert chosen[1].best.method.label.startswith("medusa:weights=b,tree=4-")


@pytest.mark.parametrize(
    ("speeds", "best"), [((2.0, 1.0), 0), ((1.0, 2.0), 1), ((None, 2.0), 1), ((2.0, None), 0)]
)
def test_the_papers_settings_are_best_if_they_are_faster_or_were_measured_alone(
    speeds: tuple[float | None, ...], best: int
) -> None:
    settings = ["medusa:nodes=8", "medusa"]
    overall = {
        (setting, 0.0): SimpleNamespace(speedup=Missing("") if speed is None else Estimate(speed))
        for setting, speed in zip(settings, speeds, strict=True)
    }
    metrics: Any = SimpleNamespace(overall=overall, temperatures=(0.0,))
    assert choose("medusa", parse_methods(settings), [], metrics).best.settings == settings[best]


@pytest.mark.usefixtures("choices")
@pytest.mark.parametrize(
    ("method", "changes", "is_tuned"),
    [
        ("eagle2", {}, True),
        ("eagle2:weights=EAGLE", {}, True),
        ("eagle2:depth=2", {}, False),
        ("eagle2", {"threads": 2}, False),
        ("eagle2", {"temperatures": (0.0, 1.0)}, False),
        ("eagle2", {"dtype": "bfloat16"}, False),
        ("eagle2", {"settings": "paper"}, False),
        ("pld", {}, False),
    ],
)
def test_auto_takes_a_tune_that_fits(
    method: str, changes: dict[str, Any], is_tuned: bool, home: Path
) -> None:
    entry = _with_auto({"methods": method.replace("EAGLE", str(TINY / "eagle"))} | changes)
    if not is_tuned:
        assert entry.settings is None
        return
    settings = read_settings(str(home / "tune" / "settings.toml"), "tiny")
    assert entry.settings and entry.settings.source == TUNED
    assert entry.settings.sha256 == settings.sha256
    chosen = settings.methods["eagle2"]
    assert {name: getattr(entry.options, name) for name in chosen} == dict(chosen)


@pytest.mark.usefixtures("choices")
def test_each_temperature_keeps_its_own_settings(home: Path) -> None:
    greedy = read_toml(home / "tune" / "settings.toml", SettingsFile, what="", hint="")
    options, fits = {"eagle2": {"total_tokens": 7}}, greedy.fits | {"temperature": "1"}
    keep_settings(replace(greedy, methods=options, fits=fits))
    for temperature, wanted in ((0.0, greedy.methods["eagle2"]), (1.0, options["eagle2"])):
        entry = _with_auto({"methods": "eagle2", "temperatures": (temperature,)})
        assert entry.settings and {k: getattr(entry.options, k) for k in wanted} == wanted


def _with_auto(values: dict[str, Any]) -> RunMethod:
    given = {"model": "tiny", "settings": "auto", "dtype": "float32", "threads": 1}
    return make_engine_setup(make_spec(**given | values)).methods[-1]
