"""`specbench tune profile`: the folder that it writes, and the MAT that it prints."""

from __future__ import annotations

from pathlib import Path

from specbench.log.store import read_run
from specbench.tune import read_profile, replay
from tests.cli.conftest import Specbench

PROMPTS = ("--dataset", "gsm8k", "--limit", "1", "--max-new-tokens", "24")


def test_a_profile_is_written_and_its_mat_is_that_of_a_run(
    specbench: Specbench, tmp_path: Path
) -> None:
    out, run = tmp_path / "profile", tmp_path / "run"
    call = ("tune", "profile", "--method", "pld,sps", *PROMPTS, "--out", str(out))
    said = specbench(*call)
    found = read_profile(out)
    specbench("run", "--method", "pld,sps", "--settings", "paper", *PROMPTS, "--output", str(run))
    records = read_run(run).records
    for method in ("pld", "sps"):
        accepts = next(r.accept_lengths for r in records if r.key.method == method)
        assert [list(walk.accepts) for walk in replay(found, method)] == [list(accepts)]
        assert (
            f"{method}: MAT {sum(accepts) / len(accepts):.2f} in {len(accepts)} steps" in said.out
        )
    assert f"Profile: {out}" in said.out
    assert "Give --out another folder." in specbench(*call).err


def test_a_method_without_a_profile_is_refused_before_anything_is_written(
    specbench: Specbench, tmp_path: Path
) -> None:
    out = tmp_path / "profile"
    call = ("tune", "profile", "--method", "lookahead", *PROMPTS, "--out", str(out))
    assert "lookahead" in specbench(*call).err
    assert not out.exists()
