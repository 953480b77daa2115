"""`specbench tune --engine`: find the draft size of a serving engine's methods at each load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.errors import UserError
from specbench.measure.base import Progress
from specbench.measure.progress import Lines
from specbench.measure.server.engine import load_engine
from specbench.measure.server.started_methods import engine_choices
from specbench.measure.spec import SPREAD, make_spec
from specbench.tune.served.draft_size import tuned_methods
from specbench.tune.served.measuring import PASSES, tune_methods
from specbench.tune.served.results import TuneResult
from specbench.tune.served.run_bench import RunBench

LOADS = (1, 2, 4, 8)
"""The numbers of requests at once, unless the user gives others."""
LEAST_PROMPTS = 8
"""The fewest prompts per task without --limit. More requests at once get a prompt each."""


def tune_servers(
    engine: str,
    model: str = "tiny",
    methods: str | Sequence[str] = (),
    *,
    output: str | Path,
    offline: bool = False,
    progress: Progress | None = None,
    **values: Any,
) -> TuneResult:
    """Find the draft size of an engine's methods at each load, beside plain decoding.

    Each measurement is a run in the folder: "acceptance", "steps" and "sizes" to predict the speed
    of each size, and last "turns": sizes predicted to be fastest, in turns with plain decoding. A
    second call measures only what is missing.

    Args:
        engine: a serving engine that specbench starts.
        model: a known model, a folder or a Hub id.
        methods: methods of the engine with options, at least one; `num_tokens` is the longest chain
            to try, and the most drafting steps of trees.
        output: the folder of the tune.
        offline: use no network.
        progress: receives the events.
        values: further fields of `specbench.log.spec.SpecValues` by name: `tasks`, `concurrency`
            (the loads), `repeats` (passes of the last measurement), and so on.

    Raises:
        UserError: an option is wrong, the engine cannot run a method, or nothing was answered.
    """
    loads = sorted(values.pop("concurrency", None) or LOADS)
    passes = values.pop("repeats", None) or PASSES  # of the last measurement
    if "limit" not in values and "sample" not in values:  # the user does not limit the prompts
        # the largest load needs as many prompts as it has requests at once
        values["limit"] = max(LEAST_PROMPTS, *loads)
    # `SPREAD`: limited prompts are taken from all parts of a task, not from its beginning.
    spec = make_spec(
        model=model,
        methods=methods,
        backend="server",
        serving_engine=engine,
        **{"limit_order": SPREAD, **values},
    )
    if len(spec.temperatures) > 1:
        raise UserError(
            f"A tune has one temperature, not {len(spec.temperatures)}.", "Give one of them."
        )
    description = load_engine(engine)  # the engine, with its methods and their options
    engine_choices(spec, description)  # raises for methods and options that the engine lacks
    methods_with_sizes = tuned_methods(spec.choices, description)
    bench = RunBench(spec, Path(output), progress or Lines(lambda text: None), is_offline=offline)
    if description.takes_size_per_request:  # one server may serve all sizes of a method
        bench.try_shared_servers(methods_with_sizes, loads)
    method_results = tune_methods(bench, methods_with_sizes, loads, passes)
    # "turns" is the last measurement, which decides
    return TuneResult(spec, tuple(method_results), bench.runs["turns"])
