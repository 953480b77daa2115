"""The files of a tune: its table, its settings, and the plot of its predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from specbench.log.files import write_whole
from specbench.log.run import Run
from specbench.measure.local.engine_setup import EngineSetup
from specbench.settings.files import SettingsFile, hash_of, toml_text
from specbench.settings.run_method import parse_methods
from specbench.settings.tuned_settings import keep_settings
from specbench.tune.choice import NO_SETTINGS, Choice, Tried
from specbench.tune.plots import MeasuredPrediction, agreement

COLUMNS = ("method", "settings", "predicted_speedup", "low", "high", "measured_speedup")
"""Of `predictions.csv`."""


def write_results(folder: Path, choices: Sequence[Choice], setup: EngineSetup, run: Run) -> None:
    """Write `predictions.csv`, `settings.toml` and the plot, and keep the settings."""
    from specbench.report.build import plot_files, write_files

    tried = [setting for choice in choices for setting in choice.tried]
    write_whole(folder / "predictions.csv", _table(tried).encode())
    settings = _settings_file(choices, setup, run)
    write_whole(folder / "settings.toml", toml_text(settings).encode())
    if not setup.stand_in:  # the times of a stand-in's answers are nobody's
        keep_settings(settings)
    pairs = [
        MeasuredPrediction(setting.predicted, setting.measured.value)
        for setting in tried
        if setting.predicted is not None and setting.measured is not None
    ]
    plot = agreement(pairs)
    if plot is not None:
        write_files(folder, plot_files([plot]))


def _table(tried: Sequence[Tried]) -> str:
    """One row per setting, in CSV. What is not known stays empty."""
    import pandas as pd

    rows = []
    for setting in tried:
        (method,) = parse_methods([setting.settings])
        row: dict[str, Any] = {"method": method.method.name, "settings": setting.settings}
        if setting.predicted is not None:
            row["predicted_speedup"] = setting.predicted.speedup
            row["low"] = setting.predicted.low
            row["high"] = setting.predicted.high
        if setting.measured is not None:
            row["measured_speedup"] = setting.measured.value
        rows.append(row)
    return pd.DataFrame(rows, columns=[*COLUMNS]).to_csv(index=False, float_format="%.4f")


def _settings_file(choices: Sequence[Choice], setup: EngineSetup, run: Run) -> SettingsFile:
    """The chosen settings, with what they were measured on."""
    options: dict[str, dict[str, Any]] = {}
    weights: dict[str, str] = {}
    for choice in choices:
        (method,) = parse_methods([choice.best.settings])
        name = method.method.name
        tuned = [option for option in method.asked.given if option not in NO_SETTINGS]
        options[name] = {option: getattr(method.options, option) for option in tuned}
        run_weights = run.header.methods[method.label].weights
        weights[name] = hash_of(run_weights.files) if run_weights else ""
    return SettingsFile(
        methods=options,
        title=f"tuned {run.header.created[:10]}",
        model=setup.card.name,
        fits=setup.fits(),
        weights=weights,
    )
