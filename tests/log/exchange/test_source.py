"""Strict reading names oddities with their place. A damaged file gives one message."""

import json
from pathlib import Path

import pytest

from specbench.errors import UserError
from specbench.log.exchange.source import read_source
from tests.log.exchange.files import about, answer, imported, write_lines


def test_a_misspelt_key_is_read_and_named(tmp_path: Path) -> None:
    line = answer(1)
    line["choices"][0]["new_token"] = line["choices"][0].pop("new_tokens")
    run = imported(tmp_path, str(write_lines(tmp_path / "a.jsonl", answer(0), line)))
    assert [record.num_tokens for record in run.records] == [6, 6]
    (oddity,) = about(run).oddities
    place = "a.jsonl, line 2, choices[0]"
    assert oddity == f"{place}: the key 'new_token' is misspelt, and is read as 'new_tokens'"


def test_a_bare_nan_is_named_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": NaN, "b": [1, -Infinity]}\n{"a": 1}\n')
    source = read_source(path)
    assert source.entries[0].content == {"a": None, "b": [1, None]}
    assert source.oddities == [
        "a.jsonl, line 1: 2 values that JSON does not have are left out: -Infinity, NaN"
    ]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "a.json: the file has no values"),
        (b'{"a": 1}\n{"a": \n', "line 2, column 7: expected JSON, found expecting value"),
        (b'{\n"a": 1\n"b": 2}', "line 3, column 1: expected JSON"),
        (b'{"a": 1, "a": 2}', "the key 'a' occurs twice in one object"),
        (b'{"a": 1e999}', "1e999 is too large for a number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is too large for a number"),
        ('{"a": "é"}'.encode("latin-1"), "line 1: byte 7 is not UTF-8"),
        (json.dumps({"a": 1}).encode("utf-16"), "line 1: byte 0 is not UTF-8"),
        (b"[" * 100_000, "recursion"),
        (b'{"model": "m"}', "no known format begins with the keys model. Known: "),
        (b"[1]", "no known format begins with a value that is not an object"),
    ],
)
def test_a_damaged_file_gives_one_message(raw: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(raw)
    with pytest.raises(UserError, match=message) as raised:
        imported(tmp_path, str(path))
    assert "\n" not in raised.value.message


def test_a_missing_file_and_a_copy_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        imported(tmp_path, str(tmp_path / "no.jsonl"))
    path = write_lines(tmp_path / "a.jsonl", answer(1))
    copy = write_lines(tmp_path / "b.jsonl", answer(1))
    with pytest.raises(UserError, match="or a copy of it"):
        imported(tmp_path, f"a={path}", f"a={copy}")
