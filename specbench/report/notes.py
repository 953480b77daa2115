"""The notes below a report: the origin of the numbers, their definitions, gaps and warnings."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from specbench.analysis.cells import CellMetrics
from specbench.analysis.metrics import RunMetrics
from specbench.analysis.stats.bootstrap import Estimate, Missing
from specbench.analysis.units import PROMPTS_ONLY
from specbench.errors import first_line
from specbench.log.machine import CpuUse
from specbench.report import facts, sentences, serving_notes

_MOST_WARNINGS = 3
_GIST = 150
"""Characters of a warning on a short screen: two lines."""
_STATES = {
    "interrupted": "The run was interrupted; these are its results so far. Continue with --resume.",
    "running": "The run is still going or was killed; these are its results so far.",
    "failed": "The run failed; these are its results so far.",
}
_MOST_NAMED = 6


@dataclass(frozen=True, slots=True)
class Note:
    """One line of the footer. A warning calls for action or for doubt."""

    label: str
    text: str
    is_warning: bool = False


_MAT = Note("MAT", "mean accepted tokens: tokens emitted / steps of the target model.")
_SPEEDUP = Note("Speedup", "vanilla's time per token / the method's; [] and ± are 95 % intervals")


def notes(runs: Sequence[RunMetrics], names: Sequence[str]) -> tuple[Note, ...]:
    """Facts, definitions, then gaps and warnings per run, which begin with the run's name if there
    are several.
    """
    own: list[Note] = []
    for run, name in zip(runs, names, strict=True):
        notes = [*(Note("Missing", text) for text in _missing(run)), *_warnings(run)]
        prefix = f"{name}: " if len(runs) > 1 else ""
        own += [replace(note, text=prefix + note.text) for note in notes]
    own.sort(key=lambda note: note.is_warning)
    every = [*(note for run in runs for note in _facts(run)), *_definitions(runs), *own]
    return tuple(dict.fromkeys(every))


def short_notes(notes: Sequence[Note]) -> tuple[Note, ...]:
    """Notes of the default screen: gaps, definitions, and the first sentence of each warning."""
    gaps = [note for note in notes if note.label in ("Missing", "*")]
    warnings = [note for note in notes if note.is_warning]
    num_more = len(warnings) - _MOST_WARNINGS
    more = Note("Warning", f"{num_more} more: --full shows them.", is_warning=True)
    kept = [*gaps, *warnings[:_MOST_WARNINGS]]
    intervals = next((note.text for note in notes if note.label == "Intervals"), "")
    scope = intervals.partition("; by")[0]
    short = (
        replace(_SPEEDUP, text=f"{_SPEEDUP.text}{scope.removeprefix('95 %')}."),
        replace(_MAT, text=_MAT.text.replace(".", ", over all tasks.")),
    )
    return (*short, *(replace(n, text=_gist(n.text)) for n in kept), *[more] * (num_more > 0))


def _gist(text: str) -> str:
    """The first sentence, and those after it as long as there is room."""
    end = text.find(". ")
    while 0 <= (following := text.find(". ", end + 1)) < _GIST:
        end = following
    return text if end < 0 or len(text) <= _GIST else text[: end + 1]


def _facts(run: RunMetrics) -> Iterable[Note]:
    texts = {
        "Machine": run.info.machine.device,
        "Software": f"{run.info.machine.software}, commit {run.info.machine.commit}",
        "Run": facts.run_text(run.info),
        "Servers": serving_notes.servers_text(run.info),
        "Workers": facts.workers_text(run.info),
        "Steps": facts.execution_text(run.info),
        "Samples": _samples(run),
        "Lossless": sentences.lossless_text(run),
        "Audit": sentences.audit_text(run.audit),
        "Formula": sentences.formula_text(run),
        "Latency": "" if run.serving else sentences.latency_text(run),
        "Depth": sentences.depth_text(run),
        "Memory": sentences.memory_text(run),
        "Processor": facts.processor_text(run.info),
        "GPU": facts.gpu_text(run.info),
    }
    return (Note(label, text) for label, text in texts.items() if text)


def _samples(run: RunMetrics) -> str:
    pooled = [cell for overall in run.overall.values() if (cell := overall.pooled).num_done]
    if not pooled:
        return "none finished"
    samples = _range([cell.num_samples for cell in pooled])
    done = _range([cell.num_done for cell in pooled])
    return (
        f"{samples} per method and temperature; completions, with turns and passes: {done}; "
        f"failed: {sum(_failures(run).values())}"
    )


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low}" if low == high else f"{low} to {high}"


def _failures(run: RunMetrics) -> dict[str, int]:
    """The number of failed completions by label, of the methods that have any."""
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
    return f"Failed completions: {counts}. The first error: {first_line(first)}"


def _left_out(run: RunMetrics) -> str:
    if not run.left_out:
        return ""
    lines = f"{len(run.left_out)} lines" if len(run.left_out) > 1 else "1 line"
    return f"Left out by --lenient: {lines}. The first: {first_line(run.left_out[0])}"


def _definitions(runs: Sequence[RunMetrics]) -> Iterable[Note]:
    draws = {(run.bootstrap.num_resamples, run.bootstrap.seed) for run in runs}
    drawn = " and ".join(f"{number} resamples, seed {seed}" for number, seed in sorted(draws))
    for arithmetic in dict.fromkeys(run.arithmetic for run in runs):
        yield Note("Speedup", sentences.SPEEDUPS[arithmetic])
    yield Note(
        "Intervals",
        f"95 %, {scope_text(runs)}; by cluster bootstrap over samples ({drawn})"
        + (", passes or runs a second random effect." if _has_units(runs) else "."),
    )
    yield _MAT
    if any(isinstance(cost.relative, Estimate) for run in runs for cost in run.costs.values()):
        yield Note("Cost", sentences.STEP_COST)
    if any(map(sentences.has_limits, runs)):
        yield Note("Limit", sentences.LIMIT)
    if any(len(run.tasks) > 1 for run in runs):
        yield Note("Mean", "the arithmetic mean of the tasks' values, as in published tables.")
    yield from (Note(label, text) for label, text in serving_notes.definitions(runs))
    if any(not method.is_lossless for run in runs for method in run.info.method_labels):
        text = "not lossless: the output may differ from vanilla's."
        yield Note("*", " ".join([text, *filter(None, map(sentences.lossy_text, runs))]))


def scope_text(runs: Sequence[RunMetrics]) -> str:
    """The scope of the intervals of times: "over prompts and 3 passes"."""
    texts = dict.fromkeys(run.scope.text for run in runs)
    return " or ".join(text if text == PROMPTS_ONLY else f"over {text}" for text in texts)


def _has_units(runs: Sequence[RunMetrics]) -> bool:
    return any(run.scope.is_estimated for run in runs)


def _warnings(run: RunMetrics) -> Iterable[Note]:
    texts = [
        _STATES.get(run.info.status, ""),
        run.missing_text and f"The run says that it is complete, but {run.missing_text}.",
        _failed(run),
        _left_out(run),
        *(warning.message(run.info) for warning in run.warnings),
        *sentences.audit_warnings(run),
        *sentences.difference_warnings(run),
        *sentences.memory_warnings(run),
        *serving_notes.warnings(run),
        None if run.info.servers else _busy(run.info.cpu),
        *_worker_warnings(run),
        *run.info.warnings,
    ]
    return (Note("Warning", text, is_warning=True) for text in texts if text)


def _busy(cpu: CpuUse | None) -> str | None:
    return cpu.others_warning if cpu else None


def _worker_warnings(run: RunMetrics) -> Iterable[str]:
    """Other programs on a worker's machine, unless they may be workers of the run."""
    workers = run.info.workers
    nodes = [one.node for one in workers.values()]
    for name, one in workers.items():
        if nodes.count(one.node) == 1 and (text := _busy(one.cpu)):
            yield f"{name}: {text}"


def _missing(run: RunMetrics) -> Iterable[str]:
    """One line per reason. A reason that all cells of a method share names the method alone."""
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
            where[reason].append(f"{label} on {run.info.task_title(key.task)}{at}")
    return [f"{reason.capitalize()}: {_shortened(cells)}." for reason, cells in where.items()]


def _reason(cell: CellMetrics) -> str | None:
    for value in (cell.speedup, cell.mat):
        if isinstance(value, Missing):
            return value.reason
    return None


def _shortened(items: Iterable[str]) -> str:
    unique = list(dict.fromkeys(items))
    rest = f" and {len(unique) - _MOST_NAMED} more" if len(unique) > _MOST_NAMED else ""
    return ", ".join(unique[:_MOST_NAMED]) + rest
