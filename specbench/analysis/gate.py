"""Whether a run is worse than its baseline run: the verdict of `specbench check`.

Knows what a maintainer wants to be stopped by. Of each cell of the baseline it asks:

- samples: is it there, with no sample failed or missing that the baseline has?
- output: at temperature 0, does a lossless method still give vanilla's tokens where it did, and
  does vanilla still give its own?
- MAT: has it dropped by more than the limit? It carries over between machines.
- speed: do both the seconds per token and the speedup over the run's own vanilla say that the
  method became slower by more than the limit? Seconds alone would blame a method for a busy
  machine, the speedup alone for a vanilla that became faster. Vanilla has its seconds only: what
  slows all methods alike shows there. On another machine seconds mean nothing, so speed is
  checked where GPU or CPU match.

Samples and output are counted. MAT and speed have noise, and are asked for each task and for the
mean over tasks; a regression is claimed where the test of `regression` rejects.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, cast

from specbench.analysis.cells import CellKey
from specbench.analysis.compare import MEAN, Comparison, compare
from specbench.analysis.findings import (
    Change,
    Finding,
    Kind,
    Outcome,
    RunRecords,
    output_findings,
    sample_finding,
)
from specbench.analysis.metrics import BASELINE, POOLED, Run
from specbench.analysis.pairs import CellPair, Pair
from specbench.analysis.regression import below, claims
from specbench.analysis.sameness import machine_difference
from specbench.analysis.stats import Bootstrap, Estimate
from specbench.errors import UserError, unknown_name

SpeedRule = Literal["matching", "always", "never"]
SPEED_RULES = ("matching", "always", "never")


@dataclass(frozen=True, slots=True)
class Limits:
    """How much worse a run may be.

    `max_mismatch` is the share of a lossless method's greedy answers that may cease to be
    vanilla's. None stands for none in float32; in half precision, where near-ties fall either way,
    for no more than chance explains.
    """

    max_slowdown: float = 0.05
    max_mat_drop: float = 0.02
    max_mismatch: float | None = None
    speed: SpeedRule = "matching"


def parse_limits(
    max_slowdown: str, max_mat_drop: str, max_mismatch: str | None, speed: str
) -> Limits:
    """The limits as the command line has them: "5%" or "0.05".

    Raises:
        UserError: a value that is no such share, or an unknown rule for speed.
    """
    if speed not in SPEED_RULES:
        raise unknown_name("rule for --speed", speed, SPEED_RULES)
    return Limits(
        _share("--max-slowdown", max_slowdown),
        _share("--max-mat-drop", max_mat_drop),
        None if max_mismatch is None else _share("--max-mismatch", max_mismatch),
        cast(SpeedRule, speed),
    )


def _share(option: str, text: str) -> float:
    digits = text.strip().removesuffix("%")
    try:
        share = float(digits) / (100 if digits != text.strip() else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share < 1:
        raise UserError(f"{option} {text} is no share.", f"Give one such as {option} 5%.")
    return share


@dataclass(frozen=True, slots=True)
class Gate:
    """The verdict. A finding of task `MEAN` is about a method's mean over tasks. `broken` says what
    is wrong with the run as a whole, `no_speed` why its speed was not checked.
    """

    comparison: Comparison
    limits: Limits
    findings: tuple[Finding, ...]
    broken: tuple[str, ...]
    no_speed: str | None

    @property
    def failures(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.outcome == "failed")

    @property
    def is_passed(self) -> bool:
        return not self.broken and not self.failures


def check(
    run: Run, baseline: Run, limits: Limits | None = None, bootstrap: Bootstrap | None = None
) -> Gate:
    """Hold a run against its baseline run.

    Raises:
        UserError: the two did not do the same work, so that neither is a baseline for the other.
    """
    limits = limits or Limits()
    comparison = compare(baseline, run, bootstrap=bootstrap, may_be_empty=True)
    no_speed = _why_no_speed(run, baseline, limits.speed)
    findings = [*_counted(run, baseline, comparison, limits)]
    findings += _measured(comparison, limits, no_speed)
    order = _order(comparison, findings)
    findings.sort(key=lambda finding: order[finding.cell])
    status = comparison.subject.status
    broken = () if status == "complete" else (f"The run is not complete: its status is {status}.",)
    return Gate(comparison, limits, tuple(findings), broken, no_speed)


def _why_no_speed(run: Run, baseline: Run, rule: SpeedRule) -> str | None:
    if rule == "never":
        return "--speed never"
    difference = machine_difference(baseline.header, run.header)
    if rule == "always" or difference is None:
        return None
    return f"another machine: {difference.first} in the baseline, {difference.second} here"


def _counted(run: Run, baseline: Run, comparison: Comparison, limits: Limits) -> Iterator[Finding]:
    then, now = RunRecords(baseline), RunRecords(run)
    rows: dict[tuple[str, float], list[CellKey]] = {}
    for key in then.measured:
        rows.setdefault((key.method, key.temperature), []).append(key)
        yield sample_finding(key, then, now)
    for keys in rows.values():
        yield from output_findings(keys, then, now, comparison.reference, limits.max_mismatch)


@dataclass(frozen=True, slots=True)
class _Test:
    """A number with its p-value, before all tests together decide what is claimed."""

    cell: CellKey
    kind: Kind
    pair: Pair
    limit: float
    p_value: float | None

    @property
    def words(self) -> tuple[str, str]:
        """For worse and for better."""
        return ("slower", "faster") if self.kind == "speed" else ("lower", "higher")


def _measured(comparison: Comparison, limits: Limits, no_speed: str | None) -> Iterator[Finding]:
    tests = [*_tests(comparison, limits, no_speed)]
    known = {i: test.p_value for i, test in enumerate(tests) if test.p_value is not None}
    claimed = claims(known)
    for i, test in enumerate(tests):
        yield _judged(test, is_claimed=i in claimed)


def _tests(comparison: Comparison, limits: Limits, no_speed: str | None) -> Iterator[_Test]:
    most, drop = limits.max_slowdown, limits.max_mat_drop
    for key, cell in comparison.cells.items():
        if key.task == POOLED or (key.task == MEAN and len(comparison.tasks) == 1):
            continue
        if key.method != BASELINE:
            yield _Test(key, "MAT", cell.mat, drop, below(cell.mat.ratio, 1 - drop))
        if no_speed is None:
            yield _Test(key, "speed", cell.tokens_per_s, most, _slower(key, cell, most))


def _slower(key: CellKey, cell: CellPair, max_slowdown: float) -> float | None:
    """The p-value of a slowdown: of the less sure one of its two signs, as both are asked for."""
    limit = 1 / (1 + max_slowdown)
    by_seconds = below(cell.tokens_per_s.ratio, limit)
    if key.method == BASELINE or by_seconds is None:
        return by_seconds
    by_vanilla = below(cell.speedup.ratio, limit)
    return by_seconds if by_vanilla is None else max(by_seconds, by_vanilla)


def _judged(test: _Test, *, is_claimed: bool) -> Finding:
    kind, pair, ratio = test.kind, test.pair, test.pair.ratio
    if not isinstance(ratio, Estimate):
        return Finding(test.cell, kind, "skipped", ratio.reason)
    change = _slowdown(ratio) if kind == "speed" else _drop(ratio)
    outcome: Outcome = "failed" if is_claimed else "passed"
    text = _text(change, test.words)
    if is_claimed:
        text += f"; {_percent(test.limit)} is allowed"
    if test.p_value is None:
        outcome, text = "skipped", f"too few samples to judge: {text}"
    return Finding(test.cell, kind, outcome, text, pair.reference, pair.subject, change)


def _text(change: Change, words: tuple[str, str]) -> str:
    """The change in words: "slower by 10.4 % [9.1, 11.7]"."""
    if abs(change.value) < 5e-4 and change.high - change.low < 1e-3:
        return "unchanged"
    is_better = change.value < 0
    ends = (-change.high, -change.low) if is_better else (change.low, change.high)
    has_width = change.high - change.low > 1e-9
    span = f" [{ends[0] * 100:.1f}, {ends[1] * 100:.1f}]" if has_width else ""
    return f"{words[is_better]} by {_percent(abs(change.value))}{span}"


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %".replace(".0 %", " %")


def _slowdown(ratio: Estimate) -> Change:
    """Of the time per token, from a ratio of speeds."""
    low, high = _ends(ratio)
    return Change(1 / ratio.value - 1, 1 / high - 1, 1 / low - 1)


def _drop(ratio: Estimate) -> Change:
    low, high = _ends(ratio)
    return Change(1 - ratio.value, 1 - high, 1 - low)


def _ends(ratio: Estimate) -> tuple[float, float]:
    interval = ratio.interval
    return (interval.low, interval.high) if interval else (ratio.value, ratio.value)


def _order(comparison: Comparison, findings: Iterable[Finding]) -> dict[CellKey, int]:
    """Where each cell stands: by temperature, then as the methods and tasks of the baseline do."""
    methods = [method.spelling for method in comparison.reference.methods]
    tasks = [MEAN, *comparison.reference.columns]

    def place(cell: CellKey) -> tuple[float, bool, int, int]:
        method = [*methods, cell.method].index(cell.method)
        task = [*tasks, cell.task].index(cell.task)
        return cell.temperature, cell.method != BASELINE, method, task

    cells = sorted({finding.cell for finding in findings}, key=place)
    return {cell: number for number, cell in enumerate(cells)}
