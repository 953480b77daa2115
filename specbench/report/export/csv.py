"""Write all numbers as a tidy table, with a line for each run, temperature, method and task.

A missing number is an empty field, and the column `speedup_missing` or `mat_missing` has the
reason. Each method has two more lines, over all tasks. The line "mean" has the arithmetic means of
the tasks' values. The line "pooled" treats all tasks as one. It has `mat_all_steps` in place of
`mat`, and only this line has the columns after that (costs, equality with vanilla, bins of steps,
servers). Runs whose prompts have categories also have a table by category.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specbench.analysis.frames import summary_frame
from specbench.analysis.metrics import BASELINE, RunMetrics
from specbench.log.run import BETWEEN, loads_of
from specbench.report import facts
from specbench.report.results import Report

if TYPE_CHECKING:
    from pandas import DataFrame, Series

_FORMULA = re.compile(r"""(?:^|(?<=[;|\t\r\n]))(?=[\s"]*(?:[=+@＝＋－＠-]|::))""")


def render(report: Report) -> str:
    """Return the table of all cells."""
    import pandas as pd

    frames = [_cells(source.metrics, source.metrics) for source in report.sources]
    return csv_text(pd.concat(frames))


def files(report: Report) -> Mapping[str, str]:
    """Return the table of all cells, and the table by category if prompts have categories."""
    import pandas as pd

    tables = {"table.csv": render(report)}
    categories = [
        _category_cells(source.metrics, source.categories)
        for source in report.sources
        if source.categories
    ]
    if categories:
        tables["categories.csv"] = csv_text(pd.concat(categories))
    return tables


def _cells(run: RunMetrics, metrics: RunMetrics) -> DataFrame:
    """Return a line for each method, temperature and task: facts, then the numbers of `metrics`.

    `run` has the facts. `metrics` are the numbers of this run, by task or by category.
    """
    frame = summary_frame(metrics)
    if frame.empty:
        return frame
    info = run.info
    model = info.model
    about = {
        "run": info.id,
        "model": model.name,
        "weights": facts.model_text(info),
        "dtype": model.dtype,
        "is_stand_in": model.is_stand_in,
        "machine": info.device_phrase,
        "prompts": facts.prompts_text(info),
        "load": ", ".join(load.text for load in loads_of(info.spec.values)),
        "arithmetic": metrics.arithmetic,
        "intervals": metrics.scope.text,
        "interval_missing": _no_intervals(frame),
        "title": [info.method(method).title for method in frame["method"]],
        "is_lossless": [info.method(method).is_lossless for method in frame["method"]],
    }
    return frame.assign(**about)[[*about, *frame.columns]]


def _no_intervals(frame: DataFrame) -> Series:
    """Return why speedups have no interval. Speedups in lines named "pooled" never have one."""
    has_speedup = frame["speedup"].notna()
    has_no_interval = frame["speedup_low"].isna()
    is_counted = (frame["task"] != "pooled") & (frame["method"] != BASELINE)
    is_bare = has_speedup & has_no_interval & is_counted
    return is_bare.map({True: "too few samples", False: None})


def _category_cells(run: RunMetrics, categories: RunMetrics) -> DataFrame:
    """Return a line for each method, temperature, task and category.

    The columns are those of `_cells` and the category. `categories` are the numbers of the run with
    "task / category" in place of each task. The lines over all tasks are left out. `run` has the
    facts that every line repeats.
    """
    frame = _cells(run, categories)  # a line for each method, temperature and "task / category"
    if frame.empty:
        return frame
    frame = frame[frame["task"].isin(categories.tasks)]  # without "mean" and "pooled"
    # The column 0 is the task, 1 the separator " / ", and 2 the category.
    split_names = frame["task"].str.partition(BETWEEN)
    frame = frame.assign(task=split_names[0])
    after_task = frame.columns.get_loc("task") + 1  # the position of the new column
    frame.insert(after_task, "category", split_names[2])
    return frame


def csv_text(frame: DataFrame) -> str:
    """Write the frame as CSV without its index. Missing values are empty fields."""
    return str(frame.map(safe_cell).to_csv(index=False, lineterminator="\n"))


def safe_cell(value: Any) -> Any:
    """Return the value, with an apostrophe before a formula or a CI command ("::").

    Signs after semicolons, tabs and bars count too, since a spreadsheet may end a cell there.
    """
    return _FORMULA.sub("'", value) if isinstance(value, str) else value
