"""Give a run's methods the draft sizes by load that `specbench tune --engine` found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from specbench.data.toml_files import read_toml
from specbench.errors import UserError
from specbench.log.methods import SettingsHeader
from specbench.measure.server.engine import Engine, EngineMethod
from specbench.measure.spec import PAPER, RunSpec
from specbench.registry import MethodChoice
from specbench.settings.files import SettingsFile
from specbench.settings.load_table import LoadTable
from specbench.settings.run_method import label_of

_HINT = "Give the settings.toml of a tune of servers: specbench tune --engine."
_KEY = "by_load"
"""The key of a method's rows. A row has the lowest load for which it holds, and the options ("" for
plain decoding).
"""
_TABLE = "table"
"""The option with a table of draft tokens by load, for methods whose servers follow one."""


class SizedChoice(NamedTuple):
    """A method with the options that settings have added, and the source of the settings."""

    choice: MethodChoice
    """The method with all options."""
    source: SettingsHeader | None
    """None if nothing was added."""


class _Row(NamedTuple):
    """The options of a method from a load up to the load of the next row."""

    load: int
    """The lowest load: a number of requests at once."""
    options: Mapping[str, str]
    """The options by name; empty for plain decoding."""


@dataclass(frozen=True)
class ServedSettings:
    """The settings of an engine's methods from a file."""

    rows_by_label: Mapping[str, Sequence[_Row]]
    """The rows of each tuned method, by its name together with the weights that were given for
    it.
    """
    source: SettingsHeader
    """The file: its name (`source.source`) and hash."""
    engine: Engine
    """The engine that the run starts."""
    loads: tuple[int, ...]
    """The run's numbers of requests at once; empty if requests come at a rate."""

    def of(self, choice: MethodChoice, method: EngineMethod) -> SizedChoice:
        """A method with the draft sizes of the settings added to its options.

        Methods without settings, and methods whose size the user gave, stay as they are.

        Args:
            choice: the method's name, with the options that the user gave, by name.
            method: the method in the engine. It may take a table of draft tokens by load, or only
                one size for all loads.

        Raises:
            UserError: the settings say that plain decoding is at least as fast at the run's loads
                (with a table, at all loads). Or the engine needs a single size, but the settings
                have several, or the run has only request rates.
        """
        # The rows for the method's label, which names its weights, or else those for its name.
        rows = self.rows_by_label.get(label_of(choice), self.rows_by_label.get(choice.name))
        # The settings have no rows, or the user gave the size: an option of a row, or a table.
        if rows is None or any(
            choice.given.keys() & {*row.options, _TABLE, "num_tokens"} for row in rows
        ):
            return SizedChoice(choice, None)
        if _TABLE in method.options:
            # `starts` of the table are the loads at which the number of draft tokens changes.
            table = LoadTable.of((row.load, int(row.options.get("num_tokens", 0))) for row in rows)
            options = {_TABLE: json.dumps(table.vllm_rows(), separators=(",", ":"))}
            is_plain = not any(start.num_tokens for start in table.starts)  # no drafts at any load
        else:
            options = self._at_loads(choice, rows)
            is_plain = not options  # empty: plain decoding
        if is_plain:
            raise UserError(
                f"According to {self.source.source}, plain decoding is at least as fast as "
                f"{choice} at these loads.",
                f"Leave it out, or give a size: --method {choice.name}:num_tokens=1.",
            )
        sized = MethodChoice(choice.name, {**choice.given, **options})
        return SizedChoice(sized, self.source)

    def _at_loads(self, choice: MethodChoice, rows: Sequence[_Row]) -> dict[str, str]:
        """The options of a method at all loads of the run; empty for plain decoding.

        Raises:
            UserError: the options differ between the loads, or the run has only request rates.
        """
        # The options at each load of the run: those of the last row that is not above this load.
        sizes = [dict([row.options for row in rows if row.load <= load][-1]) for load in self.loads]
        if not sizes:
            raise UserError(
                f"{self.engine.title} uses one draft size at all loads, but {self.source.source} "
                f"has sizes of {choice} for requests at once, not for a request rate.",
                f"Give the size: --method {choice.name}:num_tokens=N.",
            )
        if any(size != sizes[0] for size in sizes):
            raise UserError(
                f"{self.engine.title} uses one draft size at all loads, but "
                f"{self.source.source} has several for {choice}.",
                "Run the loads one by one: --concurrency N.",
            )
        return sizes[0]


def read_served_settings(spec: RunSpec, engine: Engine) -> ServedSettings | None:
    """The settings of a run that starts an engine, or None for the papers' sizes.

    `spec` has the run's options: `settings` is PAPER or a file, and loads are requests at once
    (`concurrency`) or per second (`request_rates`).

    Raises:
        UserError: there is no such file, it has another form, or it is for another engine or model.
    """
    if spec.settings == PAPER:
        return None
    path = Path(spec.settings).expanduser()
    if not path.is_file():
        raise UserError(f"--settings {spec.settings} is not a file: servers need a file.", _HINT)
    file = read_toml(path, SettingsFile, what="Settings", hint=_HINT)
    # What the run needs (`wanted`), and what the file is for (`stored`). A file without a model is
    # for any model. A file without an engine is for methods in this process, not for servers.
    for kind, wanted, stored in (
        ("engine", spec.serving_engine, file.engine),
        ("model", spec.card.name, file.model or spec.card.name),
    ):
        if stored != wanted:
            raise UserError(
                f"The settings in {path} are for {stored or 'methods in this process'}, not for "
                f"the {kind} {wanted}.",
                _HINT,
            )
    # The numbers of requests at once: 1 if no load is given, and none if only rates are given.
    loads = spec.concurrency or (() if spec.request_rates else (1,))
    source = SettingsHeader(path.name, sha256=sha256(path.read_bytes()).hexdigest())
    rows_by_label = {label: _rows(path, label, options) for label, options in file.methods.items()}
    return ServedSettings(rows_by_label, source, engine, loads)


def _rows(path: Path, label: str, options: Mapping[str, Any]) -> list[_Row]:
    """The rows of a method in a settings file, in the order of rising loads from 1.

    `options` has the method's settings by name. `options[_KEY]` is a list of pairs, such as
    `[[1, "num_tokens=3"], [8, ""]]`: the lowest load of a row, and its options as a text. `path`
    (the file) and `label` (the method) are for the message.

    Raises:
        UserError: the list is missing or has another form, or its loads do not rise from 1.
    """
    try:
        pairs = msgspec.convert(options.get(_KEY), list[tuple[int, str]])
        rows = [_Row(load, _options_of(options_text)) for load, options_text in pairs]
        loads = [row.load for row in rows]
        if not loads or loads[0] != 1 or loads != sorted({*loads}):
            raise ValueError("its loads must rise from 1")
    except ValueError as error:  # msgspec raises a ValueError too
        raise UserError(
            f"{path} does not list sizes of {label} by load: {error}.", _HINT
        ) from error
    return rows


def _options_of(text: str) -> dict[str, str]:
    """The options of a text such as "num_tokens=3". Raises ValueError if it has another form."""
    options = {}
    for piece in filter(None, text.split(",")):  # an empty text has no pieces
        name, _, size = piece.partition("=")
        if not size.isdecimal():
            raise ValueError(f"{piece!r} is not an option with a number, as in num_tokens=3")
        options[name] = size
    return options
