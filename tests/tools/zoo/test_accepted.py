"""The shipped heads: their size, and the order of their acceptance."""

from pathlib import Path
from statistics import mean

import torch

from specbench.log.store import read_run
from specbench.zoo import TINY
from tools.zoo.__main__ import PROMPTS
from tools.zoo.evaluate import mean_accepted

ROOT = Path(__file__).parents[3]


def test_the_heads_accept_in_the_papers_order() -> None:
    """In the gate's baseline, from which `make gate` lets no mean fall."""
    run = read_run(ROOT / ".ci" / "baseline")
    accepted = {
        name: mean([n for one in run.records if one.key.method == name for n in one.accept_lengths])
        for name in run.header.spec.values.methods
    }
    order = ["eagle3", "eagle2", "eagle", "hydra", "medusa"]
    assert sorted(order, key=lambda name: -accepted[name]) == order


def test_accepted_tokens_of_the_shipped_weights_are_measured() -> None:
    torch.set_num_threads(1)
    (figures,) = mean_accepted(TINY, PROMPTS, limit=1, methods=["eagle"]).values()
    assert figures["all"] > 3
