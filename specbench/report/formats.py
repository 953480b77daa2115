"""How one number is written. The same words in every rendering."""

from specbench.analysis.stats import Estimate, Interval, Missing, Value

NONE = "–"


def speedup(value: Value) -> str:
    """A speedup: 1.42x."""
    return f"{value.value:.2f}x" if isinstance(value, Estimate) else NONE


def mat(value: Value) -> str:
    """Mean accepted tokens: 1.73."""
    return f"{value.value:.2f}" if isinstance(value, Estimate) else NONE


def rate(value: Value) -> str:
    """Tokens per second, with three figures or more."""
    if isinstance(value, Missing):
        return NONE
    return f"{value.value:.0f}" if value.value >= 100 else f"{value.value:.3g}"


def percent(value: Value) -> str:
    """A share. Only a full one is written 100 %."""
    if isinstance(value, Missing):
        return NONE
    shown = min(value.value * 100, 99.9) if value.value < 1 else 100.0
    return f"{shown:.0f} %" if shown in (0.0, 100.0) else f"{shown:.1f} %"


def span(value: Value) -> str:
    """The interval's two ends alone: 1.38–1.46."""
    interval = interval_of(value)
    return f"{interval.low:.2f}–{interval.high:.2f}" if interval else NONE


def bracketed(value: Value) -> str:
    """The number followed by its interval: 1.42x [1.38, 1.46]."""
    interval = interval_of(value)
    return speedup(value) + (f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else "")


def plus_minus(value: Value) -> str:
    """The number and half its interval's width: 1.42x ±0.04."""
    interval = interval_of(value)
    return speedup(value) + (f" ±{interval.half_width:.2f}" if interval else "")


def interval_of(value: Value) -> Interval | None:
    """The interval of a value that has one; vanilla against itself has none to speak of."""
    interval = value.interval if isinstance(value, Estimate) else None
    return interval if interval and interval.low < interval.high else None


def temperature(value: float) -> str:
    """The heading of a block, as the papers write it: Temperature=0."""
    return f"Temperature={value:g}"
