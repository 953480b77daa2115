"""Make runs from Python, and read runs as data frames."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.api.libraries import quiet_libraries
from specbench.api.signatures import show_options
from specbench.machine.threads import wait_briefly
from specbench.types import RUNS

if TYPE_CHECKING:
    from pandas import DataFrame

    from specbench.analysis.metrics import RunMetrics
    from specbench.log.run import Load
    from specbench.log.run import Run as LogRun


_KEYS = ("method", "temperature", "concurrency", "request_rate")
"""The columns that name a row of a table."""


class Run:
    """A stored run as data frames, as `read_run` returns it."""

    def __init__(self, run: LogRun) -> None:
        self._run = run
        self.path = run.folder
        self.header = run.header
        self.records = run.records

    def __repr__(self) -> str:
        from specbench.report.verdict import verdict

        model, status = self.header.model.label, self.header.status
        metrics = next(iter(self._metrics.values()))
        sentences = [f"{self.header.id}: {model}, {len(self.records)} records, {status}"]
        sentences += [verdict(metrics, temperature) for temperature in metrics.temperatures]
        return f"<Run {'. '.join(sentences)}>"

    def __str__(self) -> str:
        return f"{self!r}\n{self.table.round(2).to_string()}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(repr(self)[1:-1])}</p>{self.table.round(2).to_html()}"

    @cached_property
    def _metrics(self) -> Mapping[Load, RunMetrics]:
        from specbench.analysis.metrics import measure

        return {load: measure(self._run.at(load)) for load in self._run.loads}

    @cached_property
    def table(self) -> DataFrame:
        """The part of `summary` that fits a screen: a row for each method, the fastest first.

        `tokens_per_s` and `num_samples` cover all tasks together. The other columns are means over
        tasks.
        """
        keys = [column for column in _KEYS if column in self.summary]
        rows = self.summary.set_index(keys)
        means = rows[rows["task"] == "mean"]
        pooled = rows[rows["task"] == "pooled"]
        speedups = ["speedup", "speedup_low", "speedup_high", "mat"]
        table = means[speedups].join(pooled[["tokens_per_s", "num_samples"]])
        return table.sort_values("speedup", ascending=False)

    @cached_property
    def samples(self) -> DataFrame:
        """A row for each record, in the order in which they ran.

        `analysis.records.records_frame` has the columns. Seconds are floats, and NaN stands for a
        time that was not measured.
        """
        from specbench.analysis.records import records_frame

        return records_frame(self.records)

    @cached_property
    def summary(self) -> DataFrame:
        """A row for each cell (method, temperature, task), with intervals.

        Missing numbers have reasons. `analysis.frames.summary_frame` has the columns. A run on
        servers at several loads has a row for each cell and load, with the columns `concurrency`
        and `request_rate`.
        """
        from specbench.analysis.frames import summary_frame

        return self._of_all_loads(summary_frame)

    @cached_property
    def step_bins(self) -> DataFrame:
        """MAT and acceptance by position in the answer, by length of the context, and by turn.

        `analysis.frames.step_bins_frame` has the columns. Several loads add columns as in
        `summary`.
        """
        from specbench.analysis.frames import step_bins_frame

        return self._of_all_loads(step_bins_frame)

    def _of_all_loads(self, make_frame: Callable[[RunMetrics], DataFrame]) -> DataFrame:
        """Join the frames of all loads. With several loads, columns give the load."""
        import pandas as pd

        frames = {load: make_frame(metrics) for load, metrics in self._metrics.items()}
        if len(frames) == 1:
            return next(iter(frames.values()))
        labelled = [frame.assign(**load._asdict()) for load, frame in frames.items()]
        return pd.concat(labelled, ignore_index=True)

    def explain(
        self, reference: Run | None = None, methods: tuple[str, str] | None = None
    ) -> DataFrame:
        """Return the factors of the ratio this run / reference, for each method of both runs.

        Without a reference, they are the factors of this run's speedups. There is a row for each
        factor, for each line below the cost, and for each bin of MAT. `part_of` names the factor
        that a line or a bin belongs to.
        `subject` and `reference` are the values on both sides. `effect` is the number by which the
        factor multiplies the ratio, with the ends of its interval. `causes` are the settings that
        can change the factor.

        Args:
            reference: the run to compare with. None explains this run's own speedups.
            methods: a method of each run, instead of the common methods.

        Raises:
            UserError: the runs have nothing to explain, or lack a method.
        """
        from specbench.judge.explanation import explain_runs
        from specbench.judge.explanation_formats import explanation_frame

        other_run = reference._run if reference else None
        return explanation_frame(explain_runs(self._run, other_run, methods))


def read_run(path: str | Path) -> Run:
    """Read the run in a folder.

    `read_run("results/runs/RUN").summary.query("task == 'mean'")[["method", "speedup", "mat"]]`

    Raises:
        RunFolderError: the folder has no run, or a file is damaged or of a newer schema.
    """
    from specbench.log.store import read_run as read_stored

    return Run(read_stored(Path(path)))


def run(
    model: str = "tiny",
    methods: str | Sequence[str] = (),
    *,
    output: str | Path | None = None,
    resume: bool = False,
    offline: bool = False,
    ray: str = "",
    say: Callable[[str], None] | None = None,
    **values: Any,
) -> Run:
    """Measure methods on tasks, as `specbench run` does, and read the run.

    `run("tiny", "eagle2,pld", tasks="gsm8k", limit=2, output="runs/mine").summary`

    Args:
        model: a known model, a folder or a Hub id.
        methods: methods with options, in one text or several. The default is the command's.
        output: the run's folder. By default, it is a new one in `results/runs`.
        resume: continue an unfinished run with the values that it began with.
        offline: do not use the network.
        ray: share the prompts among the GPUs of a Ray cluster: "auto", "local" or its address.
        say: a function such as `print` that receives a line per finished sample and message. By
            default, a notebook shows the last line, and nothing is shown elsewhere.
        values: further fields of `specbench.log.spec.SpecValues`: `tasks`, `prompts`, `limit`,
            `temperatures`, `max_new_tokens`, `repeats`, `seed`, `device`, `dtype`, and so on.
            By default `settings` is "auto", as in the command, or "paper" with servers.

    Raises:
        UserError: a name, value, file or cluster is unknown, wrong or missing.
    """
    wait_briefly()
    from specbench.measure.elsewhere import setup_maker
    from specbench.measure.plan import make_plan
    from specbench.measure.progress import Lines
    from specbench.measure.run_folder import claim_folder, new_run, resumed_run
    from specbench.measure.session import run_plan
    from specbench.measure.spec import make_spec, new_spec_values

    with quiet_libraries():
        if model != "tiny":
            values["model"] = model
        if methods:
            values["methods"] = methods
        spec = make_spec(**new_spec_values(values))
        choose = resumed_run if resume else new_run
        chosen = choose(spec, [*values], Path(output) if output else None, RUNS)
        progress = Lines(say or _notebook_line())
        with setup_maker(ray) as maker:
            plan = make_plan(chosen.spec, is_offline=offline, setup_maker=maker)
            path = chosen.path if output or resume else claim_folder(chosen.path)
            return Run(run_plan(plan, path, progress, given=chosen.given))


show_options(run, settings="auto", repeats=None, limit_order="spread")


def _notebook_line() -> Callable[[str], None]:
    """Return a function that shows the last of its texts in a notebook, and nothing elsewhere."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if not hasattr(shell, "kernel"):
        return lambda text: None
    display = import_module("IPython.display").display  # only notebooks have it
    handle = display({"text/plain": ""}, raw=True, display_id=True)
    return lambda text: handle.update({"text/plain": text}, raw=True)
