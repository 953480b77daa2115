"""The notes that explain numbers: their definitions, bounds, marks and gaps.

The module gathers the numbers of each note; `texts.toml` has its sentence.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from specbench.analysis.metrics import RunMetrics
from specbench.analysis.ranking import Ranking, is_alone
from specbench.analysis.roofline import Roofline
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.report import formats
from specbench.report.texts import Note, Numbers, make_note


def scope_text(runs: Sequence[RunMetrics]) -> str:
    """The scope of the intervals of times: "over prompts and 3 passes"."""
    texts = dict.fromkeys(run.scope.text for run in runs)
    return "; or ".join(f"over {text}" for text in texts)


def definitions(runs: Sequence[RunMetrics]) -> Iterator[Note]:
    """The notes that define the numbers and marks of a report on these runs.

    A note is a sentence of `texts.toml` under its key, filled with the numbers given. `run.info`
    is the header of a run; a note has the methods' names from there.
    """
    # the formula of the speedup: "ours" or "paper"
    for arithmetic in dict.fromkeys(run.arithmetic for run in runs):
        yield make_note(f"speedup_{arithmetic}")
    yield _intervals(runs)  # what confidence intervals cover
    for key in _shown_numbers(runs):  # "mat", "cost" and others
        yield make_note(key)
    has_servers = any(run.serving for run in runs)  # `serving` has the numbers of servers
    # the latency limits of a good request, as the user wrote them: "ttft:500,tpot:50"
    for goodput in dict.fromkeys(run.info.spec.values.goodput for run in runs):
        if has_servers and goodput:
            yield make_note("goodput", limits=goodput)
    # The number of tests that were corrected together, for each column with the mark "~" (the
    # interval alone shows a difference).
    if tests_by_column := _tests_of_marked(runs):
        yield make_note("alone", tests=tests_by_column)
    for run in runs:
        # of each method of the run; a lossless method has the target's output distribution
        if not all(method.is_lossless for method in run.info.method_labels):
            # with the decode-only speedups of lossy methods above temperature 0
            yield make_note("lossy", run.info, decoding=_lossy_decoding(run))


def _intervals(runs: Sequence[RunMetrics]) -> Note:
    """The note on intervals: what they cover ("passes" or "runs"), and how they were resampled."""
    draws = sorted({(run.bootstrap.num_resamples, run.bootstrap.seed) for run in runs})
    kinds = dict.fromkeys(run.scope.kind for run in runs if run.scope.is_estimated)
    return make_note(
        "intervals",
        scope=scope_text(runs),
        draws=[{"resamples": number, "seed": seed} for number, seed in draws],
        kinds=[*kinds],
    )


def _shown_numbers(runs: Sequence[RunMetrics]) -> Iterator[str]:
    """The keys of the notes that define the numbers in a report on these runs.

    A number is an `Estimate`, or the reason why it is missing.
    """
    # one per method and temperature on a server; none without servers
    metrics_of_servers = [metrics for run in runs for metrics in run.serving.values()]
    # seconds of a step / vanilla's, of each method and temperature, by task and over all tasks
    step_costs = [cost.relative for run in runs for cost in run.costs.values()]
    # of the runs whose memory bandwidth is known
    rooflines = [run.roofline for run in runs if isinstance(run.roofline, Roofline)]
    yield "mat"
    if any(isinstance(cost, Estimate) for cost in step_costs):
        yield "cost"
    # `no_bound` is the reason why there is no bandwidth bound of the speedup
    if any(roofline.no_bound is None for roofline in rooflines):
        yield "limit"  # the note on that bound
    if any(len(run.tasks) > 1 for run in runs):
        yield "mean"  # over the tasks
    if metrics_of_servers:
        yield "load"  # the note on times and throughputs at a load
    # accepted tokens per draft + 1, by the server's own counters
    if any(isinstance(metrics.engine_mat, Estimate) for metrics in metrics_of_servers):
        yield "engine_mat"


def bounds(run: RunMetrics) -> Iterator[Note]:
    """Notes on the smallest possible MAT of methods on servers that do not list their steps.

    There, steps are implied by counts. `mat` is the MAT over these steps; `least_mat` is the MAT
    if every answer that may have taken one more step did so. There is a note per method and
    temperature, if the two differ in the digits that a report shows.
    """
    for (method, temperature), server in run.serving.items():
        mat = run.pooled(method, temperature).mat  # over the steps of all tasks
        least_mat = server.least_mat
        if not isinstance(mat, Estimate) or not isinstance(least_mat, Estimate):  # missing
            continue
        if formats.mat(mat) != formats.mat(least_mat):
            names = {"method": method, "temperature": temperature}
            yield make_note("least_mat", run.info, **names, least=least_mat)


def _tests_of_marked(runs: Sequence[RunMetrics]) -> list[int]:
    """The number of tests in each column where an interval alone shows a difference."""
    tests_by_column = []
    for run in runs:
        for ranking in (*run.rankings.values(), *run.task_rankings.values()):
            if _has_mark(ranking):
                p_values = ranking.against_baseline.values()
                tests_by_column.append(sum(p_value is not None for p_value in p_values))
    return tests_by_column


def _has_mark(ranking: Ranking) -> bool:
    """True if the interval of any speedup alone shows a difference."""
    return any(
        is_alone(speedup, ranking.against_baseline[method])
        for method, speedup in ranking.speedups.items()
    )


def _lossy_decoding(run: RunMetrics) -> list[Numbers]:
    """Decode-only speedups of lossy methods above temperature 0, where answers differ in length:
    the prefill's share of the time depends on the length.
    """
    speedups: list[Numbers] = []
    for (method, temperature), overall in run.overall.items():
        is_lossy = temperature > 0 and not run.info.method(method).is_lossless
        if is_lossy and isinstance(overall.decode_speedup, Estimate):
            speedup = overall.decode_speedup.value
            speedups.append({"method": method, "temperature": temperature, "speedup": speedup})
    return speedups


def gaps(run: RunMetrics) -> Iterable[Note]:
    """Notes on missing MATs and speedups: a note per reason, with the names of the cells.

    A cell is a method on a task at a temperature. If all cells of a method lack a number for the
    same reason, the note names the method alone.
    """
    names_by_reason: dict[str, list[Numbers]] = defaultdict(list)  # reason -> names of its cells
    for method in run.methods:
        # the method's cells; a key without a task is of all tasks together
        cells = {key: cell for key, cell in run.cells.items() if key.method == method and key.task}
        # the reason of the speedup, which comes last, or else of the MAT
        reason_by_cell = {
            key: number.reason
            for key, cell in cells.items()
            for number in (cell.mat, cell.speedup)
            if isinstance(number, Missing)
        }
        distinct_reasons = set(reason_by_cell.values())
        if len(reason_by_cell) == len(cells) and len(distinct_reasons) == 1:
            names_by_reason[distinct_reasons.pop()].append({"method": method})
            continue
        for key, reason in reason_by_cell.items():  # key: method, temperature and task
            names = {"method": method, "task": key.task, "temperature": key.temperature}
            names_by_reason[reason].append(names)
    for reason, names_of_cells in names_by_reason.items():
        yield make_note("missing", run.info, reason=reason, cells=names_of_cells)
