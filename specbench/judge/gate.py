"""The CI gate: checks a run against its baseline run.

The checks of each cell of the baseline are:

- samples: every completion of the baseline is there, and none failed that had not.
- output: at temperature 0, a lossless method still gives vanilla's tokens where it did, and vanilla
  still gives its own.
- audit: no lossless method failed the run's stored audit (`specbench audit`).
- source of speed: no method gains by memory, by vanilla's answers or by work that is not timed (see
  `analysis.cheats`). This is about the whole run.
- MAT: it has not dropped or risen by more than the limit. This carries over between machines.
- speed: the method has not become slower by more than the limit, in seconds per token and in
  speedup over the run's own vanilla. Seconds alone would blame a method for a busy machine, the
  speedup alone for a faster vanilla. Vanilla itself has only its seconds, which show what slows all
  methods alike. Seconds of another machine mean nothing, so the GPU or CPU has to match.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median_high

from specbench.analysis.cells import BASELINE, CellKey
from specbench.analysis.cheats import FAST_STEP, SLOW_VANILLA, find_cheats
from specbench.analysis.records import make_table
from specbench.analysis.stats.estimates import Estimate
from specbench.analysis.warnings import RunWarning
from specbench.judge.cell_checks import check_outputs, check_performance, check_speeds
from specbench.judge.checks import NUMBERS, TOO_FEW, Check, CheckedRun
from specbench.judge.comparison import MEAN, compare
from specbench.judge.limits import Limits, SpeedRule
from specbench.log.audit import StoredAudit
from specbench.log.differences import CHECK, require_same_work
from specbench.log.header import RunHeader
from specbench.log.run import NO_LOAD, Load, Run
from specbench.report.texts import Note, make_note
from specbench.report.warning_notes import audit_failure

SOURCE = "source of speed"
STEPS = (FAST_STEP, SLOW_VANILLA)
Unjudged = Mapping[str, Sequence[str]]
"""For each kind of number that was not judged, the methods (in words) without a judged one.

There is no method if the kind has no number at all.
"""


def check(
    run: Run, baseline: Run, limits: Limits | None = None, more: Sequence[Run] = ()
) -> CheckedRun:
    """Check a run against its baseline run. A check of task `MEAN` is about the mean over tasks.

    With `more` baselines, speed is checked against all of them (see `check_speeds`), and all
    else against the first.

    Raises:
        UserError: two runs are not comparable, or there are two baselines.
    """
    if other_settings := _other_settings(run, baseline):
        return other_settings
    limits = limits or Limits()
    baselines = [baseline, *more]
    for one in baselines:
        require_same_work(one.header, run.header)
    reasons = [_no_speed_reason(run, one, limits.speed) for one in baselines]
    no_speed = next(filter(None, reasons), None)
    loads, comparisons = baseline.loads, []
    outputs, speeds = list[Check](), list[Check]()
    for load in loads:
        name = load if len(loads) > 1 else NO_LOAD
        found, expected = run.at(load), baseline.at(load)
        comparison = compare(expected, found, may_be_empty=True)
        cells = {replace(key, load=name): cell for key, cell in comparison.cells.items()}
        comparisons.append(replace(comparison, cells=cells))
        outputs += check_outputs(found, expected, limits.max_mismatch, name, len(loads))
        if more and no_speed is None:
            same = [one.at(load) for one in baselines if load in one.loads]
            speeds += check_speeds(found, same, limits.max_slowdown, name, len(loads))
    checks = [
        *outputs,
        *check_audit(run.audit, baseline.header),
        *check_performance(comparisons, limits, has_speed=no_speed is None and not more),
        *speeds,
    ]
    ordered = (
        _complete(run),
        *_in_order(checks, baseline.header),
        *check_sources(run, baseline),
    )
    unshared = dict.fromkeys(text for one in comparisons if one.cells for text in one.unshared)
    cut = (
        f"The baseline {one.header.id} is not complete: {one.missing_text}."
        for one in baselines
        if one.missing_text
    )
    blank = _unjudged(ordered, _asked(baseline, has_speed=no_speed is None))
    cautions = (one.describe("the baseline", "this run") for one in comparisons[0].cautions)
    warnings = [*cut, *unshared, *(f"May explain a difference: {text}." for text in cautions)]
    return CheckedRun(
        run=run.header.id,
        checks=ordered,
        summary=_summary(run.header.id, baseline.header.id, ordered, blank, no_speed),
        notes=tuple(_notes(ordered, warnings, no_speed, num_baselines=len(baselines))),
        about={"baseline": baseline.header.id},
        is_judged=not blank,
    )


def _asked(baseline: Run, *, has_speed: bool) -> dict[str, set[str]]:
    """The methods that the check is asked to judge by kind: those with such a number there."""
    frame = make_table(baseline.records, baseline.run_of_repeat, baseline.header.blocks).frame
    has_mat = (frame["mat_emitted"] > 0) & (frame["method"] != BASELINE)
    timed = frame["method"][frame["is_measured"]] if has_speed else ()
    return {"MAT": {*frame["method"][has_mat]}, "speed": {*timed}}


def _other_settings(run: Run, baseline: Run) -> CheckedRun | None:
    """The result for methods whose settings were chosen differently: nothing is judged.

    Such runs are different programs. Options that nobody chose by measuring are the user's or
    the version's own, and are judged.
    """
    headers = (baseline.header, run.header)
    chosen = {label for one in headers for label, about in one.methods.items() if about.settings}
    found = [
        one
        for one in CHECK.conflicts(*headers)
        if one.field.startswith("methods.") and one.field[8:].rpartition(".")[0] in chosen
    ]
    if not found:
        return None
    text = (
        f"Not judged: {'; '.join(one.describe('the baseline', 'this run') for one in found)}. "
        f"Repeat the run with --settings {baseline.path or baseline.header.id}."
    )
    skipped = Check("settings", "skipped", text)
    about = {"baseline": baseline.header.id}
    return CheckedRun(run.header.id, (skipped,), text, about=about, is_judged=False)


def _complete(run: Run) -> Check:
    status = run.header.status
    reason = f"status {status}" if status != "complete" else run.missing_text
    text = f"The run is not complete ({reason})." if reason else ""
    return Check("complete run", "failed" if reason else "passed", text)


def _no_speed_reason(run: Run, baseline: Run, rule: SpeedRule) -> str | None:
    if rule == "never":
        return "--speed never"
    found = CHECK.cautions(baseline.header, run.header)
    if rule == "always" or not found:
        return None
    return f"another machine: {found[0].first} in the baseline, {found[0].second} here"


def _in_order(checks: Sequence[Check], baseline: RunHeader) -> list[Check]:
    """The checks with their cells in words; by load, temperature, then method and task as there."""
    methods = [method.spelling for method in baseline.method_labels]
    tasks = [MEAN, *baseline.columns]
    pairs = [(check.cell, check) for check in checks if check.cell]
    has_temperatures = len({cell.temperature for cell, _ in pairs}) > 1

    def place(pair: tuple[CellKey, Check]) -> tuple[Load, float, bool, int, int]:
        cell = pair[0]
        method = [*methods, cell.method].index(cell.method)
        task = [*tasks, cell.task].index(cell.task)
        return cell.load, cell.temperature, cell.method != BASELINE, method, task

    named = []
    for cell, check in sorted(pairs, key=place):
        temperature = f"T={cell.temperature:g}" if has_temperatures else ""
        words = (baseline.method(cell.method).label, temperature, cell.load.text)
        task = "Mean of the tasks" if cell.task == MEAN else baseline.task_title(cell.task)
        named.append(replace(check, method=", ".join(filter(None, words)), task=task))
    return named


def check_audit(audit: StoredAudit | None, baseline: RunHeader) -> Iterator[Check]:
    """A check of each lossless method at each temperature of the baseline.

    Greedy answers are compared anyway (see `check_outputs`), so without an audit only sampled ones
    are skipped.
    """
    for method in baseline.method_labels:
        if not method.is_lossless or method.spelling in baseline.no_checkpoint:
            continue
        for temperature in baseline.spec.values.temperatures:
            key = CellKey(method.spelling, float(temperature), MEAN)
            results = audit.at(method.spelling, temperature) if audit else ()
            failed = [one for one in results if one.status == "bug"]
            if failed:
                at = f" at T={failed[0].level:g}" if failed[0].is_raised else ""
                yield Check("audit", "failed", f"{audit_failure(failed[0])}{at}", key)
            elif audit and results and (reason := audit.unjudged(method.spelling, temperature)):
                yield Check("audit", "skipped", f"not judged: {reason}", key)
            elif results:
                yield Check("audit", "passed", "no bug found", key)
            elif temperature and method.spelling != BASELINE:
                text = "not audited: run `specbench audit` on the run first"
                yield Check("audit", "skipped", text, key)


def check_sources(run: Run, baseline: Run) -> Iterator[Check]:
    """A failed check for each kind of finding, or one that passed.

    Two findings have honest causes too. A step that is faster than vanilla's fails only if it
    is not so in the baseline run; untimed work is always skipped.
    """
    found = find_cheats(make_table(run.records), run.header)
    before = find_cheats(make_table(baseline.records), baseline.header)
    known = {method for one in before if one.key in STEPS for method in _methods(one)}
    for one in found:
        is_known = (one.key in STEPS and known >= _methods(one)) or one.key == "untimed_work"
        text = make_note(one.key, run.header, **one.numbers).text
        yield Check(SOURCE, "skipped" if is_known else "failed", text)
    if not found:
        yield Check(SOURCE, "passed", "")


def _methods(warning: RunWarning) -> set[str]:
    return {one["method"] for one in warning.numbers["methods"]}


def _unjudged(checks: Sequence[Check], asked: Mapping[str, Collection[str]]) -> Unjudged:
    """Methods without a judged number, for each kind of check that was asked for."""
    blank = {}
    for kind, methods in asked.items():
        own = [one for one in checks if one.name == kind]
        own = [one for one in own if one.cell and one.cell.method in methods]
        judged = {one.method for one in own if one.status != "skipped"}
        unjudged = [one.method for one in own if one.method not in judged]
        if methods and (unjudged or not own):
            blank[kind] = [*dict.fromkeys(unjudged)]
    return blank


def _summary(
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


def _notes(
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
        yield Note("Skipped", f"{_count(len(few), 'number')} with {TOO_FEW}. {_remedy(few)}")
    others = Counter(check.text for check in skipped if check not in (*few, *unclear))
    for reason, number in others.items():
        yield Note("Skipped", f"{_count(number, 'check')}: {reason}")
    yield Note(
        "Tests",
        "one-sided, over paired samples, corrected for their number: fewer than 1 of 100 equal "
        f"runs fail by chance{_noise_text(no_speed, num_baselines)}. Intervals are 95 %.",
    )
    yield from (Note("Warning", text, is_warning=True) for text in warnings)


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
