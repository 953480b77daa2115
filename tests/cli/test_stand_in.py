"""A stand-in through the command line: a custom shape with tiny's tokens."""

from __future__ import annotations

from pathlib import Path

import pytest

from specbench.log.store import read_run
from tests.cli.conftest import Specbench
from tests.zoo.stand_in_shapes import SHAPE, write_config


@pytest.mark.slow
def test_a_stand_in_run_has_tinys_tokens_and_is_labelled(
    specbench: Specbench, tmp_path: Path
) -> None:
    shape = write_config(tmp_path / "shape")
    call = ("run", "--method", "pld,eagle2,hydra", "--dataset", "gsm8k", "--limit", 1,
            "--max-new-tokens", 16, "--device", "cpu", "--offline")  # fmt: skip
    said = specbench(*call, "--model", shape, "--weights", "stand-in", "--output", "big")
    assert said.code == 0, said.err
    assert "stand-in" in said.out.splitlines()[0]
    assert specbench(*call, "--model", "tiny", "--output", "small").code == 0
    big, small = read_run(Path("big")), read_run(Path("small"))
    assert big.header.model.shape and big.header.model.shape.num_layers == SHAPE.num_layers
    assert big.header.spec.values.weights == "stand-in"
    weights = big.header.methods["eagle2"].weights
    assert big.header.model.is_stand_in and weights and weights.is_stand_in
    steps = [{r.key: (r.token_ids, r.accept_lengths) for r in run.records} for run in (big, small)]
    assert steps[0] == steps[1]
    hub = ("--weights", "hub")
    other = specbench(*call, "--model", shape, *hub, "--output", "big", "--resume")
    assert (other.code, "weights is 'stand-in' there" in other.err) == (2, True)
