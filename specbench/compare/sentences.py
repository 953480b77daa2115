"""The results of a comparison in sentences. They claim what the intervals support, and no more."""

from collections.abc import Mapping

from specbench.analysis.cells import BASELINE
from specbench.analysis.stats.bootstrap import Estimate, Missing, Value
from specbench.compare.comparison import Comparison
from specbench.compare.pairs import CellPair
from specbench.log.header import RunHeader
from specbench.report import formats

_EXACT = 1e-9
"""Rounding: an interval that ends this close to 1 includes 1."""


def is_significant(ratio: Value) -> bool:
    """True if the interval excludes 1."""
    interval = ratio.interval if isinstance(ratio, Estimate) else None
    return interval is not None and (interval.low > 1 + _EXACT or interval.high < 1 - _EXACT)


def ratio_text(ratio: Value, *, is_short: bool = False) -> str:
    """A ratio with its interval: 1.08 [1.06, 1.10], or 1.08 ±0.02."""
    spread = formats.plus_minus(ratio) if is_short else formats.brackets(ratio)
    return formats.mat(ratio) + spread


def change_sentences(
    comparison: Comparison, letters: tuple[str, str], *, temperature: float, task: str
) -> str:
    """The changes on one task or the mean: vanilla's speed, then speedups and MAT of the methods.

    `letters` are the subject's and the reference's.
    """
    subject, reference = letters
    cells = {m: comparison.cell(m, temperature, task) for m in comparison.methods}
    vanilla = cells.pop(BASELINE, None)
    sentences = []
    if vanilla:
        ratio = vanilla.tokens_per_s.ratio
        if isinstance(ratio, Missing):
            sentences.append(f"Vanilla is not compared: {ratio.reason}.")
        else:
            doubt = "" if _is_clear(ratio) else ", which is not a significant difference"
            text = f"Vanilla is {_times(ratio)} as fast in {subject} as in {reference}"
            sentences.append(f"{text}{doubt}.")
    numbers = {
        "Tokens per second": {} if vanilla else {m: c.tokens_per_s for m, c in cells.items()},
        "Speedup over vanilla": {m: c.speedup for m, c in cells.items()} if vanilla else {},
        "MAT": {m: cell.mat for m, cell in cells.items()},
    }
    for name, pairs in numbers.items():
        if pairs:
            ratios = {comparison.subject.method(m).label: pair.ratio for m, pair in pairs.items()}
            sentences.append(f"{name}{_changes(ratios, subject)}.")
    return " ".join(sentences)


def cross_sentence(comparison: Comparison, letters: tuple[str, str], cell: CellPair) -> str:
    """The speed of one method in one run, relative to another method in another run."""
    ratio = cell.tokens_per_s.ratio
    infos = comparison.subject, comparison.reference
    methods = comparison.methods[0], comparison.reference_method or BASELINE
    own, other = (
        f"{info.method(method).label} {place}"
        for info, method, place in zip(infos, methods, _places(*infos, letters), strict=True)
    )
    if isinstance(ratio, Missing):
        return f"{own} and {other} are not compared: {ratio.reason}."
    spread = f" ± {ratio.interval.half_width:.2f}" if ratio.interval else ""
    mean = ", by the mean of the tasks" if len(comparison.tasks) > 1 else ""
    doubt = "" if _is_clear(ratio) or not ratio.interval else ": not a significant difference"
    return f"{own} is {ratio.value:.2f}{spread} times as fast as {other}{mean}{doubt}."


def _places(subject: RunHeader, reference: RunHeader, letters: tuple[str, str]) -> tuple[str, str]:
    """The two machines if they differ, else the letters."""
    devices = [info.machine.device.partition(",")[0] for info in (subject, reference)]
    if devices[0] != devices[1]:
        return f"on the {devices[0]}", f"on the {devices[1]}"
    return f"in {letters[0]}", f"in {letters[1]}"


def _changes(ratios: Mapping[str, Value], subject: str) -> str:
    """The methods (label -> ratio) that changed significantly, the largest changes first."""
    known = [ratio for ratio in ratios.values() if isinstance(ratio, Estimate)]
    if not known:
        reasons = {ratio.reason for ratio in ratios.values() if isinstance(ratio, Missing)}
        return f" is not compared: {', '.join(sorted(reasons))}"
    changed = {
        label: r for label, r in ratios.items() if isinstance(r, Estimate) and is_significant(r)
    }
    if not changed:
        if all(map(_is_same, known)):
            return " is the same in both"
        if not any(ratio.interval for ratio in known):
            return ": too few samples to see a change"
        return " does not differ significantly for any method"
    parts = []
    for word, sign in (("higher", 1), ("lower", -1)):
        found = {label: r for label, r in changed.items() if (r.value - 1) * sign > 0}
        if found:
            parts.append(f"{word} in {subject} for {_list(found)}")
    rest = "" if len(changed) == len(ratios) else "; the others do not differ significantly"
    return f" is {' and '.join(parts)}{rest}"


def _list(ratios: Mapping[str, Estimate], most: int = 3) -> str:
    ranked = sorted(ratios, key=lambda label: abs(ratios[label].value - 1), reverse=True)
    named = [f"{label} ({_times(ratios[label])})" for label in ranked[:most]]
    more = f" and {len(ranked) - most} more" if len(ranked) > most else ""
    return ", ".join(named) + more


def _times(ratio: Estimate) -> str:
    return f"{ratio.value:.2f} times{formats.brackets(ratio)}"


def _is_clear(ratio: Estimate) -> bool:
    return is_significant(ratio) or _is_same(ratio)


def _is_same(ratio: Estimate) -> bool:
    """True if nothing differs, in any sample."""
    interval = ratio.interval
    return interval is not None and max(abs(interval.low - 1), abs(interval.high - 1)) < _EXACT
