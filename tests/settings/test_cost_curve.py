"""A damaged cost curve is refused when it is read. The message names the file and the fault."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specbench.errors import UserError
from specbench.settings.cost_curve import CURVE_FILE, read_curve

GOOD: dict[str, Any] = {
    "schema": 1,
    "about": {"machine": "this one"},
    "vanilla_s": 0.01,
    "threads": [2, 1],
    "rows": [1, 4],
    "lengths": [10, 100, 400],
    "most_context": 400,
    "steps": [[[[1.0, 1.2]] * 3] * 2] * 2,
    "prefill": [[1.0, 2.0, 5.0]] * 2,
    "methods": {
        "pld": {
            "kind": "text",
            "is_padded": False,
            "knots": [{"drafted": 0}, {"drafted": 1}],
            "draft": [[[0.0, 0.1]] * 2] * 2,
            "start": [[0.0, 0.0, -0.1]] * 2,
        }
    },
}
Change = Callable[[dict[str, Any]], object]


def put(name: str, value: Any) -> Change:
    return lambda curve: curve.update({name: value})


def write(folder: Path, curve: dict[str, Any]) -> Path:
    (folder / CURVE_FILE).write_text(json.dumps(curve))
    return folder


def test_a_good_curve_is_read(tmp_path: Path) -> None:
    assert read_curve(write(tmp_path, GOOD)).middle_context == 100


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("rows", [1]), "steps has the sizes 2 x 2 x 3 x 2, and its axes 2 x 2 x 3 x 1"),
        (put("lengths", []), "lengths are not numbers of 1 or more"),
        (put("threads", [0, 1]), "threads are not numbers of 1 or more"),
        (put("steps", [[[[0.0, 0.0]] * 3] * 2] * 2), "steps has a time that is not positive"),
        (put("steps", [[[[-1.0, 1.0]] * 3] * 2] * 2), "steps has a time that is not positive"),
        (put("steps", [[[[1.0, 1.2]] * 3] * 2, [[[1.0]] * 3] * 2]), "rows of several lengths"),
        (put("vanilla_s", -1), "vanilla_s is -1"),
        (put("prefill", [[1.0, 2.0]] * 2), "prefill has the sizes 2 x 2, and its axes 2 x 3"),
        (lambda curve: curve["methods"]["pld"].update(knots=[{"drafted": 0}]), "pld: draft has"),
        (lambda curve: curve["methods"]["pld"].update(start=[[0.0] * 3]), "pld: start has"),
    ],
)
def test_a_damaged_curve_is_refused(tmp_path: Path, change: Change, message: str) -> None:
    curve = json.loads(json.dumps(GOOD))
    change(curve)
    with pytest.raises(UserError) as failure:
        read_curve(write(tmp_path, curve))
    assert message in str(failure.value) and CURVE_FILE in str(failure.value)
