"""Write the result of the gate in sentences: a summary, and notes below it."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high

from specbench.analysis.stats.estimates import Estimate
from specbench.judge.baseline_pool import CANNOT_TELL
from specbench.judge.checks import NUMBERS, TOO_FEW, Check
from specbench.judge.comparison import MEAN
from specbench.report.texts import Note, count_text


@dataclass(frozen=True, slots=True)
class GateResult:
    """The findings of the gate, and the numbers that it was asked to judge."""

    run: str
    """The name of the run."""
    baseline: str
    """The name of the first baseline run."""
    model: str
    """The model of all runs in words, with its number format."""
    checks: Sequence[Check]
    asked: Mapping[str, Collection[str]]
    """Kind of number ("MAT" or "speed") -> the methods for which it must be judged, spelled as in
    records.
    """
    no_speed: str | None
    """The reason why speed was not checked; None if it was."""
    num_baselines: int

    @property
    def unjudged(self) -> dict[str, list[str]]:
        """Kind of number ("MAT" or "speed") -> the methods without a judged number, in words.

        A kind is left out if no method needs it, or if every method has a judged number. Its list
        is empty if its methods have no checks at all.
        """
        unjudged = {}
        for kind, methods in self.asked.items():
            checks_of_kind = [check for check in self.checks if check.name == kind]
            checks = [
                check for check in checks_of_kind if check.cell and check.cell.method in methods
            ]
            judged = {check.method for check in checks if check.status != "skipped"}
            lacking = [check.method for check in checks if check.method not in judged]
            if methods and (lacking or not checks):
                unjudged[kind] = [*dict.fromkeys(lacking)]
        return unjudged

    @property
    def summary(self) -> str:
        """The gate's result in a few sentences: failed, not judged, or passed, and how many
        numbers were judged.
        """
        unjudged = self.unjudged  # kind of number -> methods without a judged number
        failures = [check for check in self.checks if check.status == "failed"]
        numbers = [check for check in self.checks if check.name in NUMBERS]
        judged = [check for check in numbers if check.status != "skipped"]
        judged_count = f"{len(judged)} of {count_text(len(numbers), 'number')} judged"
        without_speed = "; speed was not checked" if self.no_speed else ""
        judged_kinds = {check.name for check in judged}
        # a kind with its methods, or only the kind if none of its numbers was judged
        unjudged_text = "; ".join(
            f"{kind} of {', '.join(methods)}" if kind in judged_kinds else kind
            for kind, methods in unjudged.items()
        )
        if failures:
            failed = (
                f"FAILED: {self.run} is worse than {self.baseline}. "
                f"{_failures_text(failures)} {judged_count}{without_speed}."
            )
            return f"{failed} Not judged: {unjudged_text}." if unjudged_text else failed
        if unjudged:
            opening = "Nothing was checked"
            if judged:
                opening = f"{_capitalized(unjudged_text)} could not be judged"
            skipped = [check for check in numbers if check.method in unjudged.get(check.name, ())]
            return f"{opening}: {judged_count}{without_speed}. {_remedy(skipped)}"
        both_runs = f"{self.run} is not worse than {self.baseline}"
        return f"Passed: {judged_count}; {both_runs}{without_speed}."

    def notes(self, warnings: Sequence[str]) -> Iterator[Note]:
        """Notes on the model, the numbers that passed, the things that were not checked, and the
        two runs.
        """
        yield Note("Model", self.model)
        yield from _passed_notes(self.checks)
        # on equal answers that took different steps than in the baseline
        changed_steps = [
            f"{check.method}, {check.task}: {check.text}"
            for check in self.checks
            if (check.name, check.status) == ("steps", "passed")
        ]
        if changed_steps:
            yield Note("Steps", "; ".join(changed_steps))
        if self.no_speed:
            yield Note("Speed", f"not checked: {self.no_speed}")
        yield from _skipped_notes(self.checks)
        yield Note(
            "Tests",
            "one-sided, over paired samples, corrected for the number of tests: fewer than 1 in "
            f"100 equal runs fail by chance{self._noise_text}. Intervals are 95 %.",
        )
        for warning in warnings:
            yield Note("Warning", warning, is_warning=True)

    @property
    def _noise_text(self) -> str:
        """The end of a sentence, which says how the tests of speed take noise into account."""
        if self.no_speed:
            return ""
        if self.num_baselines > 1:
            return f". Speed is judged by the spread of the {self.num_baselines} baselines"
        return (
            " if the machine was equally fast in both, since one baseline does not show how much "
            "runs differ"
        )


def _failures_text(failures: Sequence[Check]) -> str:
    """The texts of failed checks of the whole run, then the number of failed checks of cells with
    their methods.
    """
    reasons = [check.text for check in failures if not check.cell]
    if methods := [check.method for check in failures if check.cell]:
        count = count_text(len(methods), "failed check")
        reasons.append(f"{count}: {', '.join(dict.fromkeys(methods))}.")
    return " ".join(reasons)


def _remedy(skipped: Sequence[Check]) -> str:
    """A sentence on the number of samples that the skipped checks need, or on the reasons why more
    samples would not help.

    If some of the checks are of means over tasks, only the samples that these need are named.
    """
    means = [check for check in skipped if check.cell and check.cell.task == MEAN]
    if needs := [check.needs for check in means or skipped if check.needs]:
        return f"Measure both runs with about {median_high(needs)} samples per task (--limit)."
    reasons = [*dict.fromkeys(check.text for check in skipped)]  # each once; two are shown
    return f"Reason: {'; '.join(reasons[:2]) or 'the runs share no completion'}."


def _passed_notes(checks: Sequence[Check]) -> Iterator[Note]:
    """A note on MAT and a note on speed. Each counts the numbers that passed, and names the one
    that worsened most. If none passed, there is no note.
    """
    for kind, loss in (("MAT", "drop"), ("speed", "slowdown")):
        # shares by which numbers became worse, with their checks
        passed_changes = [
            (check.value.value, check)
            for check in checks
            if (check.name, check.status) == (kind, "passed") and isinstance(check.value, Estimate)
        ]
        if not passed_changes:
            continue
        _, worst = max(passed_changes, key=lambda change_and_check: change_and_check[0])
        num_text = count_text(len(passed_changes), "number")
        summary = f"{num_text}, all unchanged or better"
        if worst.text != "unchanged":  # else such as "lower by 1 %"
            summary = (
                f"{num_text} without a significant {loss} beyond what is allowed. The worst is "
                f"{worst.method}, {worst.task}, {worst.text}"
            )
        yield Note(_capitalized(kind), summary)


def _capitalized(words: str) -> str:
    """The words with a capital first letter. `str.capitalize` would also lower-case the rest."""
    return words[0].upper() + words[1:]


def _skipped_notes(checks: Sequence[Check]) -> Iterator[Note]:
    """Notes on skipped checks: one for each number that differs too much between equal runs, one
    for all numbers with too few samples, and one for each other reason.
    """
    skipped = [check for check in checks if check.status == "skipped"]
    for check in skipped:
        if check.text.startswith(CANNOT_TELL):
            yield Note(check.method, check.text, is_warning=True)
    if too_few := [check for check in skipped if check.text.startswith(TOO_FEW)]:
        num_text = count_text(len(too_few), "number")
        yield Note("Skipped", f"{num_text} with {TOO_FEW}. {_remedy(too_few)}")
    num_checks_by_reason = Counter(
        check.text for check in skipped if not check.text.startswith((CANNOT_TELL, TOO_FEW))
    )
    for reason, num_checks in num_checks_by_reason.items():
        yield Note("Skipped", f"{count_text(num_checks, 'check')}: {reason}")
