"""The files of a tune: its table, its settings, and the plot of its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.log.files import write_whole
from specbench.log.run import Run
from specbench.measure.local.engine_setup import EngineSetup
from specbench.settings.files import SettingsFile, hash_of, toml_text
from specbench.settings.tuned_settings import keep_settings
from specbench.tune.choice import NO_SETTINGS, Choice, Tried
from specbench.tune.plots import MeasuredPrediction, agreement

COLUMNS = ("method", "settings", "predicted_speedup", "low", "high", "measured_speedup")
"""Of `predictions.csv`."""


def write_results(folder: Path, choices: Sequence[Choice], setup: EngineSetup, run: Run) -> None:
    """Write `predictions.csv`, `settings.toml` and the plot into the folder of a tune.

    The chosen settings are also kept for later runs with `--settings auto`, unless the weights
    are a stand-in's.

    Args:
        folder: of the tune.
        choices: per method, the settings that were measured (`tried`) and the chosen one.
        setup: the model and the machine.
        run: the run that measured the settings.
    """
    from specbench.report.build import plot_files, write_files

    all_tried = [tried for choice in choices for tried in choice.tried]
    write_whole(folder / "predictions.csv", _table(all_tried).encode())
    settings_file = _settings_file(choices, setup, run)
    write_whole(folder / "settings.toml", toml_text(settings_file).encode())
    # A stand-in has generated weights in place of trained ones: its settings serve no real model.
    if not setup.stand_in:
        keep_settings(settings_file)
    measured_predictions = [
        MeasuredPrediction(tried.predicted, tried.measured.value)
        for tried in all_tried
        if tried.predicted is not None and tried.measured is not None
    ]
    plot = agreement(measured_predictions)  # measured by predicted speedups; None without any
    if plot is not None:
        write_files(folder, plot_files([plot]))  # as images, in all formats


def _table(all_tried: Sequence[Tried]) -> str:
    """The CSV text of predicted and measured speedups, a row per setting, with `COLUMNS`.

    A cell is empty if the setting was not predicted or not measured. `low` and `high` are the ends
    of the 95 % interval of the prediction.
    """
    import pandas as pd

    rows = []
    for tried in all_tried:
        # the method's registered name, and the setting as on the command line
        row: dict[str, Any] = {"method": tried.method.method.name, "settings": tried.settings}
        if tried.predicted is not None:
            row["predicted_speedup"] = tried.predicted.speedup
            row["low"] = tried.predicted.low
            row["high"] = tried.predicted.high
        if tried.measured is not None:
            row["measured_speedup"] = tried.measured.value  # without its interval
        rows.append(row)
    return pd.DataFrame(rows, columns=[*COLUMNS]).to_csv(index=False, float_format="%.4f")


def _settings_file(choices: Sequence[Choice], setup: EngineSetup, run: Run) -> SettingsFile:
    """The chosen settings of each method, as a file, with the machine, model and weights that
    they were measured with.

    `setup` has the model and the machine; the header of `run` has the weights.
    """
    tuned_options: dict[str, dict[str, Any]] = {}  # by method's registered name, then by option
    weights_hashes: dict[str, str] = {}  # by method's registered name; "" for no draft weights
    # NO_SETTINGS are options that a user gives but a tune does not choose, such as weights.
    for choice in choices:
        method = choice.best.method  # with the chosen options; `asked` has those that are named
        method_name = method.method.name
        option_names = [option for option in method.asked.given if option not in NO_SETTINGS]
        tuned_options[method_name] = {
            option: getattr(method.options, option) for option in option_names
        }
        draft_weights = run.header.methods[method.label].weights
        weights_hashes[method_name] = hash_of(draft_weights.files) if draft_weights else ""
    return SettingsFile(
        methods=tuned_options,
        title=f"tuned {run.header.created[:10]}",  # the date
        model=setup.card.name,
        fits=setup.fits(),  # the machine, and versions, by name
        weights=weights_hashes,
    )
