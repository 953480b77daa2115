"""The text of one number, the same in every format."""

from specbench.analysis.stats.estimates import Estimate, Interval, Missing, Value

NONE = "–"
"""The text of a number that is missing."""
_ROUNDING = 1e-9


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


def figures(value: Value, scale: float = 1.0) -> str:
    """A scaled number with three figures, zeros included: 2.50."""
    if isinstance(value, Missing):
        return NONE
    number = value.value * scale
    return f"{number:.0f}" if number >= 100 else f"{number:#.3g}"


def percent(value: Value) -> str:
    """A share. Only a full one is written 100 %."""
    if isinstance(value, Missing):
        return NONE
    shown = min(value.value * 100, 99.9) if value.value < 1 else 100.0
    return f"{shown:.0f} %" if shown in (0.0, 100.0) else f"{shown:.1f} %"


def ends(interval: Interval) -> str:
    """The two ends of an interval: 1.38–1.46."""
    return f"{interval.low:.2f}–{interval.high:.2f}"


def brackets(value: Value) -> str:
    """The interval as a suffix: " [1.38, 1.46]", or nothing."""
    interval = interval_of(value)
    return f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""


def plus_minus(value: Value) -> str:
    """Half the width of the interval as a suffix: " ±0.04", or nothing."""
    interval = interval_of(value)
    return f" ±{interval.half_width:.2f}" if interval else ""


def interval_of(value: Value) -> Interval | None:
    """The interval, if it is wider than rounding errors: vanilla against itself has none."""
    interval = value.interval if isinstance(value, Estimate) else None
    return interval if interval and interval.high - interval.low > _ROUNDING else None


def no_interval(value: Value) -> str:
    """The reason why a number has no interval; empty if it has one, or needs none.

    Vanilla's 1 needs none. All intervals of a report are over prompts, so a missing one means
    too few prompts.
    """
    is_bare = isinstance(value, Estimate) and value.interval is None and value.value != 1
    return "too few samples" if is_bare else ""


def num_bytes(size: float) -> str:
    """A size with its unit: 26 GB."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size / 1e3:.3g} kB"


def temperature(value: float) -> str:
    """The heading of a block, as in the papers: Temperature=0."""
    return f"Temperature={value:g}"
