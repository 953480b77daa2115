"""The shipped heads: their size, and the order of their acceptance."""

import pytest
import torch

from specbench.training.recipe import METHODS
from specbench.zoo import TINY
from tools.zoo.__main__ import PROMPTS
from tools.zoo.accepted import mean_accepted


def test_all_heads_together_stay_under_18_megabytes() -> None:
    files = [path for head in METHODS for path in (TINY / head).iterdir()]
    assert sum(path.stat().st_size for path in files) < 18_000_000


@pytest.mark.slow
def test_the_heads_accept_in_the_papers_order() -> None:
    torch.set_num_threads(1)
    order = ["eagle3", "eagle2", "eagle", "hydra", "medusa"]
    table = mean_accepted(TINY, PROMPTS, limit=4, methods=order)
    accepted = {name: figures["all"] for name, figures in table.items()}
    assert accepted["eagle2"] > 3
    assert sorted(order, key=lambda name: -accepted[name]) == order
