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

from collections.abc import Iterator, Sequence
from dataclasses import replace

from specbench.analysis.cells import BASELINE, CellKey
from specbench.analysis.cheats import FAST_STEP, SLOW_VANILLA, find_cheats
from specbench.analysis.records import make_table
from specbench.analysis.warnings import RunWarning
from specbench.judge.checks import Check, CheckedRun
from specbench.judge.comparison import MEAN, compare
from specbench.judge.gate_notes import caution_text, gate_notes, summary, unjudged
from specbench.judge.limits import Limits, SpeedRule
from specbench.judge.outputs import check_outputs
from specbench.judge.performance import check_performance, check_speeds
from specbench.log.audit import StoredAudit
from specbench.log.differences import CHECK, require_same_work
from specbench.log.header import RunHeader
from specbench.log.run import NO_LOAD, Load, Run
from specbench.report.texts import note
from specbench.report.warning_notes import audit_failure

SOURCE = "source of speed"
STEPS = (FAST_STEP, SLOW_VANILLA)


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
        made = check_outputs(found, expected, limits.max_mismatch, len(loads))
        outputs += [replace(one, cell=replace(one.cell, load=name)) for one in made if one.cell]
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
    blank = unjudged(ordered, _asked(baseline, has_speed=no_speed is None))
    warnings = [*cut, *unshared, *map(caution_text, comparisons[0].cautions)]
    return CheckedRun(
        run=run.header.id,
        checks=ordered,
        summary=summary(run.header.id, baseline.header.id, ordered, blank, no_speed),
        notes=tuple(gate_notes(ordered, warnings, no_speed, num_baselines=len(baselines))),
        about={"baseline": baseline.header.id},
        is_judged=not blank,
    )


def _asked(baseline: Run, *, has_speed: bool) -> dict[str, set[str]]:
    """The methods that the check is asked to judge by kind: those with such a number there."""
    frame = make_table(baseline.records, baseline.run_of_repeat, baseline.header.blocks).frame
    has_mat = (frame["mat_emitted"] > 0) & (frame["method"] != BASELINE)
    asked = {"MAT": {*frame["method"][has_mat]}}
    if has_speed:
        asked["speed"] = {*frame["method"][frame["is_measured"]]}
    return {kind: methods for kind, methods in asked.items() if methods}


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

    Greedy answers are compared anyway (see `outputs`), so without an audit only sampled ones
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
        text = note(one.key, run.header, **one.numbers).text
        yield Check(SOURCE, "skipped" if is_known else "failed", text)
    if not found:
        yield Check(SOURCE, "passed", "")


def _methods(warning: RunWarning) -> set[str]:
    return {one["method"] for one in warning.numbers["methods"]}
