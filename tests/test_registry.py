"""A swept option stands for a method with each of its values."""

import pytest

from specbench.errors import UserError
from specbench.registry import expand_groups


@pytest.mark.parametrize(
    ("text", "methods"),
    [
        ("eagle2:depth=3|5", ("eagle2:depth=3", "eagle2:depth=5")),
        ("eagle2:depth=[3, 5],pld", ("eagle2:depth=3", "eagle2:depth=5", "pld")),
        (
            "eagle2:depth=3|5,total_tokens=[40,60]",
            tuple(f"eagle2:depth={d},total_tokens={t}" for d in (3, 5) for t in (40, 60)),
        ),
        ("pld:num_tokens=5|5,pld:num_tokens=5", ("pld:num_tokens=5",)),
        ("sps:weights=a[1]", ("sps:weights=a[1]",)),
    ],
)
def test_a_sweep_is_a_method_for_each_combination(text: str, methods: tuple[str, ...]) -> None:
    assert expand_groups([text]) == methods


@pytest.mark.parametrize("text", ["eagle2:depth=3|", "eagle2:depth=[3,,5]"])
def test_an_empty_value_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="has an empty value"):
        expand_groups([text])
