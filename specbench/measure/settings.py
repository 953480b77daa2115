"""Settings from a file or a run: options of methods, where the user gave no others.

model = "tiny"                   # of this model only; may be left out

[methods.eagle2]                 # as in `--method eagle2:total_tokens=12,depth=3`
total_tokens = 12
depth = 3
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from specbench import registry
from specbench.data.toml_files import read_toml
from specbench.errors import UserError
from specbench.log.store import HEADER, read_header
from specbench.measure.methods import RunMethod

AUTO, PAPER = "auto", "paper"
_HINT = "Give auto, paper, a settings.toml, or the folder of a run."


class SettingsFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of settings as it is written."""

    methods: dict[str, dict[str, Any]]
    title: str = ""
    model: str = ""


class Settings(NamedTuple):
    """Options by method, or by its spelling in records, with their source and the file's hash."""

    methods: Mapping[str, Mapping[str, Any]]
    source: str
    sha256: str

    def of(self, methods: Sequence[RunMethod]) -> tuple[RunMethod, ...]:
        """The methods with their settings; those without any have their paper's."""
        found = []
        for one in methods:
            options = self.methods.get(one.label, self.methods.get(one.method.name))
            found.append(one.tuned(options, self.source, self.sha256) if options else one)
        return tuple(found)


def read_settings(name: str, model: str) -> Settings:
    """The settings of a file or of a run's folder, for a model by its name.

    Raises:
        UserError: there is no such file or run, it is for another model, or a value is wrong.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        header = read_header(path)
        methods = {label: dict(one.options) for label, one in header.methods.items()}
        for options in methods.values():  # a checkpoint is the user's choice
            options.pop("weights", None)
        file, of_model = path / HEADER, header.model.name
    elif path.is_file():
        read = read_toml(path, SettingsFile, what="Settings", hint="docs/settings.md shows one.")
        methods = {name: _checked(name, given) for name, given in read.methods.items()}
        file, of_model = path, read.model
    else:
        raise UserError(f"--settings {name} is neither a file nor a run.", _HINT)
    if of_model and of_model != model:
        raise UserError(
            f"The settings in {path} are those of {of_model}, and the model is {model}.",
            "Settings carry over to no other model: give --settings auto or paper.",
        )
    return Settings(methods, path.name, sha256(file.read_bytes()).hexdigest())


def _checked(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a method in their types; UserError for an unknown or wrong one."""
    method = registry.get(name)
    texts = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in given.items()
    }
    made = asdict(registry.make_options(method, texts))
    return {key: made[key] for key in given}
