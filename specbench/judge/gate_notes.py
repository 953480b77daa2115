"""The result of the gate in sentences: its summary, and the notes below."""

from collections.abc import Iterator, Sequence

from specbench.analysis.cells import BASELINE
from specbench.analysis.stats.bootstrap import Estimate
from specbench.judge.checks import Check
from specbench.judge.comparison import MEAN
from specbench.log.differences import Difference
from specbench.report.texts import Note


def summary(run: str, baseline: str, checks: Sequence[Check], no_speed: str | None) -> str:
    """The result in one or two sentences. `no_speed` is the reason if speed was not checked."""
    failures = [check for check in checks if check.status == "failed"]
    if not failures:
        cells = {check.cell for check in checks if check.cell and check.cell.task != MEAN}
        num_methods = len({cell.method for cell in cells})
        scope = f"{_count(len(cells), 'cell')} of {_count(num_methods, 'method')}"
        without = "; speed was not checked" if no_speed else ""
        return f"Passed: {run} is no worse than {baseline} in {scope}{without}."
    reasons = [check.text for check in failures if not check.cell]
    if methods := [check.method for check in failures if check.cell]:
        count = _count(len(methods), "failed check")
        reasons.append(f"{count}: {', '.join(dict.fromkeys(methods))}.")
    return f"FAILED: {run} falls behind {baseline}. {' '.join(reasons)}"


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
    if num_skipped := len(skipped) - len(unclear):
        reason = "too few samples, no audit, or nothing to measure"
        yield Note("Skipped", f"{_count(num_skipped, 'number')} not judged ({reason})")
    yield Note(
        "Tests",
        "one-sided, over paired samples, corrected for their number: fewer than 1 of 100 equal "
        f"runs fail by chance{_noise_text(no_speed, num_baselines)}. Intervals are 95 %.",
    )
    if any(
        (check.name, check.status) == ("speed", "failed")
        and check.cell
        and check.cell.method == BASELINE
        for check in checks
    ):
        text = (
            "Vanilla itself is slower. The cause is the engine or the machine; a second run tells "
            "which."
        )
        yield Note("Warning", text, is_warning=True)
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
