"""Write numbers as texts that are the same in every format of a report."""

from specbench.analysis.stats.estimates import Estimate, Interval, Missing, Value

NONE = "–"
"""The text in place of a missing number."""
_ROUNDING = 1e-9
"""An interval that is not wider than this is a rounding error."""


def speedup(ratio: Value) -> str:
    """Write a speedup, such as 1.42x."""
    return f"{ratio.value:.2f}x" if isinstance(ratio, Estimate) else NONE


def mat(tokens: Value) -> str:
    """Write mean accepted tokens, such as 1.73."""
    return f"{tokens.value:.2f}" if isinstance(tokens, Estimate) else NONE


def rate(tokens_per_s: Value) -> str:
    """Write tokens per second with at least three figures."""
    return NONE if isinstance(tokens_per_s, Missing) else at_least(3, tokens_per_s.value)


def at_least(num_figures: int, number: float) -> str:
    """Write a number with this many significant figures, or with all figures of its whole part.

    With two figures, results are 3.5, 8 or 130.
    """
    is_whole = number >= 10 ** (num_figures - 1)
    return f"{number:.0f}" if is_whole else f"{number:.{num_figures}g}"


def requests(num_figures: int, number: float) -> str:
    """Write a number of requests with this many significant figures, such as 1 request."""
    number_text = at_least(num_figures, number)
    return f"{number_text} request" if number_text == "1" else f"{number_text} requests"


def figures(quantity: Value, scale: float = 1.0) -> str:
    """Write a scaled number with three significant figures, zeros included, such as 2.50."""
    if isinstance(quantity, Missing):
        return NONE
    scaled = quantity.value * scale
    return f"{scaled:.0f}" if scaled >= 100 else f"{scaled:#.3g}"


def percent(share: Value) -> str:
    """Write a share as a percentage. Only a share of 1 becomes 100 %."""
    if isinstance(share, Missing):
        return NONE
    if share.value >= 1:
        return "100 %"
    shown = min(share.value * 100, 99.9)
    return "0 %" if shown == 0 else f"{shown:.1f} %"


def ends(interval: Interval) -> str:
    """Write both ends of an interval, such as 1.38–1.46."""
    return f"{interval.low:.2f}–{interval.high:.2f}"


def brackets(estimate: Value) -> str:
    """Return the interval as a suffix, such as " [1.38, 1.46]", or "" without an interval."""
    interval = interval_of(estimate)
    return f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""


def plus_minus(estimate: Value) -> str:
    """Return half the width of the interval as a suffix, such as " ±0.04", or "" without one."""
    interval = interval_of(estimate)
    return f" ±{interval.half_width:.2f}" if interval else ""


def interval_of(estimate: Value) -> Interval | None:
    """Return the interval to show, or None.

    An interval whose width is only a rounding error is not shown, such as that of vanilla's speedup
    over itself.
    """
    if isinstance(estimate, Missing) or estimate.shown_interval is None:
        return None
    interval = estimate.shown_interval
    return interval if interval.high - interval.low > _ROUNDING else None


def no_interval(estimate: Value) -> str:
    """Return why a number has no interval, or "" if it has one or needs none.

    Vanilla's speedup of 1 needs none. All intervals of a report are over prompts, so a missing
    interval means that there are too few prompts.
    """
    if isinstance(estimate, Missing) or estimate.shown_interval is not None or estimate.value == 1:
        return ""
    return "too few samples"


def one_decides(num_tasks: int) -> str:
    """Return the words that replace the missing interval of a number over `num_tasks` tasks."""
    return f"±? (one {'task' if num_tasks > 1 else 'prompt'} dominates)"


def num_bytes(size: float) -> str:
    """Write a size with its unit, such as 26 GB."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{at_least(3, size / factor)} {unit}"
    return f"{at_least(3, size / 1e3)} kB"


def temperature(level: float) -> str:
    """Return the heading for a temperature, as in the papers: Temperature=0."""
    return f"Temperature={level:g}"
