"""The notes that explain numbers: their definitions, bounds, marks and gaps.

This module gathers the numbers for each note, and `texts.toml` has the note's sentence.
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
    """What the intervals of times cover, such as "over prompts and 3 passes"."""
    texts = dict.fromkeys(run.scope.text for run in runs)
    return "; or ".join(f"over {text}" for text in texts)


def definitions(runs: Sequence[RunMetrics]) -> Iterator[Note]:
    """The notes that define the numbers and marks of a report on these runs.

    A note is the sentence that `texts.toml` has under the note's key, filled with numbers.
    `run.info` is the header of a run, from which notes have the methods' names.
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
    # The number of tests that were corrected together, for each column with the mark "~", which
    # means that only the interval shows a difference.
    if tests_by_column := _tests_of_marked(runs):
        yield make_note("alone", tests=tests_by_column)
    for run in runs:
        # A lossless method has the target's output distribution.
        if not all(method.is_lossless for method in run.info.method_labels):
            # with the decode-only speedups of lossy methods above temperature 0
            yield make_note("lossy", run.info, decoding=_lossy_decoding(run))


def _intervals(runs: Sequence[RunMetrics]) -> Note:
    """The note about intervals: what they cover ("passes" or "runs"), and their resampling."""
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
    # The numbers per method and temperature on a server; none without servers.
    metrics_of_servers = [metrics for run in runs for metrics in run.serving.values()]
    # Seconds of a step / vanilla's, per method and temperature, by task and over all tasks.
    step_costs = [cost.relative for run in runs for cost in run.costs.values()]
    # The rooflines of the runs whose memory bandwidth is known.
    rooflines = [run.roofline for run in runs if isinstance(run.roofline, Roofline)]
    yield "mat"
    if any(isinstance(cost, Estimate) for cost in step_costs):
        yield "cost"
    # `no_bound` is the reason why there is no bandwidth bound of the speedup
    if any(roofline.no_bound is None for roofline in rooflines):
        yield "limit"  # the note about that bound
    if any(len(run.tasks) > 1 for run in runs):
        yield "mean"  # over the tasks
    if metrics_of_servers:
        yield "load"  # the note about times and throughputs at a load
    # accepted tokens per draft + 1, by the server's own counters
    if any(isinstance(metrics.engine_mat, Estimate) for metrics in metrics_of_servers):
        yield "engine_mat"


def bounds(run: RunMetrics) -> Iterator[Note]:
    """Notes about the smallest possible MAT of methods on servers that do not list their steps.

    There, the number of steps is computed from counts. `mat` is the MAT with this number.
    `least_mat` is the MAT if every answer that may have taken one more step did so. There is a note
    per method and temperature if the two differ in the digits that a report shows.
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
    """The number of tests in each column in which only an interval shows a difference."""
    rankings = [
        ranking for run in runs for ranking in (*run.rankings.values(), *run.task_rankings.values())
    ]
    return [
        sum(p_value is not None for p_value in ranking.against_baseline.values())
        for ranking in rankings
        if _has_mark(ranking)
    ]


def _has_mark(ranking: Ranking) -> bool:
    """True if, for any speedup, only the interval shows a difference."""
    return any(
        is_alone(speedup, ranking.against_baseline[method])
        for method, speedup in ranking.speedups.items()
    )


def _lossy_decoding(run: RunMetrics) -> list[Numbers]:
    """Speedups of decoding alone, for lossy methods above temperature 0. Their answers differ in
    length from vanilla's, and the prefill's share of the time depends on the length.
    """
    return [
        {
            "method": method,
            "temperature": temperature,
            "speedup": overall.decode_speedup.value,
        }
        for (method, temperature), overall in run.overall.items()
        if temperature > 0
        and not run.info.method(method).is_lossless
        and isinstance(overall.decode_speedup, Estimate)
    ]


def gaps(run: RunMetrics) -> Iterable[Note]:
    """Notes about missing MATs and speedups: a note per reason, with the names of the cells.

    A cell is a method on a task at a temperature. If all cells of a method lack a number for the
    same reason, the note names only the method.
    """
    names_by_reason: dict[str, list[Numbers]] = defaultdict(list)  # reason -> names of its cells
    for method in run.methods:
        # The method's cells. A key without a task is for all tasks together.
        cells = {key: cell for key, cell in run.cells.items() if key.method == method and key.task}
        # The reason for the missing speedup, which comes last, or else for the missing MAT.
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
