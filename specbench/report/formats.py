"""Write numbers as text, in the same way in every format of a report."""

from specbench.analysis.stats.estimates import Estimate, Interval, Missing, Value

NONE = "–"
"""The text of a number that is missing."""
_ROUNDING = 1e-9
"""Intervals that are not wider than this are rounding errors."""


def speedup(ratio: Value) -> str:
    """A speedup: 1.42x."""
    return f"{ratio.value:.2f}x" if isinstance(ratio, Estimate) else NONE


def mat(tokens: Value) -> str:
    """Mean accepted tokens: 1.73."""
    return f"{tokens.value:.2f}" if isinstance(tokens, Estimate) else NONE


def rate(tokens_per_s: Value) -> str:
    """Tokens per second, with three figures or more."""
    return NONE if isinstance(tokens_per_s, Missing) else at_least(3, tokens_per_s.value)


def at_least(num_figures: int, number: float) -> str:
    """A number with this many significant figures, or else with all figures of its whole part.

    With two figures: 3.5, 8 or 130.
    """
    is_whole = number >= 10 ** (num_figures - 1)
    return f"{number:.0f}" if is_whole else f"{number:.{num_figures}g}"


def figures(quantity: Value, scale: float = 1.0) -> str:
    """A scaled number with three significant figures, zeros included: 2.50."""
    if isinstance(quantity, Missing):
        return NONE
    scaled = quantity.value * scale
    return f"{scaled:.0f}" if scaled >= 100 else f"{scaled:#.3g}"


def percent(share: Value) -> str:
    """A share as a percentage. Only a share of 1 is written as 100 %."""
    if isinstance(share, Missing):
        return NONE
    if share.value >= 1:
        return "100 %"
    shown = min(share.value * 100, 99.9)
    return "0 %" if shown == 0 else f"{shown:.1f} %"


def ends(interval: Interval) -> str:
    """The two ends of an interval: 1.38–1.46."""
    return f"{interval.low:.2f}–{interval.high:.2f}"


def brackets(estimate: Value) -> str:
    """The interval as a suffix, such as " [1.38, 1.46]"; empty if there is none."""
    interval = interval_of(estimate)
    return f" [{interval.low:.2f}, {interval.high:.2f}]" if interval else ""


def plus_minus(estimate: Value) -> str:
    """Half the width of the interval as a suffix, such as " ±0.04"; empty if there is none."""
    interval = interval_of(estimate)
    return f" ±{interval.half_width:.2f}" if interval else ""


def interval_of(estimate: Value) -> Interval | None:
    """The interval to show; None if there is none, or if its width is only a rounding error, as
    for vanilla's speedup over itself.
    """
    if isinstance(estimate, Missing) or estimate.shown_interval is None:
        return None
    interval = estimate.shown_interval
    return interval if interval.high - interval.low > _ROUNDING else None


def no_interval(estimate: Value) -> str:
    """Why a number has no interval; empty if it has one, or needs none.

    Vanilla's speedup of 1 needs none. All intervals of a report are over prompts, so that a missing
    interval means too few prompts.
    """
    if isinstance(estimate, Missing) or estimate.shown_interval is not None or estimate.value == 1:
        return ""
    return "too few samples"


def one_decides(num_tasks: int) -> str:
    """The words that replace a missing interval of a number over `num_tasks` tasks."""
    return f"±? (one {'task' if num_tasks > 1 else 'prompt'} dominates)"


def num_bytes(size: float) -> str:
    """A size with its unit: 26 GB."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size / 1e3:.3g} kB"


def temperature(level: float) -> str:
    """The heading of a block, as in the papers: Temperature=0."""
    return f"Temperature={level:g}"
