"""TOML files as typed values: errors name the field and the file."""

from pathlib import Path

import pytest
from msgspec import Struct

from specbench.data.toml_files import read_toml
from specbench.errors import UserError


class Card(Struct, forbid_unknown_fields=True):
    name: str
    sizes: dict[str, int]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("sizes = {}", "missing required field `name`"),
        ('name = "x"\nsizes = {}\ncolour = 1', "line 3: .* `colour`. Known: name, sizes."),
        ("[size]\na = 1", "line 1: .* unknown field `size`. Did you mean 'sizes'"),
        ('name = "x"\nsizes = {a = "b"}', r"Expected `int`, got `str` - at `\$.sizes\[...\]`"),
        ("name = ", "Invalid value"),
        (f"name = {'[' * 5000}{']' * 5000}", "its values are too deep"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "card.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=reason) as refused:
        read_toml(path, Card, what="Card", hint="See the manual.")
    assert str(path) in str(refused.value)


def test_a_missing_file_is_one_message(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_toml(tmp_path / "none.toml", Card, what="Card", hint="")
