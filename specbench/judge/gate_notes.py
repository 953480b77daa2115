"""The result of the gate in sentences: its summary, and the notes below."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from statistics import median_high

from specbench.analysis.cells import BASELINE
from specbench.analysis.stats.bootstrap import Estimate
from specbench.judge.checks import NUMBERS, TOO_FEW, Check
from specbench.judge.comparison import MEAN
from specbench.log.differences import Difference
from specbench.report.texts import Note

Unjudged = Mapping[str, Sequence[str]]
"""For each kind of number that was not judged, the methods (in words) without a judged one.

There is no method if the kind has no number at all.
"""


def unjudged(checks: Sequence[Check], asked: Mapping[str, Collection[str]]) -> Unjudged:
    """What was not judged of the kinds that were asked for, of methods as records spell them."""
    found: dict[str, dict[str, bool]] = {kind: {} for kind in asked}
    for check in checks:
        if check.cell and check.cell.method in asked.get(check.name, ()):
            is_judged = found[check.name].get(check.method) or check.status != "skipped"
            found[check.name][check.method] = is_judged
    return {
        kind: [method for method, is_judged in methods.items() if not is_judged]
        for kind, methods in found.items()
        if not methods or not all(methods.values())
    }


def summary(
    run: str, baseline: str, checks: Sequence[Check], blank: Unjudged, no_speed: str | None
) -> str:
    """The result in some sentences. `no_speed` is the reason if speed was not checked."""
    failures = [check for check in checks if check.status == "failed"]
    numbers = [check for check in checks if check.name in NUMBERS]
    judged = [check for check in numbers if check.status != "skipped"]
    without = "; speed was not checked" if no_speed else ""
    counted = f"{len(judged)} of {_count(len(numbers), 'number')} judged"
    known = {check.name for check in judged}
    texts = [
        f"{kind} of {', '.join(methods)}" if kind in known else kind
        for kind, methods in blank.items()
    ]
    if failures:
        reasons = [check.text for check in failures if not check.cell]
        if methods := [check.method for check in failures if check.cell]:
            count = _count(len(methods), "failed check")
            reasons.append(f"{count}: {', '.join(dict.fromkeys(methods))}.")
        told = " ".join(reasons)
        named = f" Not judged: {'; '.join(texts)}." if texts else ""
        return f"FAILED: {run} falls behind {baseline}. {told} {counted}{without}.{named}"
    if blank:
        one = "; ".join(texts)
        what = f"{one[0].upper()}{one[1:]} could not be judged" if judged else "Nothing was checked"
        skipped = [check for check in numbers if check.method in blank.get(check.name, ())]
        return f"{what}: {counted}{without}. {_remedy(skipped)}"
    return f"Passed: {counted}; {run} does not fall behind {baseline}{without}."


def _remedy(skipped: Sequence[Check]) -> str:
    """The number of samples that these numbers need, or the reason why more would not help."""
    means = [check for check in skipped if check.cell and check.cell.task == MEAN]
    if needs := [check.needs for check in means or skipped if check.needs]:
        return f"Measure both runs with about {median_high(needs)} samples a task (--limit)."
    reasons = dict.fromkeys(check.text for check in skipped)
    return f"The reason: {'; '.join([*reasons][:2]) or 'the runs share no completion'}."


def gate_notes(
    checks: Sequence[Check], warnings: Sequence[str], no_speed: str | None, *, num_baselines: int
) -> Iterator[Note]:
    """Notes on the numbers that passed, on what was not checked, and on the two runs."""
    yield from _passed_notes(checks)
    if no_speed:
        yield Note("Speed", f"not checked: {no_speed}")
    skipped = [check for check in checks if check.status == "skipped"]
    unclear = [check for check in skipped if check.text.startswith("cannot tell")]
    for check in unclear:
        yield Note(check.method, check.text, is_warning=True)
    few = [check for check in skipped if check.text.startswith(TOO_FEW)]
    if few:
        text = f"{_count(len(few), 'number')} with {TOO_FEW}. {_remedy(few)}"
        yield Note("Skipped", text)
    others = Counter(check.text for check in skipped if check not in (*few, *unclear))
    for reason, number in others.items():
        yield Note("Skipped", f"{_count(number, 'check')}: {reason}")
    yield Note(
        "Tests",
        "one-sided, over paired samples, corrected for their number: fewer than 1 of 100 equal "
        f"runs fail by chance{_noise_text(no_speed, num_baselines)}. Intervals are 95 %.",
    )
    slower = {
        check.cell.method
        for check in checks
        if check.cell and (check.name, check.status) == ("speed", "failed")
    }
    if BASELINE in slower:
        text = (
            "Vanilla itself is slower. The cause is the engine or the machine; a second run tells"
        )
        yield Note("Warning", f"{text} which.", is_warning=True)
    yield from (Note("Warning", text, is_warning=True) for text in warnings)


def caution_text(caution: Difference) -> str:
    """The warning about a difference between the machines or settings of the two runs."""
    return f"May explain a difference: {caution.describe('the baseline', 'this run')}."


def _noise_text(no_speed: str | None, num_baselines: int) -> str:
    """The source of the machine's noise in the tests of speed."""
    if no_speed:
        return ""
    if num_baselines > 1:
        return f". Speed is judged by the spread of the {num_baselines} baselines"
    return ", if the machine is equally fast: one baseline does not show how far runs differ"


def _passed_notes(checks: Sequence[Check]) -> Iterator[Note]:
    """The largest change for the worse that passed, of MAT and of speed."""
    for name, word in (("MAT", "drop"), ("speed", "slowdown")):
        passed = [
            (check.value.value, check)
            for check in checks
            if (check.name, check.status) == (name, "passed") and isinstance(check.value, Estimate)
        ]
        if not passed:
            continue
        _, worst = max(passed, key=lambda pair: pair[0])
        numbers = _count(len(passed), "number")
        text = f"{numbers}, all unchanged or better"
        if worst.text != "unchanged":
            text = (
                f"{numbers} without a significant {word} beyond the limit; the worst is "
                f"{worst.method}, {worst.task}, {worst.text}"
            )
        yield Note(name[0].upper() + name[1:], text)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
