"""The JSON document: every number once, no NaN, and the golden file."""

import json
import math
from typing import Any

import pytest

from specbench.report.export.json import SCHEMA, digest, plain
from tests.report.drawing import (
    EVERY_RUN,
    render,
)


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize("make", EVERY_RUN)
def test_the_document_is_strict_json_and_says_what_it_is(make: Any) -> None:
    document = json.loads(render(make(), "json"), parse_constant=refuse)
    assert document["schema"] == SCHEMA
    assert document["kind"] == "specbench report"


def test_nan_is_written_as_missing() -> None:
    assert plain({"a": math.nan, "b": [math.inf]}) == {
        "a": {"missing": "not a finite number"},
        "b": [{"missing": "not a finite number"}],
    }


def test_a_digest_ignores_rounding_and_nothing_else() -> None:
    assert digest('{"a": 1.2345678901}') == digest('{"a": 1.2345678902}')
    assert digest('{"a": 1.23456}') != digest('{"a": 1.23457}')
    assert digest('{"a": 1}') != digest('{"a": 2}')
