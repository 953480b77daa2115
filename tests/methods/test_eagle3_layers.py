"""The layers that EAGLE-3 reads: those of an option, of its config, or of the formula."""

from pathlib import Path
from typing import Any

import pytest

from specbench.errors import CheckpointError, UserError
from tests.methods.checkpoints import IDS
from tests.support.models import random_target
from tests.support.weights import build


def layers_read(
    folder: Path,
    *,
    flat: list[int] | None = None,
    nested: list[int] | None = None,
    option: str = "",
) -> tuple[int, ...]:
    """The layers that EAGLE-3 reads of a target of 8 layers. The config has two fields for them."""
    fields = {IDS: flat, "eagle_config": {IDS: nested}}
    drafter = build("eagle3", random_target(layers=8), folder, maker_args=fields, layers=option)
    return drafter.needs.layer_inputs


def test_eagle3_reads_the_formulas_layers_if_its_config_names_no_layers(tmp_path: Path) -> None:
    assert layers_read(tmp_path) == (2, 4, 5)


@pytest.mark.parametrize(
    ("field", "layers"),
    [
        ({"flat": [6, 1, 3]}, (1, 3, 6)),
        ({"nested": [1, 3, 4]}, (2, 4, 5)),  # the formula's layers, numbered by their outputs
        ({"nested": [2, 4, 5]}, (2, 4, 5)),
        ({"nested": [2, 5, 8]}, (2, 5, 8)),  # 8 layers: the last one's output counts as an input
    ],
)
def test_eagle3_reads_the_layers_of_its_config(
    field: dict[str, Any], layers: tuple[int, ...], tmp_path: Path
) -> None:
    assert layers_read(tmp_path, **field) == layers


@pytest.mark.parametrize(
    ("field", "option", "layers"),
    [
        ({"nested": [1, 3, 6]}, "2+4+7", (2, 4, 7)),
        ({"flat": [6, 1, 3]}, "0+1+8", (0, 1, 8)),
        ({"flat": [6, 1, 3]}, "0+1+2", (0, 1, 2)),
    ],
)
def test_the_option_layers_overrides_the_config_of_eagle3(
    field: dict[str, Any], option: str, layers: tuple[int, ...], tmp_path: Path
) -> None:
    assert layers_read(tmp_path, **field, option=option) == layers


def test_nested_layers_of_unknown_numbering_need_the_option(tmp_path: Path) -> None:
    nested = [1, 3, 6]
    with pytest.raises(CheckpointError, match=r"\[1, 3, 6\] in eagle_config") as caught:
        layers_read(tmp_path, nested=nested)
    assert "layers=1+3+6" in caught.value.hint
    assert "layers=2+4+7" in caught.value.hint
    with pytest.raises(UserError, match="'2,4' is not a list"):
        layers_read(tmp_path, nested=nested, option="2,4")
