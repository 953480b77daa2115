"""Phases, bandwidth and bytes read, from the command line to the run's files."""

from __future__ import annotations

import json
from pathlib import Path

from specbench.log.store import read_run
from tests.cli.conftest import Specbench

SMALL = ("--template", "none", "--max-new-tokens", "12", "--offline", "--output", "out")


def test_phases_are_kept_per_sample_shown_as_costs_and_no_speed(
    specbench: Specbench, model: Path, prompt_file: Path
) -> None:
    call = ("run", "--model", model, "--method", "pld", "--prompts", prompt_file, *SMALL)
    said = specbench(*call, "--phases", "--full")
    assert said.code == 0, said.err
    run = read_run(Path("out"))
    assert run.header.spec.values.phases is True
    for line in Path("out", "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        assert list(sample["phases"]) == ["draft_s", "verify_s", "commit_s", "host_s"]
        assert 0 < sum(sample["phases"].values()) <= sample["decode_s"]
    shown = " ".join(said.out.split())
    assert "cost draft verify commit host" in shown
    assert "not evidence of speed" in shown
    other = specbench(*call, "--resume", "--trace")
    assert (other.code, "trace is False there and True here" in other.err) == (2, True)
    assert specbench("run", "--output", "out", "--resume").code == 0


def test_a_run_keeps_bandwidth_and_bytes_and_measures_no_phases_unasked(
    specbench: Specbench, model: Path, draft: Path, prompt_file: Path
) -> None:
    said = specbench("run", "--model", model, "--method", f"pld,sps:weights={draft}",
                     "--prompts", prompt_file, *SMALL)  # fmt: skip
    assert said.code == 0, said.err
    run = read_run(Path("out"))
    kept = run.header.roofline
    assert kept
    assert kept.bandwidth_bytes_per_s > 1e8
    assert kept.draft_bytes["vanilla"] == kept.draft_bytes["pld"] == 0
    nodes = [n for r in run.records if r.key.method.startswith("sps") for n in r.num_nodes]
    guesses = sum(nodes) / len(nodes) - 1
    assert 0 < kept.draft_bytes["sps:weights=draft"] < guesses * kept.target_bytes
    assert all(r.phases is None and r.energy_j is None for r in run.records)
    assert run.header.gpu is None
