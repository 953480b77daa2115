"""`specbench tune profile`: the folder that it writes, and the MAT that it prints."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from specbench.log.store import read_run
from specbench.tune import read_curve, read_profile, replay
from specbench.zoo import TINY
from tests.cli.conftest import Specbench

PROMPTS = ("--dataset", "gsm8k", "--limit", "1", "--max-new-tokens", "24")


def test_a_profile_is_written_and_its_mat_is_that_of_a_run(
    specbench: Specbench, tmp_path: Path
) -> None:
    out, run = tmp_path / "profile", tmp_path / "run"
    methods = f"pld,sps:weights={TINY / 'sps'}"
    call = ("tune", "profile", "--method", methods, *PROMPTS, "--out", str(out))
    said = specbench(*call)
    found = read_profile(out)
    specbench("run", "--method", methods, "--settings", "paper", *PROMPTS, "--output", run)
    records = read_run(run).records
    for method, spelling in zip(("pld", "sps:weights=sps"), methods.split(","), strict=True):
        accepts = next(r.accept_lengths for r in records if r.key.method == method)
        assert [list(walk.accepts) for walk in replay(found, spelling)] == [list(accepts)]
        assert (
            f"{method}: MAT {sum(accepts) / len(accepts):.2f} in {len(accepts)} steps" in said.out
        )
    assert f"Profile: {out}" in said.out
    assert "Give --out another folder." in specbench(*call).err


def test_a_curve_is_measured_and_predictions_name_its_machine(
    specbench: Specbench, tmp_path: Path
) -> None:
    profile, cost, out = (str(tmp_path / name) for name in ("profile", "cost", "out"))
    call = ("--method", "eagle2:depth=1,top_k=2", *PROMPTS, "--threads", "1", "--out")
    specbench("tune", "profile", *call, profile)
    said = specbench("tune", "cost", "--minutes", "0.1", *call, cost)
    assert "A step of vanilla:" in said.out and "Block 3/6" in said.err
    machine = read_curve(cost).about["machine"]
    said = specbench("tune", "predict", profile, "--cost", cost, "--out", out)
    assert said.out.startswith(f"On {machine}:")
    assert "eagle2:total_tokens=4,depth=1,top_k=2" in said.out
    with (tmp_path / "out" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["machine"] for row in rows} == {machine}
    assert (tmp_path / "out" / "cost" / "heat_map_eagle2.png").is_file()
    assert (tmp_path / "cost" / "cost_curve.svg").is_file()
    specbench("tune", "predict", profile, "--cost", cost, "--cost", cost, "--out", out)
    for folder in ("1-cost", "2-cost"):
        assert (tmp_path / "out" / folder / "heat_map_eagle2.png").is_file()


def test_the_whole_prints_each_methods_settings_and_needs_a_folder(
    specbench: Specbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "Name one: --out DIR" in specbench("tune", "--method", "pld").err
    out = str(tmp_path / "tune")
    call = ("--method", "pld,recycling", *PROMPTS, "--threads", "1", "--minutes", "0.1")
    said = specbench("tune", *call, "--out", out)
    lines = said.out.splitlines()
    assert lines[0].startswith("pld") and "measured" in lines[0]
    assert any(line.startswith("recycling: ") for line in lines)
    assert lines[-1] == f"Use them: specbench run --model tiny --settings {out}/settings.toml"
    said = specbench("run", "--method", "pld", "--settings", "auto", "--threads", "1", *PROMPTS,
                     "--output", str(tmp_path / "run"))  # fmt: skip
    assert "Settings that specbench tune measured here: pld" in said.err
    header = read_run(tmp_path / "run").header.methods["pld"]
    assert header.settings and header.settings.source == "tuned" and header.settings.sha256
