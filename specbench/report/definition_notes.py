"""Make the notes that explain numbers: definitions, bounds, marks and missing numbers.

This module gathers the numbers of each note, and `texts.toml` has the sentences.
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
    """Return what the intervals of times cover, such as "over prompts and 3 passes"."""
    texts = dict.fromkeys(run.scope.text for run in runs)
    return "; or ".join(f"over {text}" for text in texts)


def definitions(runs: Sequence[RunMetrics]) -> Iterator[Note]:
    """Yield the notes that define the numbers and marks in the report of these runs.

    A note is a sentence of `texts.toml` that is filled with numbers. The header `run.info` has the
    names of the methods.
    """
    # the formula of the speedup: "ours" or "paper"
    for arithmetic in dict.fromkeys(run.arithmetic for run in runs):
        yield make_note(f"speedup_{arithmetic}")
    yield _intervals(runs)  # what the intervals cover
    for key in _shown_numbers(runs):  # "mat", "cost" and others
        yield make_note(key)
    has_servers = any(run.serving for run in runs)  # `serving` has the metrics of servers
    # the latency limits of a good request, as the user wrote them: "ttft:500,tpot:50"
    for goodput in dict.fromkeys(run.info.spec.values.goodput for run in runs):
        if has_servers and goodput:
            yield make_note("goodput", limits=goodput)
    # For each column with the mark "~", the number of tests that were corrected together. The mark
    # means that only the interval shows a difference.
    if tests_by_column := _tests_of_marked(runs):
        yield make_note("alone", tests=tests_by_column)
    for run in runs:
        # A lossless method has the target's output distribution.
        if not all(method.is_lossless for method in run.info.method_labels):
            # with the speedups of decoding alone, for lossy methods above temperature 0
            yield make_note("lossy", run.info, decoding=_lossy_decoding(run))


def _intervals(runs: Sequence[RunMetrics]) -> Note:
    """Return the note on intervals: what they cover ("passes" or "runs"), and their resamples."""
    draws = sorted({(run.bootstrap.num_resamples, run.bootstrap.seed) for run in runs})
    kinds = dict.fromkeys(run.scope.kind for run in runs if run.scope.is_estimated)
    return make_note(
        "intervals",
        scope=scope_text(runs),
        draws=[{"resamples": number, "seed": seed} for number, seed in draws],
        kinds=[*kinds],
    )


def _shown_numbers(runs: Sequence[RunMetrics]) -> Iterator[str]:
    """Yield the keys of the notes that define the numbers in the report of these runs.

    An `Estimate` is a number that is not missing.
    """
    # The metrics of each method on a server at each temperature. Empty without servers.
    metrics_of_servers = [metrics for run in runs for metrics in run.serving.values()]
    # The seconds of a step / vanilla's, for each method, temperature and task, and over all tasks.
    step_costs = [cost.relative for run in runs for cost in run.costs.values()]
    # The rooflines of the runs whose memory bandwidth is known.
    rooflines = [run.roofline for run in runs if isinstance(run.roofline, Roofline)]
    yield "mat"
    if any(isinstance(cost, Estimate) for cost in step_costs):
        yield "cost"
    # `no_bound` is the reason why there is no bandwidth bound of the speedup, else None
    if any(roofline.no_bound is None for roofline in rooflines):
        yield "limit"  # the note about the bandwidth bound
    if any(len(run.tasks) > 1 for run in runs):
        yield "mean"  # over the tasks
    if metrics_of_servers:
        yield "load"  # the note about times and throughputs at a load
    # accepted tokens per draft + 1, from the server's own counters
    if any(isinstance(metrics.engine_mat, Estimate) for metrics in metrics_of_servers):
        yield "engine_mat"


def bounds(run: RunMetrics) -> Iterator[Note]:
    """Yield notes about the smallest possible MAT on servers that do not list their steps.

    The number of steps of such a server is computed from counts, and `mat` is based on it.
    `least_mat` is the MAT if every answer took one more step wherever that is possible. A method at
    a temperature has a note if the two numbers differ in the digits that a report shows.
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
    """Return the number of tests for each column that has the mark "~"."""
    rankings = [
        ranking for run in runs for ranking in (*run.rankings.values(), *run.task_rankings.values())
    ]
    return [
        sum(p_value is not None for p_value in ranking.against_baseline.values())
        for ranking in rankings
        if _has_mark(ranking)
    ]


def _has_mark(ranking: Ranking) -> bool:
    """True if the interval of any speedup shows a difference, but the corrected test does not."""
    return any(
        is_alone(speedup, ranking.against_baseline[method])
        for method, speedup in ranking.speedups.items()
    )


def _lossy_decoding(run: RunMetrics) -> list[Numbers]:
    """Return the speedups of decoding alone, for lossy methods above temperature 0.

    The answers of these methods differ in length from vanilla's, and the share of the prefill in
    the total time depends on the length.
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
    """Yield notes about missing MATs and speedups, with a note for each reason.

    A note names the cells that lack a number. A cell is a method on a task at a temperature. If all
    cells of a method lack a number for the same reason, the note names only the method.
    """
    # the names of the cells, by reason
    names_by_reason: dict[str, list[Numbers]] = defaultdict(list)
    for method in run.methods:
        # The cells of the method. A key without a task is for all tasks together.
        cells = {key: cell for key, cell in run.cells.items() if key.method == method and key.task}
        # The reason for the missing speedup, or else for the missing MAT.
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
        for key, reason in reason_by_cell.items():  # `key` has the method, temperature and task
            names = {"method": method, "task": key.task, "temperature": key.temperature}
            names_by_reason[reason].append(names)
    for reason, names_of_cells in names_by_reason.items():
        yield make_note("missing", run.info, reason=reason, cells=names_of_cells)
