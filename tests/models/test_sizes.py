from __future__ import annotations

import pytest

from specbench.models.cards import find_model
from specbench.models.memory import num_parameters


@pytest.mark.parametrize(
    ("model", "billions", "share"),
    [("vicuna-7b", 0.24, 0.034), ("vicuna-13b", 0.37, 0.028),
     ("llama2-70b-chat", 0.99, 0.014)],
)  # fmt: skip
def test_eagles_parameters_are_the_published_ones(
    model: str, billions: float, share: float
) -> None:
    card = find_model(model)
    drafter = card.weights_of("eagle")
    assert drafter is not None and card.shape is not None
    count = num_parameters(card, drafter)
    assert count is not None
    assert round(count / 1e9, 2) == pytest.approx(billions, abs=0.011)
    assert count / card.shape.num_parameters == pytest.approx(share, abs=0.0025)


def test_a_drafter_of_unknown_size_has_none() -> None:
    card = find_model("vicuna-7b")
    drafter = card.weights_of("hydra")
    assert drafter is not None
    assert num_parameters(card, drafter) is None
