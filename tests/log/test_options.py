"""Declared options: texts of values, limits, and the values of a run.

The schema of the run files describes every field, and so does results/README.md.
"""

import math
import re

import pytest

from specbench.errors import UserError
from specbench.log.options import Option, options
from specbench.log.schema import KINDS, json_schema
from specbench.log.spec import SpecValues
from tests.support.paths import ROOT

OPTIONS = {option.name: option for option in options(SpecValues)}


def test_every_value_of_a_run_is_an_option_with_a_unique_name() -> None:
    assert (*OPTIONS, "is_first_look") == SpecValues.__struct_fields__  # a command without any
    parameters = [option.parameter for option in OPTIONS.values()]
    assert len({*parameters}) == len(parameters)


@pytest.mark.parametrize(
    ("name", "given", "parsed"),
    [
        ("methods", ["pld,sps:num_tokens=4", " "], ("pld,sps:num_tokens=4",)),
        ("tasks", ["gsm8k, mt_bench", "mine.toml"], ("gsm8k", "mt_bench", "mine.toml")),
        ("temperatures", ["0,1", "0"], (0.0, 1.0)),
        ("until_ci", "2%", 0.02),
        ("threads", "auto", None),
        ("threads", "3", 3),
        ("backend", "engine", ""),
        ("engine_args", "--seed '1 2'", ("--seed", "1 2")),
    ],
)
def test_a_value_is_read_from_a_command_line_and_written_back(
    name: str, given: object, parsed: object
) -> None:
    option = OPTIONS[name]
    assert option.read(given) == parsed
    if parsed:
        written = option.write(parsed)
        assert option.read([written] if option.is_many else written) == parsed


def test_defaults_are_allowed_and_smaller_values_refused() -> None:
    for name, option in OPTIONS.items():
        option.check(getattr(SpecValues(), name))
    limits = [(option, option.least) for option in OPTIONS.values() if option.least is not None]
    assert len(limits) > 5
    for option, least in limits:
        with pytest.raises(UserError, match="is too small"):
            option.check(least - 1)


@pytest.mark.parametrize(
    ("checked", "number", "message", "hint"),
    [
        (Option("measure", "note", name="x"), math.inf, "--x inf is too large.", "a smaller num"),
        (Option("measure", "note", name="x"), math.nan, "--x nan is not a number.", "a number"),
        (Option("measure", "note", name="x", most=2), 3, "--x 3 is too large.", "at most 2"),
        (OPTIONS["seed"], 10**400, "--seed inf is too large.", "a smaller number"),
        (OPTIONS["seed"], -(10**400), "--seed -inf is too small.", "at least 0"),
        (OPTIONS["request_rates"], math.inf, "--request-rate inf is too large.", "a smaller num"),
        (OPTIONS["request_rates"], 0.0, "--request-rate 0 is too small.", "above 0"),
    ],
)
def test_a_number_outside_its_limits_is_refused_with_the_limit(
    checked: Option, number: float, message: str, hint: str
) -> None:
    with pytest.raises(UserError, match=f"^{re.escape(message)}") as refused:
        checked.check(number)
    assert f"Give --{checked.parameter or checked.name} {hint}".replace("_", "-") in str(
        refused.value.hint
    )


README = ROOT / "results" / "README.md"


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_is_documented_with_its_meaning(kind: str) -> None:
    text = README.read_text("utf-8")
    for name, about in json_schema(kind)["$defs"].items():
        for field, schema in about["properties"].items():
            row = rf"{field}` \|[^|]*\| {re.escape(schema['description'])} \|"
            assert name == "SpecValues" or re.search(row, text), row  # `run -h` has these
