"""The schema of the run files describes every field, and so does results/README.md."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from specbench.errors import UserError
from specbench.log.schema import KINDS, fields, json_schema

README = Path(__file__).parents[2] / "results" / "README.md"


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_has_a_description(kind: str) -> None:
    assert [field.path for field in fields(kind) if not field.text] == []


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_documented_with_its_type_and_meaning(kind: str) -> None:
    text = README.read_text("utf-8")
    named = [one for one in fields(kind) if not one.path.startswith("spec.values.")]  # by run -h
    rows = [f"| `{field.path}` | {field.kind} | {field.text} |" for field in named]
    assert [row for row in rows if row not in text] == []


def test_the_fields_of_a_header_are_those_of_a_recorded_run() -> None:
    recorded = README.parent / "recorded" / "amd-epyc-2-cores" / "run.json"
    known = {field.path for field in fields("header")}
    assert set(json.loads(recorded.read_text())) <= known
    assert {"spec.values.limit", "prompts[].sha256", "model.files.*.sha256"} <= known


def test_an_unknown_kind_of_file_is_refused() -> None:
    with pytest.raises(UserError, match="Did you mean 'record'"):
        json_schema("records")
