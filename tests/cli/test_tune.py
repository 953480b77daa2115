"""`specbench tune`: the folders that it writes, and its output."""

from __future__ import annotations

import csv
from math import inf
from pathlib import Path

import pytest

from specbench.log.store import read_run
from specbench.tune import mat, read_curve, read_profile, replay
from specbench.zoo import TINY
from tests.cli.conftest import Specbench
from tests.faults.limits import file_size_limit
from tests.support.own_cache import own_cache
from tests.tune import time_few_rows

PROMPTS = ("--dataset", "gsm8k", "--limit", "1", "--max-new-tokens", "24")


def test_a_profile_is_written_and_its_mat_is_printed(specbench: Specbench) -> None:
    methods = ("pld", f"sps:weights={TINY / 'sps'}")
    call = ("tune", "profile", "--method", ",".join(methods), *PROMPTS, "--out", "profile")
    said = specbench(*call)
    profile = read_profile(Path("profile"))
    for label, spelling in zip(("pld", "sps:weights=sps"), methods, strict=True):
        walks = replay(profile, spelling)
        steps = sum(walk.num_steps for walk in walks)
        assert f"{label}: MAT {mat(walks):.2f} in {steps:.0f} steps" in said.out
    assert "Profile: profile" in said.out
    assert "Give --out another folder." in specbench(*call).err


@pytest.mark.slow
def test_a_curve_is_measured_and_predictions_name_its_machine(
    specbench: Specbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    time_few_rows(monkeypatch)
    call = ("--method", "eagle2:depth=1,top_k=2", *PROMPTS, "--threads", "1", "--out")
    specbench("tune", "profile", *call, "profile")
    said = specbench("tune", "cost", "--minutes", "0.1", *call, "cost")
    assert "A step of vanilla:" in said.out and "Block 3/6" in said.err
    machine = read_curve(Path("cost")).about["machine"]
    predicting = ("tune", "predict", "profile", "--out", "out", "--cost", "cost")
    said = specbench(*predicting)
    assert said.out.startswith(f"On {machine}:")
    assert "eagle2:total_tokens=4,depth=1,top_k=2" in said.out
    with Path("out/predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["machine"] for row in rows} == {machine}
    specbench(*predicting, "--cost", "cost")
    for folder in ("cost", "1-cost", "2-cost"):
        assert Path("out", folder, "heat_map_eagle2.png").is_file()
    assert Path("cost/cost_curve.svg").is_file()


@pytest.mark.slow
def test_a_whole_tune_prints_each_methods_settings(
    specbench: Specbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_cache(monkeypatch, tmp_path)
    monkeypatch.setattr("specbench.tune.tuner.CHANGED", inf)  # even on a busy machine
    time_few_rows(monkeypatch)
    call = ("--method", "pld,recycling", *PROMPTS, "--threads", "1", "--minutes", "0.1")
    said = specbench("tune", *call, "--out", "tune")
    lines = said.out.splitlines()
    assert lines[0].startswith("pld") and "measured" in lines[0]
    assert any(line.startswith("recycling: ") for line in lines)
    assert lines[-1] == "Use them: specbench run --model tiny --settings tune/settings.toml"
    running = ("run", "--method", "pld", "--settings", "auto", "--threads", "1", *PROMPTS)
    said = specbench(*running, "--output", "run")
    assert "Settings that specbench tune measured here: pld" in said.err
    header = read_run(Path("run")).header.methods["pld"]
    assert header.settings and header.settings.source == "tuned" and header.settings.sha256

    # The choice is always printed, and the message names the place that cannot be written.
    cache = tmp_path / "a file"
    cache.touch()
    own_cache(monkeypatch, cache)
    no_cache = specbench("tune", *call, "--out", "tune")
    own_cache(monkeypatch, tmp_path)
    with file_size_limit(300):
        full = specbench("tune", *call, "--out", "tune")
    for said, place in ((no_cache, f"{cache}/specbench/tunes/"), (full, "tune cannot be written")):
        assert said.code == 2 and said.out.splitlines() == lines[:-1]
        assert place in said.err.replace("\n", "") and "--resume" not in said.err
        assert "repeat the command" in said.err.replace("\n", " ")
