"""The results of a comparison in sentences. They claim what the intervals support, and no more."""

from collections.abc import Mapping

from specbench.analysis.cells import BASELINE, CellKey
from specbench.analysis.stats.bootstrap import Estimate, Missing
from specbench.errors import few
from specbench.judge.comparison import Comparison, Pair
from specbench.log.header import RunHeader
from specbench.report import formats

_EXACT = 1e-9
"""Rounding: an interval that ends this close to 1 includes 1."""
_TOO_FEW_WHOLE = "not judged, since fewer than two passes or runs have most requests"


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
            text = f"Vanilla is {_times(ratio)} as fast in {subject} as in {reference}"
            sentences.append(f"{text}{_doubt(comparison, vanilla.tokens_per_s)}.")
            if not (cells or comparison.repetition.is_judged):
                sentences.append(no_verdict(comparison))
    names = {"speedup": "Speedup over vanilla", "tokens_per_s": "Tokens per second", "mat": "MAT"}
    for number in ("speedup" if vanilla else "tokens_per_s", "mat") if cells else ():
        pairs = {comparison.subject.method(m).label: cells[m].pair(number) for m in cells}
        sentences.append(_changes(comparison, names[number], pairs, subject))
    return " ".join(sentences)


def no_verdict(comparison: Comparison) -> str:
    """The reason that no difference in speed is claimed, with the known spread of passes."""
    if comparison.repetition.is_one_run:
        return "One pass does not show how passes differ. Nothing is claimed: use --repeats 3."
    passes = max(comparison.pass_spreads, default=0.0)
    known = f" Passes of a run differ by +/- {196 * passes:.1f} % here." if passes else ""
    return (
        "Differences in speed are not judged: one run a side does not show how far runs differ on "
        f"a machine.{known} Give several a side: `specbench run --runs 5`."
    )


def cross_sentence(comparison: Comparison, letters: tuple[str, str], key: CellKey) -> str:
    """The speed of one method in one run, relative to another method in another run."""
    pair = comparison.cells[key].tokens_per_s
    ratio = pair.ratio
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
    text = f"{own} is {ratio.value:.2f}{spread} times as fast as {other}{mean}"
    if not comparison.repetition.is_judged:
        return f"{text}. {no_verdict(comparison)}"
    doubt = _doubt(comparison, pair)
    if not doubt and comparison.repetition.is_one_run and not _is_same(ratio):
        doubt = ", as two methods chosen beforehand: among all pairs of the run, `report` judges"
    return f"{text}{doubt}."


def _doubt(comparison: Comparison, pair: Pair) -> str:
    """The doubt about a difference in speed as the end of a sentence; empty if it is not judged,
    if it is claimed, or if there is none.
    """
    if not comparison.repetition.is_judged or isinstance(pair.ratio, Missing):
        return ""
    if pair.ratio.interval is None:
        return "; too few samples for an interval"
    if pair.is_claimed or _is_same(pair.ratio):
        return ""
    if pair.p_value is None:
        return f": {_TOO_FEW_WHOLE}"
    if pair.is_alone:
        return ": alone a difference, not among all comparisons"
    return ": not a significant difference"


def _places(subject: RunHeader, reference: RunHeader, letters: tuple[str, str]) -> tuple[str, str]:
    """The two machines if they differ, else the letters."""
    devices = [info.device_phrase.partition(",")[0] for info in (subject, reference)]
    if devices[0] != devices[1]:
        return f"on the {devices[0]}", f"on the {devices[1]}"
    return f"in {letters[0]}", f"in {letters[1]}"


def _changes(comparison: Comparison, name: str, pairs: Mapping[str, Pair], subject: str) -> str:
    """The methods (label -> pair) whose change is claimed, the largest changes first; or why no
    change can be claimed.
    """
    ratios = {label: pair.ratio for label, pair in pairs.items()}
    is_judged = name == "MAT" or comparison.repetition.is_judged
    known = {label: ratio for label, ratio in ratios.items() if isinstance(ratio, Estimate)}
    if not known:
        reasons = {ratio.reason for ratio in ratios.values() if isinstance(ratio, Missing)}
        return f"{name} is not compared: {', '.join(sorted(reasons))}."
    few_samples = [k for k in ratios if k not in known or known[k].interval is None]
    untested = [label for label, pair in pairs.items() if pair.p_value is None]
    blank = untested if is_judged else few_samples
    doubt = f"; not judged: {', '.join(blank)}" if blank else ""
    if all(map(_is_same, known.values())):
        return f"{name} is the same in both{doubt}."
    if not is_judged:
        return no_verdict(comparison)
    changed = {k: ratio for k, ratio in known.items() if pairs[k].is_claimed}
    if not changed:
        if len(few_samples) == len(ratios):
            return f"{name}: too few samples to see a change."
        if len(blank) == len(ratios):
            return f"{name} is {_TOO_FEW_WHOLE}."
        return f"{name} does not differ significantly for any method{doubt}."
    parts = []
    for word, sign in (("higher", 1), ("lower", -1)):
        if found := {label: r for label, r in changed.items() if (r.value - 1) * sign > 0}:
            parts.append(f"{word} in {subject} for {_list(found)}")
    has_others = len(changed) + len(blank) < len(ratios)
    rest = "; the others do not differ significantly" if has_others else ""
    return f"{name} is {' and '.join(parts)}{rest}{doubt}."


def _list(ratios: Mapping[str, Estimate]) -> str:
    ranked = sorted(ratios, key=lambda label: abs(ratios[label].value - 1), reverse=True)
    return few([f"{label} ({_times(ratios[label])})" for label in ranked])


def _times(ratio: Estimate) -> str:
    return f"{ratio.value:.2f} times{formats.brackets(ratio)}"


def _is_same(ratio: Estimate) -> bool:
    """True if nothing differs, in any sample."""
    interval = ratio.interval
    return interval is not None and max(abs(interval.low - 1), abs(interval.high - 1)) < _EXACT
