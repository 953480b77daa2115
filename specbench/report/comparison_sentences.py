"""What a comparison says: a ratio in figures, and what changed in a sentence.

Claims what the intervals bear out, and no more.
"""

from specbench.analysis.compare import Comparison
from specbench.analysis.header import RunInfo
from specbench.analysis.metrics import BASELINE
from specbench.analysis.pairs import CellPair, Pair
from specbench.analysis.stats import Estimate, Missing, Value
from specbench.report import formats

_EXACT = 1e-9
"""Rounding: an interval that ends this close to 1 is one that holds 1."""


def is_told_apart(ratio: Value) -> bool:
    """Whether the interval bears out that a ratio is not 1."""
    interval = ratio.interval if isinstance(ratio, Estimate) else None
    return interval is not None and (interval.low > 1 + _EXACT or interval.high < 1 - _EXACT)


def ratio_text(ratio: Value, *, is_short: bool = False) -> str:
    """A ratio with its interval: 1.08 [1.06, 1.10], or 1.08 ±0.02."""
    if isinstance(ratio, Missing):
        return formats.NONE
    interval, shown = ratio.interval, f"{ratio.value:.2f}"
    if interval is None or interval.high - interval.low < _EXACT:
        return shown
    if is_short:
        return f"{shown} ±{interval.half_width:.2f}"
    return f"{shown} [{interval.low:.2f}, {interval.high:.2f}]"


def sentence(one: Comparison, letters: tuple[str, str], temperature: float, task: str) -> str:
    """What changed, by the mean of the tasks: vanilla's speed, the methods' speedups and MAT."""
    subject, reference = letters
    cells = {method: one.cell(method, temperature, task) for method in one.methods}
    sentences = []
    if BASELINE in cells:
        ratio = cells.pop(BASELINE).tokens_per_s.ratio
        said = f"{_times(ratio)} as fast in {subject} as in {reference}"
        sure = "" if is_told_apart(ratio) or _is_same(ratio) else ", which is not told apart from 1"
        sentences.append(f"Vanilla is {said}{sure}.")
    elif cells:
        rates = {method: cell.tokens_per_s for method, cell in cells.items()}
        sentences.append(_changes("Tokens per second", rates, one.subject, letters))
    if cells and BASELINE in one.methods:
        speedups = {method: cell.speedup for method, cell in cells.items()}
        sentences.append(_changes("Speedup over vanilla", speedups, one.subject, letters))
    if cells:
        mats = {method: cell.mat for method, cell in cells.items()}
        sentences.append(_changes("MAT", mats, one.subject, letters))
    return " ".join(sentences)


def cross_sentence(one: Comparison, letters: tuple[str, str], cell: CellPair) -> str:
    """How many times as fast one method is in one run as another in the other."""
    ratio = cell.tokens_per_s.ratio
    places = _places(one.subject, one.reference, letters)
    labels = [one.subject.method(one.methods[0]).label]
    labels.append(one.reference.method(one.reference_method or BASELINE).label)
    own, other = (f"{label} {place}" for label, place in zip(labels, places, strict=True))
    if not isinstance(ratio, Estimate):
        return f"{own} is not held against {other}: {ratio.reason}."
    spread = f" ± {ratio.interval.half_width:.2f}" if ratio.interval else ""
    mean = ", by the mean of the tasks" if len(one.tasks) > 1 else ""
    said = f"{own} is {ratio.value:.2f}{spread} times as fast as {other}{mean}"
    if ratio.interval and not is_told_apart(ratio) and not _is_same(ratio):
        return f"{said}: not told apart."
    return f"{said}."


def _places(subject: RunInfo, reference: RunInfo, letters: tuple[str, str]) -> tuple[str, str]:
    """Where each ran: on its machine, if the machines differ."""
    devices = [info.machine.device.partition(",")[0] for info in (subject, reference)]
    if devices[0] != devices[1]:
        return f"on the {devices[0]}", f"on the {devices[1]}"
    return f"in {letters[0]}", f"in {letters[1]}"


def _changes(what: str, pairs: dict[str, Pair], info: RunInfo, letters: tuple[str, str]) -> str:
    """The methods in which a number is told apart, the greatest changes first."""
    sure = {m: pair.ratio for m, pair in pairs.items() if is_told_apart(pair.ratio)}
    known = [pair.ratio for pair in pairs.values() if isinstance(pair.ratio, Estimate)]
    if not known:
        reasons = {p.ratio.reason for p in pairs.values() if isinstance(p.ratio, Missing)}
        return f"{what} is not compared: {', '.join(sorted(reasons))}."
    if not sure:
        if all(map(_is_same, known)):
            return f"{what} is the same in both."
        if not any(ratio.interval for ratio in known):
            return f"{what}: too few samples to tell a change."
        return f"{what} is not told apart for any method."
    sides = {
        "higher": {m: r for m, r in sure.items() if _number(r) > 1},
        "lower": {m: r for m, r in sure.items() if _number(r) < 1},
    }
    parts = [
        f"{word} in {letters[0]} for {_list(found, info)}" for word, found in sides.items() if found
    ]
    rest = "" if len(sure) == len(pairs) else "; for the others it is not told apart"
    return f"{what} is {' and '.join(parts)}{rest}."


def _list(ratios: dict[str, Value], info: RunInfo, most: int = 3) -> str:
    ranked = sorted(ratios, key=lambda method: abs(_number(ratios[method]) - 1), reverse=True)
    named = [f"{info.method(method).label} ({_times(ratios[method])})" for method in ranked[:most]]
    more = f" and {len(ranked) - most} more" if len(ranked) > most else ""
    return ", ".join(named) + more


def _times(ratio: Value) -> str:
    if isinstance(ratio, Missing):
        return f"not held against ({ratio.reason})"
    interval = ratio.interval
    shown = f"{ratio.value:.2f} times"
    if interval is None or interval.high - interval.low < _EXACT:
        return shown
    return f"{shown} [{interval.low:.2f}, {interval.high:.2f}]"


def _number(value: Value) -> float:
    assert isinstance(value, Estimate)
    return value.value


def _is_same(ratio: Value) -> bool:
    """Whether nothing differs at all, in any sample."""
    if not isinstance(ratio, Estimate) or ratio.interval is None:
        return False
    return max(abs(ratio.interval.low - 1), abs(ratio.interval.high - 1)) < _EXACT
