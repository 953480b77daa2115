"""Write the files of a tune: its table, its settings, and the plot of its predictions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.log.files import REPEAT, folder_errors, write_whole
from specbench.log.run import Run
from specbench.measure.local.engine_setup import EngineSetup
from specbench.models.checkpoints import hash_of
from specbench.settings.files import SettingsFile, toml_text
from specbench.settings.tuned_settings import keep_settings
from specbench.tune.choice import NO_SETTINGS, Choice, Tried
from specbench.tune.plots import MeasuredPrediction, agreement

COLUMNS = ("method", "settings", "predicted_speedup", "low", "high", "measured_speedup")
"""The columns of `predictions.csv`."""


def write_results(
    folder: Path, choices: Sequence[Choice], setup: EngineSetup, run: Run, *, is_steady: bool = True
) -> None:
    """Write `predictions.csv`, `settings.toml` and a plot into the folder of a tune.

    The plot shows measured against predicted speedups. It is left out if no setting has both. The
    chosen settings are also kept for later runs with `--settings auto`, unless the machine changed
    its speed between the cost curve and the run, or the model has generated weights.

    Args:
        folder: folder of the tune.
        choices: a choice per method, with all settings that were measured.
        setup: the model and the machine.
        run: the run that measured the settings.
        is_steady: True if the machine had the same speed in the run as in the cost curve.

    Raises:
        RunFolderError: the folder, or the folder of kept settings, cannot be written.
    """
    from specbench.report.build import plot_files, write_files

    all_tried = [tried for choice in choices for tried in choice.tried]
    settings_file = _settings_file(choices, setup, run)  # the content of settings.toml
    with folder_errors(folder, "--out", REPEAT):  # system errors become RunFolderErrors
        write_whole(folder / "settings.toml", toml_text(settings_file).encode())
        write_whole(folder / "predictions.csv", _table(all_tried).encode())
    measured_predictions = [
        MeasuredPrediction(tried.predicted, tried.measured.value)
        for tried in all_tried
        if tried.predicted is not None and tried.measured is not None
    ]
    plot = agreement(measured_predictions)  # None without pairs
    if plot is not None:
        write_files(folder, plot_files([plot]))  # image files
    # A stand-in is a model with generated weights: its settings are of no use to a trained model.
    if is_steady and not setup.stand_in:
        keep_settings(settings_file)


def _table(all_tried: Sequence[Tried]) -> str:
    """Write the CSV text of predicted and measured speedups, with `COLUMNS` and a row per setting.

    A cell is empty if the setting was not predicted or not measured. `low` and `high` are the ends
    of the 95 % interval of the prediction.
    """
    import pandas as pd

    rows = []  # a row per setting: by column, its number or text
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
    """Make the content of `settings.toml`: the chosen options of each method.

    It also has the machine, the model and the weights with which they were measured. A method that
    was tuned with several values of `NO_SETTINGS`, such as two weights, has an entry for each. If
    there are several choices for an entry, the one with the fastest measured speedup is kept.

    `setup` has the model and the machine. The header of `run` has the methods' weights.
    """
    # By the label without tuned options, such as "sps:weights=A". Sorted by measured speedup: a
    # faster choice replaces a slower one of the same label.
    choice_by_label = {
        choice.paper.method.label: choice for choice in sorted(choices, key=_measured_speedup)
    }
    names = [choice.best.method.method.name for choice in choice_by_label.values()]
    tuned_options: dict[str, dict[str, Any]] = {}  # by entry, then by option
    weights_hashes: dict[str, str] = {}  # by entry: hash of the draft weights; "" without weights
    for label, choice in choice_by_label.items():
        method = choice.best.method  # with the chosen options
        name = method.method.name  # registered
        entry_name = name if names.count(name) == 1 else label
        # NO_SETTINGS are options that a user gives but a tune does not choose, such as weights.
        tuned_options[entry_name] = {
            option: _toml_value(getattr(method.options, option))
            for option in method.asked.given
            if option not in NO_SETTINGS
        }
        draft_weights = run.header.methods[method.label].weights  # None without weights
        weights_hashes[entry_name] = hash_of(draft_weights.files) if draft_weights else ""
    return SettingsFile(
        methods=tuned_options,
        title=f"tuned {run.header.created[:10]}",  # the date
        model=setup.card.name,
        fits=setup.fits(),  # model, machine, versions and temperatures, by name
        weights=weights_hashes,
    )


def _measured_speedup(choice: Choice) -> float:
    """Return the speedup of a choice as it was measured; 0 if it was not measured."""
    return choice.best.measured.value if choice.best.measured else 0.0


def _toml_value(value: Any) -> Any:
    """Convert the value of an option to TOML. A tree given as paths becomes a list of paths."""
    return json.loads(value) if isinstance(value, str) and value.startswith("[[") else value
