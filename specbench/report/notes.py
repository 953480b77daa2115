"""What stands below a table: where the numbers come from, how they are made and what is missing."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from specbench.analysis.cells import CellMetrics
from specbench.analysis.header import UNKNOWN
from specbench.analysis.metrics import RunMetrics
from specbench.analysis.stats import Estimate, Missing
from specbench.report.evidence import (
    depth_text,
    difference_texts,
    formula_text,
    latency_text,
    lossless_text,
    speedup_definition,
)
from specbench.report.execution import execution_fact
from specbench.report.limits import (
    LIMIT,
    STEP_COST,
    gpu_fact,
    has_limits,
    memory_fact,
    memory_warnings,
)
from specbench.report.progress import first_line

_STATES = {
    "interrupted": "The run was interrupted: this is what it had done. --resume goes on with it.",
    "running": "The run has not ended (it is going on, or was killed): this is what it had done.",
    "failed": "The run failed: this is what it had done.",
}


@dataclass(frozen=True, slots=True)
class Note:
    """One line of the footer. A warning is something to act on or to doubt."""

    label: str
    text: str
    is_warning: bool = False


def notes(runs: Sequence[RunMetrics], names: Sequence[str]) -> tuple[Note, ...]:
    """The footer of a table of these runs: facts per run, warnings per run, definitions. With
    several runs, what is said of one begins with its name.
    """
    facts = [note for run in runs for note in _facts(run)]
    own: list[Note] = []
    for run, name in zip(runs, names, strict=True):
        said = [*(Note("Missing", text) for text in _missing(run)), *_warnings(run)]
        prefix = f"{name}: " if len(runs) > 1 else ""
        own += [replace(note, text=prefix + note.text) for note in said]
    own.sort(key=lambda note: note.is_warning)
    return (*dict.fromkeys([*facts, *_definitions(runs), *own]),)


def _facts(run: RunMetrics) -> Iterable[Note]:
    info, spec = run.info, run.info.spec
    yield Note("Machine", info.machine.device)
    yield Note("Software", f"{info.machine.software}, commit {info.machine.commit}")
    words = [
        f"{info.id}, {info.status}",
        f"model {info.model}",
        info.dtype,
        f"device {spec.get('device', UNKNOWN)}",
        f"prompts {spec.get('prompts', UNKNOWN)}",
        f"at most {spec.get('max_new_tokens', UNKNOWN)} new tokens",
        f"seed {spec.get('seed', UNKNOWN)}",
    ]
    yield Note("Run", ", ".join(words))
    if execution := execution_fact(info):
        yield Note("Steps", execution)
    yield Note("Samples", _samples(run))
    for label, text in {
        "Lossless": lossless_text(run),
        "Formula": formula_text(run),
        "Latency": latency_text(run),
        "Depth": depth_text(run),
    }.items():
        if text:
            yield Note(label, text)
    if memory := memory_fact(run):
        yield Note("Memory", memory)
    if gpu := gpu_fact(info):
        yield Note("GPU", gpu)


def _samples(run: RunMetrics) -> str:
    pooled = [cell for overall in run.overall.values() if (cell := overall.pooled).num_done]
    if not pooled:
        return "none finished"
    samples = _range([cell.num_samples for cell in pooled])
    done = _range([cell.num_done for cell in pooled])
    return (
        f"{samples} per method and temperature; completions, with turns and repeats: {done}; "
        f"failed: {sum(_failures(run).values())}"
    )


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"


def _failures(run: RunMetrics) -> dict[str, int]:
    """How often each method failed, of those that did."""
    failures = Counter[str]()
    for (method, _), overall in run.overall.items():
        failures[run.info.method(method).label] += overall.pooled.num_failed
    return dict(+failures)


def _failed(run: RunMetrics) -> str:
    failures = _failures(run)
    if not failures:
        return ""
    errors = (overall.pooled.first_error for overall in run.overall.values())
    first = next((error for error in errors if error), "no reason given")
    counts = ", ".join(f"{label} {number}" for label, number in failures.items())
    return f"Failed completions: {counts}. The first says: {first_line(first)}"


def _definitions(runs: Sequence[RunMetrics]) -> Iterable[Note]:
    draws = {(run.bootstrap.num_resamples, run.bootstrap.seed) for run in runs}
    drawn = " and ".join(f"{number} resamples, seed {seed}" for number, seed in sorted(draws))
    for text in dict.fromkeys(speedup_definition(run, drawn) for run in runs):
        yield Note("Speedup", text)
    yield Note("MAT", "mean accepted tokens: tokens emitted / steps of the target model.")
    if any(isinstance(cost.relative, Estimate) for run in runs for cost in run.costs.values()):
        yield Note("Cost", STEP_COST)
    if any(map(has_limits, runs)):
        yield Note("Limit", LIMIT)
    if any(len(run.tasks) > 1 for run in runs):
        yield Note("Mean", "the arithmetic mean of the tasks' values, as in published tables.")
    if any(not method.is_lossless for run in runs for method in run.info.methods):
        yield Note("*", "not lossless: the output may differ from vanilla's.")


def _warnings(run: RunMetrics) -> Iterable[Note]:
    texts = [
        _STATES.get(run.info.status, ""),
        _failed(run),
        *(doubt.sentence(run.info) for doubt in run.doubts),
        *difference_texts(run),
        *memory_warnings(run),
        *run.info.warnings,
    ]
    return (Note("Warning", text, is_warning=True) for text in texts if text)


def _missing(run: RunMetrics) -> Iterable[str]:
    """Why values are missing, one line per reason. A reason that all of a method's cells share is
    said of the method alone.
    """
    where: dict[str, list[str]] = defaultdict(list)
    for method in run.methods:
        label = run.info.method(method).label
        cells = {key: cell for key, cell in run.cells.items() if key.method == method and key.task}
        reasons = {key: reason for key, cell in cells.items() if (reason := _reason(cell))}
        if len(reasons) == len(cells) and len(set(reasons.values())) == 1:
            where[next(iter(reasons.values()))].append(label)
            continue
        for key, reason in reasons.items():
            at = f" at T={key.temperature:g}" if len(run.temperatures) > 1 else ""
            where[reason].append(f"{label} on {run.info.columns.get(key.task, key.task)}{at}")
    return [f"{reason.capitalize()}: {_list(places)}." for reason, places in where.items()]


def _reason(cell: CellMetrics) -> str | None:
    for value in (cell.speedup, cell.mat):
        if isinstance(value, Missing):
            return value.reason
    return None


def _list(items: Iterable[str], most: int = 6) -> str:
    """The items, shortened when they are many."""
    unique = list(dict.fromkeys(items))
    rest = f" and {len(unique) - most} more" if len(unique) > most else ""
    return ", ".join(unique[:most]) + rest
