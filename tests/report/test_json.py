"""The JSON document: every number once, no NaN, and the golden file."""

import json
import math
from typing import Any

import pytest

from specbench.analysis.metrics import measure
from specbench.analysis.units import PROMPTS_ONLY
from specbench.report.build import make_report
from specbench.report.export.json import SCHEMA, digest, plain
from tests.report.drawing import (
    EVERY_RUN,
    render,
    two_temperatures,
)


def refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


@pytest.mark.parametrize("make", EVERY_RUN)
def test_the_document_is_strict_json_and_says_what_it_is(make: Any) -> None:
    document = json.loads(render(make(), "json"), parse_constant=refuse)
    assert document["schema"] == SCHEMA
    assert document["kind"] == "specbench report"


def test_every_cell_has_its_numbers_or_the_reason_for_their_absence() -> None:
    run = two_temperatures()
    metrics = measure(run)
    (written,) = json.loads(render(make_report(run), "json"))["runs"]
    assert len(written["cells"]) == len([key for key in metrics.cells if key.task])
    for cell in written["cells"]:
        own = metrics.cell(cell["method"], cell["temperature"], cell["task"])
        speedup = getattr(own.speedup, "value", None)
        if speedup is None:
            assert cell["speedup"] == {"missing": own.speedup.reason}  # type: ignore[union-attr]
        else:
            assert math.isclose(cell["speedup"]["value"], speedup, rel_tol=1e-9)
        histogram = {str(length): count for length, count in own.accept_histogram.items()}
        assert cell["accept_histogram"] == histogram
        assert cell["num_failed"] == own.num_failed
    assert written["environment"]["cpu"]["model"] == "Example CPU 9000"
    assert "31 of 32 requests" in written["warnings"][0]
    assert written["warnings"][1:] == ["The clock of the CPU changed during the run."]
    assert written["intervals"] == PROMPTS_ONLY
    assert [one["temperature"] for one in written["rankings"]] == [0.0, 1.0]


def test_nan_is_written_as_missing() -> None:
    assert plain({"a": math.nan, "b": [math.inf]}) == {
        "a": {"missing": "not a finite number"},
        "b": [{"missing": "not a finite number"}],
    }


def test_a_digest_ignores_rounding_and_nothing_else() -> None:
    assert digest('{"a": 1.2345678901}') == digest('{"a": 1.2345678902}')
    assert digest('{"a": 1.23456}') != digest('{"a": 1.23457}')
    assert digest('{"a": 1}') != digest('{"a": 2}')
