"""The gate for CI: check a run against its baseline run.

The checks of each cell of the baseline are:

- samples: every completion of the baseline is there, and none fails that did not fail before.
- output: at temperature 0, a lossless method still gives vanilla's tokens for the requests where it
  did before, and vanilla gives the same tokens as before.
- audit: no lossless method failed the run's stored audit (`specbench audit`).
- source of speed: no speed comes from memory, vanilla's answers or work that is not timed (see
  `analysis.cheats`). This is about the whole run.
- steps: if a method repeats its drafts, equal answers take equal steps, at temperature 0 in float32
  on the same kind of machine.
- MAT: it has not dropped or risen by more than is allowed. MAT is comparable between machines.
- speed: the method has not become slower by more than is allowed, in seconds per token and in
  speedup over the run's own vanilla. Seconds alone would blame a method for a busy machine, and the
  speedup alone would blame it for a faster vanilla. Vanilla has only seconds, which show a slowdown
  of all methods. Seconds of different machines cannot be compared, so the GPU or CPU has to match.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from specbench.analysis.cells import BASELINE
from specbench.analysis.tables import RunTables
from specbench.judge.allowed import Allowed, SpeedRule
from specbench.judge.audited import check_audit
from specbench.judge.baseline_pool import check_speeds
from specbench.judge.checks import Check, CheckedRun
from specbench.judge.comparison import MEAN, Comparison, compare_tabled
from specbench.judge.exact_steps import check_steps
from specbench.judge.gate_notes import GateResult
from specbench.judge.outputs import check_outputs
from specbench.judge.performance import check_performance
from specbench.judge.sources import check_sources
from specbench.log.difference import Difference, change_lines
from specbench.log.header import RunHeader
from specbench.log.policies import CHECK, require_same_work
from specbench.log.run import NO_LOAD, Load, Run
from specbench.report import facts


def check(
    run: Run, baseline: Run, allowed: Allowed | None = None, more: Sequence[Run] = ()
) -> CheckedRun:
    """Check a run against its baseline run. A check of task `MEAN` is about the mean over tasks.

    `allowed` has the largest losses that pass, or is None for the defaults. With `more`
    baselines, speed is checked against all of them (see `check_speeds`), and everything else
    against the first. If the run and the first baseline chose settings of methods differently,
    nothing is judged.

    Raises:
        UserError: two runs are not comparable, or speed is to be checked against two baselines,
            which are too few to show how far equal runs differ.
    """
    baselines = [baseline, *more]
    for reference in baselines:
        require_same_work(reference.header, run.header)
    if not_judged := _other_settings(run, baseline):
        return not_judged
    allowed = allowed or Allowed()
    no_speed_reason = _no_speed_reason(run, baselines, allowed.speed)
    tables = RunTables(run)  # the run's records as a table at each load
    baseline_tables = [RunTables(reference) for reference in baselines]
    comparisons = [*_compare_loads(tables, baseline_tables[0])]  # one per load
    checks = [
        *_check_outputs(tables, baseline_tables[0], allowed.max_mismatch),
        *check_audit(run.audit, baseline.header),
        *check_performance(comparisons, allowed, has_speed=no_speed_reason is None and not more),
    ]
    for load in baseline.loads:
        named_load = _named_load(load, baseline.loads)
        run_at_load, baseline_at_load = tables.at(load).run, baseline_tables[0].at(load).run
        checks += check_steps(run_at_load, baseline_at_load, allowed, named_load)
    if more and no_speed_reason is None:
        checks += _check_speeds(tables, baseline_tables, allowed.max_slowdown)
    ordered_checks = (
        _check_complete(run),
        *_in_order(checks, baseline.header),
        *check_sources(tables, baseline_tables[0]),
    )
    gate_result = GateResult(
        run=run.header.id,
        baseline=baseline.header.id,
        model=facts.model_phrase(run.header),
        checks=ordered_checks,
        asked=_asked_numbers(baseline_tables[0], has_speed=no_speed_reason is None),
        no_speed=no_speed_reason,
        num_baselines=len(baselines),
    )
    return CheckedRun(
        run=run.header.id,
        checks=ordered_checks,
        summary=gate_result.summary,
        notes=tuple(gate_result.notes([*_warnings(baselines, comparisons)])),
        about={"baseline": baseline.header.id},
        is_judged=not gate_result.unjudged,
    )


def _named_load(load: Load, loads: Sequence[Load]) -> Load:
    """The load as checks name it. Checks name no load if all cells have the same one."""
    return load if len(loads) > 1 else NO_LOAD


def _compare_loads(run: RunTables, baseline: RunTables) -> Iterator[Comparison]:
    """Compare the run with the baseline at each load of the baseline."""
    loads = baseline.run.loads
    for load in loads:
        comparison = compare_tabled(baseline.at(load), run.at(load), may_be_empty=True)
        named_load = _named_load(load, loads)
        cells = {replace(key, load=named_load): cell for key, cell in comparison.cells.items()}
        yield replace(comparison, cells=cells)


def _check_outputs(
    run: RunTables, baseline: RunTables, max_mismatch: float | None
) -> Iterator[Check]:
    """Check samples and answers at each load of the baseline."""
    loads = baseline.run.loads
    for load in loads:
        named_load = _named_load(load, loads)
        yield from check_outputs(
            run.at(load), baseline.at(load), max_mismatch, named_load, num_loads=len(loads)
        )


def _check_speeds(
    run: RunTables, baselines: Sequence[RunTables], max_slowdown: float
) -> Iterator[Check]:
    """Check speed against several baselines at each load of the first baseline."""
    loads = baselines[0].run.loads
    for load in loads:
        baselines_at_load = [
            baseline.at(load) for baseline in baselines if load in baseline.run.loads
        ]
        yield from check_speeds(
            run.at(load),
            baselines_at_load,
            max_slowdown,
            load=_named_load(load, loads),
            num_loads=len(loads),
        )


def _asked_numbers(baseline: RunTables, *, has_speed: bool) -> dict[str, set[str]]:
    """Kind of number ("MAT" or "speed") -> the methods for which it must be judged.

    These are the methods that have the number in the baseline. Without `has_speed`, no method is
    asked for its speed.
    """
    asked: dict[str, set[str]] = {"MAT": set(), "speed": set()}
    for load in baseline.run.loads:
        frame = baseline.at(load).table.frame  # one row per record
        # rows of methods that draft, with tokens that count for MAT
        has_mat = (frame["mat_emitted"] > 0) & (frame["method"] != BASELINE)
        asked["MAT"] |= {*frame["method"][has_mat]}
        if has_speed:  # rows with tokens and a time
            asked["speed"] |= {*frame["method"][frame["is_measured"]]}
    return asked


def _warnings(baselines: Sequence[Run], comparisons: Sequence[Comparison]) -> Iterator[str]:
    """Sentences on baselines that lack records, on parts that only one run has, and on further
    differences from the first baseline, such as in versions.
    """
    for baseline in baselines:
        if baseline.missing_text:
            yield f"The baseline {baseline.header.id} is not complete: {baseline.missing_text}."
    unshared = (words for at_load in comparisons if at_load.cells for words in at_load.unshared)
    yield from dict.fromkeys(unshared)
    for line in change_lines(comparisons[0].cautions):
        yield f"May explain a difference, from the baseline to this run: {line}."


def _other_settings(run: Run, baseline: Run) -> CheckedRun | None:
    """A result that judges nothing, if the two runs chose settings of a method differently; None
    if they did not.

    Such runs differ in more than their code. Options that were not chosen by measuring come from
    the user or the version. Runs that differ in such options are judged.
    """
    tuned_methods = {  # methods with options that were chosen by measuring, in either run
        method
        for header in (baseline.header, run.header)
        for method, method_header in header.methods.items()
        if method_header.settings  # the source of such options, or None
    }
    differences = [  # in options of methods, not in the runs' work
        difference
        for difference in CHECK.conflicts(baseline.header, run.header)
        if _method_of(difference) in tuned_methods
    ]
    if not differences:
        return None
    lines = "".join(f"\n  {line}" for line in change_lines(differences))
    summary = (
        f"Not judged, {facts.model_phrase(run.header)}: the runs chose different settings for "
        f"methods. Repeat the run with --settings {baseline.path or baseline.header.id}. From the "
        f"baseline to this run:{lines}"
    )
    return CheckedRun(
        run=run.header.id,
        checks=(Check("settings", "skipped", summary),),
        summary=summary,
        about={"baseline": baseline.header.id},
        is_judged=False,
    )


def _method_of(difference: Difference) -> str | None:
    """The method of a field such as `methods.pld.options`; None for any other field."""
    prefix, _, path = difference.field.partition(".")
    return path.rpartition(".")[0] if prefix == "methods" else None


def _check_complete(run: Run) -> Check:
    """Check that the run ended, and has all records that its header counts."""
    status = run.header.status
    reason = run.missing_text if status == "complete" else f"status {status}"
    if reason:
        return Check("complete run", "failed", f"The run is not complete ({reason}).")
    return Check("complete run", "passed", "")


def _no_speed_reason(run: Run, baselines: Sequence[Run], rule: SpeedRule) -> str | None:
    """The reason not to check speed, or None if it is checked.

    The rule "matching" checks speed if all runs have equal hardware and none is imported.
    """
    if rule == "never":
        return "--speed never"
    if rule == "always":
        return None
    for header in (run.header, *(baseline.header for baseline in baselines)):
        if header.imported:
            return f"the machine of the imported run {header.id} is unknown"
    for baseline in baselines:
        cautions = CHECK.cautions(baseline.header, run.header)
        if cautions:  # differences of the hardware
            before, now = cautions[0].first, cautions[0].second
            return f"another machine: {before} in the baseline, {now} here"
    return None


def _in_order(checks: Sequence[Check], baseline: RunHeader) -> list[Check]:
    """Sort the checks of cells, and add the method and the task of each cell in words.

    They are sorted by load, by temperature, then by method and task in the baseline's order, with
    vanilla first, and the mean over tasks before the tasks.
    """
    method_order = [method.spelling for method in baseline.method_labels]
    task_order = [MEAN, *baseline.columns]  # `columns` has the names of tasks
    cell_checks = [(check.cell, check) for check in checks if check.cell]
    has_temperatures = len({cell.temperature for cell, _ in cell_checks}) > 1
    ranked_checks = []
    for cell, check in cell_checks:
        temperature = f"T={cell.temperature:g}" if has_temperatures else ""
        method_words = (baseline.method(cell.method).label, temperature, cell.load.text)
        task = "Mean of the tasks" if cell.task == MEAN else baseline.task_title(cell.task)
        named_check = replace(check, method=", ".join(filter(None, method_words)), task=task)
        # Methods and tasks that the baseline does not list come last.
        method_rank = [*method_order, cell.method].index(cell.method)
        task_rank = [*task_order, cell.task].index(cell.task)
        is_drafting = cell.method != BASELINE  # False sorts first: vanilla does not draft
        rank = (cell.load, cell.temperature, is_drafting, method_rank, task_rank)
        ranked_checks.append((rank, named_check))
    ranked_checks.sort(key=lambda rank_and_check: rank_and_check[0])
    return [named_check for _, named_check in ranked_checks]
