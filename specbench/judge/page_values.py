"""Write the rows of the site as values of JSON."""

import json
from dataclasses import fields
from typing import Any

from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.report.formats import interval_of


def plain_values(row: Any) -> dict[str, Any]:
    """The row as values of JSON."""
    return {field.name: _json_value(getattr(row, field.name)) for field in fields(row)}


def _json_value(field_value: Any) -> Any:
    """The value of a row's field as a value of JSON.

    An estimate becomes a list of its number and, if an interval is shown, the two ends, with six
    digits each. A missing number becomes None. Other values stay as they are.
    """
    if isinstance(field_value, Missing):
        return None
    if not isinstance(field_value, Estimate):
        return field_value
    numbers = [field_value.value]
    # `interval` is None if the number has only a wide interval, which supports no place on a
    # leaderboard. `interval_of` is None if the whole interval is within a rounding error.
    if field_value.interval and (interval := interval_of(field_value)):
        numbers += [interval.low, interval.high]
    return [json.loads(f"{number:.6g}") for number in numbers]
