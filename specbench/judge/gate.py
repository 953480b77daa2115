"""The CI gate: checks a run against its baseline run.

Knows what a maintainer wants to be stopped by. The checks of each cell of the baseline are:

- samples: every completion of the baseline is there, and none failed that had not.
- output: at temperature 0, a lossless method still gives vanilla's tokens where it did, and vanilla
  still gives its own.
- audit: no lossless method failed the run's stored audit (`specbench audit`).
- MAT: it has not dropped or risen by more than the limit. This carries over between machines.
- speed: the method has not become slower by more than the limit, in seconds per token and in
  speedup over the run's own vanilla. Seconds alone would blame a method for a busy machine, the
  speedup alone for a faster vanilla. Vanilla itself has only its seconds, which show what slows all
  methods alike. Seconds of another machine mean nothing, so the GPU or CPU has to match.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from specbench.analysis.cells import BASELINE, CellKey
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.judge.audited import check_audit
from specbench.judge.checks import Check
from specbench.judge.comparison import MEAN, Comparison, compare
from specbench.judge.limits import Limits, SpeedRule
from specbench.judge.outputs import check_outputs
from specbench.judge.pairs import CellPair
from specbench.judge.performance import check_performance
from specbench.judge.several import check_speeds
from specbench.log.comparability import machine_difference, require_same_work
from specbench.log.loads import NO_LOAD, Load
from specbench.log.run import Run


@dataclass(frozen=True, slots=True)
class Gate:
    """All checks of a run. A check of task `MEAN` is about a method's mean over tasks.

    `problems` concern the run as a whole. `no_speed` is the reason if speed was not checked.
    """

    comparison: Comparison
    limits: Limits
    checks: tuple[Check, ...]
    problems: tuple[str, ...]
    no_speed: str | None
    num_baselines: int = 1

    @property
    def failures(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.status == "failed")

    @property
    def is_passed(self) -> bool:
        return not self.problems and not self.failures


def check(
    run: Run,
    baseline: Run,
    limits: Limits | None = None,
    bootstrap: Bootstrap | None = None,
    more: Sequence[Run] = (),
) -> Gate:
    """Check a run against its baseline run.

    With `more` baselines, speed is checked against all of them (see `several`), and all else
    against the first.

    Raises:
        UserError: two runs are not comparable, or there are two baselines.
    """
    limits = limits or Limits()
    no_speed = _no_speed_reason(run, baseline, limits.speed)
    comparisons, checks = [], []
    for load, found, expected in _by_load(run, baseline):
        comparison = compare(expected, found, bootstrap=bootstrap, may_be_empty=True)
        comparisons.append(replace(comparison, cells=_at(load, comparison.cells)))
        outputs = check_outputs(found, expected, baseline.header, max_mismatch=limits.max_mismatch)
        checks += [replace(one, cell=replace(one.cell, load=load)) for one in outputs]
    texts = (text for one in comparisons if one.cells for text in one.unshared)
    comparison = replace(
        comparisons[0],
        reference=baseline.header,
        subject=run.header,
        unshared=tuple(dict.fromkeys(texts)),
    )
    for other in more:
        require_same_work(other.header, run.header)
        no_speed = no_speed or _no_speed_reason(run, other, limits.speed)
    is_alone = no_speed is None and not more
    checks += [
        *check_audit(run.audit, comparison.reference),
        *check_performance(comparisons, limits, has_speed=is_alone),
    ]
    if more and no_speed is None:
        checks += _speeds_by_load(run, [baseline, *more], limits.max_slowdown)
    order = _order(comparison, checks)
    checks.sort(key=lambda check: order[check.cell])
    status = comparison.subject.status
    problems = () if status == "complete" else (f"The run is not complete (status {status}).",)
    return Gate(comparison, limits, tuple(checks), problems, no_speed, num_baselines=1 + len(more))


def _by_load(run: Run, baseline: Run) -> Iterator[tuple[Load, Run, Run]]:
    """The parts of both runs at each load of the baseline; empty where this run lacks one.

    A baseline with one load needs no name for it.
    """
    for load in baseline.loads:
        name = load if len(baseline.loads) > 1 else NO_LOAD
        yield name, run.at(load), baseline.at(load)


def _speeds_by_load(run: Run, baselines: Sequence[Run], max_slowdown: float) -> Iterator[Check]:
    """Checks of speed at each load of the first baseline, against all that have this load."""
    loads = baselines[0].loads
    for (name, found, _), load in zip(_by_load(run, baselines[0]), loads, strict=True):
        same = [one.at(load) for one in baselines if load in one.loads]
        yield from check_speeds(found, same, max_slowdown, load=name, num_loads=len(loads))


def _at(load: Load, cells: Mapping[CellKey, CellPair]) -> dict[CellKey, CellPair]:
    return {replace(key, load=load): cell for key, cell in cells.items()}


def _no_speed_reason(run: Run, baseline: Run, rule: SpeedRule) -> str | None:
    if rule == "never":
        return "--speed never"
    difference = machine_difference(baseline.header, run.header)
    if rule == "always" or difference is None:
        return None
    return f"another machine: {difference.first} in the baseline, {difference.second} here"


def _order(comparison: Comparison, checks: Iterable[Check]) -> dict[CellKey, int]:
    """Places of the cells: by load, temperature, then methods and tasks in the baseline's order."""
    methods = [method.spelling for method in comparison.reference.method_labels]
    tasks = [MEAN, *comparison.reference.columns]

    def place(cell: CellKey) -> tuple[Load, float, bool, int, int]:
        method = [*methods, cell.method].index(cell.method)
        task = [*tasks, cell.task].index(cell.task)
        return cell.load, cell.temperature, cell.method != BASELINE, method, task

    cells = sorted({check.cell for check in checks}, key=place)
    return {cell: number for number, cell in enumerate(cells)}
