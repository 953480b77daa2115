"""Recommend a method for this machine, or say why none is recommended. Then name the next step."""

from collections.abc import Iterator
from typing import NamedTuple

from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.analysis.ranking import Ranking
from specbench.analysis.recommended import Recommended, recommend
from specbench.errors.safe_text import few
from specbench.log.header import RunHeader
from specbench.log.run import loads_of
from specbench.machine.environment import BUSY_AT_START
from specbench.report.warning_notes import with_advice

_SPEED_RULES = (
    "untimed_work",
    "hidden_time",
    "remembered_answers",
    "known_answers",
    "fast_step",
    "slow_vanilla",
    "fast_prefill",
    "slowed_vanilla",
)
"""The keys of warnings about speed that drafting does not explain. These warnings name methods."""


class _Obstacle(NamedTuple):
    """A reason why nothing is recommended."""

    reason: str
    remedy: str
    """Advice on what to do next."""


def recommendation(run: RunMetrics, temperature: float) -> str:
    """Return sentences about the method to use at a temperature, and about the next command.

    If nothing can be recommended, they give the reasons. The text is empty for an imported run, and
    for a run without a speedup. Speedups are means over tasks.
    """
    # The methods with a speedup and their tests, the fastest first, without vanilla.
    ranking = run.rankings.get(temperature, Ranking())
    if run.info.imported or not ranking.methods:
        return ""

    def label_of(method: str) -> str:
        """Return the name in tables of a method, such as "pld:ngram=2" in records."""
        return run.info.method(method).label

    if obstacles := [*_obstacles(run, ranking)]:
        reasons = " and ".join(obstacle.reason for obstacle in obstacles)
        remedies = "; ".join(obstacle.remedy for obstacle in obstacles)
        return f"Nothing is recommended: {reasons}. Next: {remedies}."
    left_out = _left_out(run)  # the reason for each method that is never recommended
    # the speedups over vanilla of the methods that may be recommended
    speedups = {
        method: speedup for method, speedup in ranking.speedups.items() if method not in left_out
    }
    # The method to use, and those that are not significantly slower. It is None if no method is
    # shown to be faster than vanilla.
    recommended = recommend(speedups, BASELINE)
    # "on this machine", and also ", 8 requests at once" for servers
    where = ", ".join(["on this machine", *(load.text for load in loads_of(run.info.spec.values))])
    if recommended is None:
        sentence = f"No method is shown to be faster than vanilla {where}."
    elif recommended.not_slower:
        # the first three, and how many others there are
        close_methods = few([label_of(method) for method in recommended.not_slower])
        sentence = (
            f"Use {label_of(recommended.method)} {where}. "
            f"These are not significantly slower: {close_methods}."
        )
    else:
        # one run does not show how much runs differ
        in_run = "" if run.scope.kind == "runs" else " in this run"
        sentence = f"Use {label_of(recommended.method)} {where}: it is the fastest{in_run}."
    recommended_speedup = speedups[recommended.method].value if recommended else 0.0
    # The left-out methods that are faster than the recommended one. If none is recommended, these
    # are all left-out methods with a speedup.
    exceptions = [
        f"{label_of(method)} ({reason})"
        for method, reason in left_out.items()
        if method in ranking.speedups and ranking.speedups[method].value > recommended_speedup
    ]
    if exceptions:
        sentence += f" Not recommended: {', '.join(exceptions)}."
    return f"{sentence} Next: {_next_step(run, recommended)}."


def _obstacles(run: RunMetrics, ranking: Ranking) -> Iterator[_Obstacle]:
    """Yield the reasons why no method is recommended, each with a remedy.

    `ranking` has one or more methods with a speedup, the fastest first.
    """
    if run.info.model.is_stand_in:  # its weights were made from those of `tiny`, the embedded model
        yield _Obstacle(
            "a stand-in accepts the same tokens as tiny", "measure the model's own weights"
        )
    if _was_busy(run.info):
        yield _Obstacle("the machine was busy", "stop other programs")
    # `machine` is the variance between passes or runs. It is None after a single pass.
    if ranking.speedups[ranking.methods[0]].machine is None:
        yield _Obstacle("there is only one pass", "use --repeats 3 or --runs 5")
    if all(speedup.interval is None for speedup in ranking.speedups.values()):
        yield _Obstacle("there are too few prompts", _more_prompts(run))


def _more_prompts(run: RunMetrics) -> str:
    """Return advice on how to get enough prompts for smaller differences."""
    for warning in run.warnings:
        if warning.key == "few_samples":
            return f"use {with_advice(warning, run.info)['more']}"
    return "use more prompts: `specbench report RUN --plan` tells how many"


def _was_busy(info: RunHeader) -> bool:
    """True if other programs slowed the run, by the rules of the leaderboard.

    For a run on servers, only the load before the run counts, since servers would count as other
    programs. The same holds for a run whose processor was not sampled.
    """
    if info.gpu and info.gpu.other_processes_most:
        return True
    if info.servers or info.cpu is None:
        return any(text.startswith(BUSY_AT_START) for text in info.warnings)
    return info.cpu.others_warning is not None


def _left_out(run: RunMetrics) -> dict[str, str]:
    """Return the methods that are never recommended, even if they are the fastest, with reasons.

    If a method has several reasons, the last one counts. Their order is: a lossy output, a failed
    audit (a test of the output) at any temperature, a warning about its speed.
    """
    lossy = {
        method: "its output may differ"
        for method in run.methods
        if not run.info.method(method).is_lossless
    }
    audits = run.audit.results if run.audit else ()  # for each method and temperature
    failed = {audit.method: "it failed the audit" for audit in audits if audit.status == "bug"}
    doubtful = {
        numbers["method"]: "a warning says that its speed is unreliable"
        for warning in run.warnings
        if warning.key in _SPEED_RULES
        for numbers in warning.numbers["methods"]  # a dict for each method
    }
    return {**lossy, **failed, **doubtful}


def _next_step(run: RunMetrics, recommended: Recommended | None) -> str:
    """Return what to do next: look for faster settings, audit the method, or use more prompts.

    For servers, only the last is advised.
    """
    if not run.info.servers:
        if recommended and run.audit is None:
            return "run `specbench audit` on the run's folder"
        if recommended is None or not recommended.not_slower:
            return "run `specbench tune` to look for faster settings"
    return _more_prompts(run)
