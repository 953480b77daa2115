"""Turn numbers that may be missing into columns of a table."""

from typing import Any

from specbench.analysis.stats.estimates import Estimate, Missing, Value


def value_columns(name: str, value: Value) -> dict[str, Any]:
    """Turn a number into columns: value, ends of the interval, and the reason if it is missing."""
    interval = value.shown_interval if isinstance(value, Estimate) else None
    return {
        name: value_or_none(value),
        f"{name}_low": interval.low if interval else None,
        f"{name}_high": interval.high if interval else None,
        f"{name}_missing": value.reason if isinstance(value, Missing) else None,
    }


def value_or_none(value: Value) -> float | None:
    """Return the number without its interval; None if it is missing."""
    return value.value if isinstance(value, Estimate) else None
