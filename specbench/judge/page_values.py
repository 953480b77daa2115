"""The values of the site's rows in JSON."""

import json
from dataclasses import fields
from typing import Any

from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.report.formats import interval_of


def plain_values(row: Any) -> dict[str, Any]:
    """The row as values of JSON."""
    return {field.name: _json_value(getattr(row, field.name)) for field in fields(row)}


def _json_value(field_value: Any) -> Any:
    """A field of a row as JSON holds it: its value, or None if it is a missing number.

    For an estimate, it is a list of the number and, if it has an interval, its two ends, in six
    digits.
    """
    if isinstance(field_value, Missing):
        return None
    if not isinstance(field_value, Estimate):
        return field_value
    numbers = [field_value.value]
    # a wide interval supports no place on a leaderboard
    if field_value.interval and (interval := interval_of(field_value)):
        numbers += [interval.low, interval.high]
    return [json.loads(f"{number:.6g}") for number in numbers]
