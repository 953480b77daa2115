"""Read the settings of methods from a file or a run. Options that the user gave take precedence.

model = "tiny"                   # of this model only; may be left out

[methods.eagle2]                 # as in `--method eagle2:total_tokens=12,depth=3`
total_tokens = 12
depth = 3

A static tree is written with its paths: `tree = [[0], [1], [0, 0]]`.

A file that `specbench tune` wrote also says where it was measured (`fits`), and with which
weights: see `specbench.settings.tuned_settings`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from specbench import registry
from specbench.data.toml_files import read_toml, toml_key, toml_value
from specbench.errors import UserError
from specbench.log.methods import MethodHeader
from specbench.log.store import HEADER, read_header
from specbench.settings.run_method import RunMethod

if TYPE_CHECKING:
    from specbench.engine.method_options import MethodOptions

_HINT = "Give auto, paper, a settings.toml, or the folder of a run."


class SettingsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of settings, as it is stored."""

    methods: dict[str, dict[str, Any]]
    """The options of each method, by its name. A method with several weights has a label, such as
    "sps:weights=A", in place of the name.
    """
    title: str = ""
    """A description for readers."""
    model: str = ""
    """The name of the model that the settings are for; empty if they are for any model."""
    fits: dict[str, str] = {}
    """The machine, model, temperatures and versions with which the settings were measured."""
    weights: dict[str, str] = {}
    """The hash of the weights of each entry in `methods` that uses weights."""
    engine: str = ""
    """The serving engine that the settings are for; empty for methods in this process."""


class Settings(NamedTuple):
    """The settings of methods, and the file that they come from."""

    methods: Mapping[str, Mapping[str, Any]]
    """The options of each method, by its name or by its label in records."""
    source: str
    """The name of the file."""
    sha256: str
    """The hash of the file."""

    def of(self, methods: Sequence[RunMethod]) -> tuple[RunMethod, ...]:
        """Return the methods with these settings. Methods without an entry stay as they are."""
        return tuple(self._set(method) for method in methods)

    def _set(self, method: RunMethod) -> RunMethod:
        by_name = self.methods.get(method.method.name)
        options = self.methods.get(method.label, by_name)
        return method.tuned(options, self.source, self.sha256) if options else method


def read_settings(name: str, model: str) -> Settings:
    """Read the settings in a file or in the header of a run.

    Args:
        name: path of a `settings.toml`, or of the folder of a run.
        model: name of the model that the settings are used for.

    Raises:
        UserError: there is no such file or run, it is for another model, or a value is wrong.
    """
    path = Path(name).expanduser()
    options_by_method: dict[str, dict[str, Any]]  # by label for a run, by name for a file
    if path.is_dir():  # the folder of a run
        header = read_header(path)
        file_path = path / HEADER  # run.json
        options_by_method = {}
        for label, method in header.methods.items():
            _check_tree(label, method, file_path)
            options_by_method[label] = dict(method.options)
            options_by_method[label].pop("weights", None)  # a checkpoint is the user's choice
        file_model = header.model.name
    elif path.is_file():
        file = read_toml(path, SettingsFile, what="Settings", hint="docs/settings.md shows one.")
        if file.engine:
            raise UserError(
                f"The settings in {path} are for servers of {file.engine}.",
                f"Give --engine {file.engine} too.",
            )
        options_by_method = {  # converted to the types of the options
            method: checked_options(method, options) for method, options in file.methods.items()
        }
        for label, options in options_by_method.items():
            if "weights" in options:  # a checkpoint is the user's choice
                raise UserError(
                    f"{path} sets weights for {label}, but weights are not settings.",
                    f"Give them with the method: --method {label}:weights={options['weights']}",
                )
        file_path = path
        file_model = file.model  # empty: for any model
    else:
        raise UserError(f"--settings {name} is neither a file nor a run.", _HINT)
    if file_model and file_model != model:
        raise UserError(
            f"The settings in {path} are for {file_model}, not for {model}.",
            "Settings of one model do not fit another: give --settings auto or paper.",
        )
    digest = sha256(file_path.read_bytes()).hexdigest()
    return Settings(options_by_method, source=path.name, sha256=digest)


def checked_options(label: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options of a method from the values in a file to their own types.

    Args:
        label: the method's name, or its label, which begins with it.
        options: as in TOML. A tree may be a list of paths.

    Raises:
        UserError: an option is unknown, or its value is wrong.
    """
    all_options = _options_of(label, options).as_dict()
    return {option: all_options[option] for option in options}


def _options_of(label: str, options: Mapping[str, Any]) -> MethodOptions:
    """Make a method's options from the values in a file."""
    texts = {  # options are written as on the command line: "true", not "True"
        option: str(value).lower() if isinstance(value, bool) else str(value)
        for option, value in options.items()
    }
    return registry.make_options(registry.get(label.partition(":")[0]), texts)


def _check_tree(label: str, method: MethodHeader, path: Path) -> None:
    """Refuse the settings of a run if the file of its static tree has changed since.

    `method` is the header of the method in the run, `path` the file with that header.

    Raises:
        UserError: the file has another tree, or cannot be read.
    """
    tree = str(method.options.get("tree", ""))
    if not tree.endswith(".json") or method.tree_sha256 is None:  # None: an older run
        return
    if _options_of(method.name, {"tree": tree}).tree_sha256() != method.tree_sha256:
        raise UserError(
            f"{path}: {label} ran with the tree in {tree}, which is gone or has changed.",
            "Restore that file, or give --settings another source.",
        )


def toml_text(file: SettingsFile) -> str:
    """Write a file of settings as TOML text.

    The text has the title, the model and several tables: `fits` with the machine, the model and the
    versions that the settings were measured with, `weights` with the hash of each method's weights,
    and a table with the options of each method.
    """
    lines = [f"title = {toml_value(file.title)}", f"model = {toml_value(file.model)}"]
    if file.engine:
        lines.append(f"engine = {toml_value(file.engine)}")
    # the keys and values of each TOML table, by the name of the table
    tables: dict[str, Mapping[str, Any]] = {"fits": file.fits, "weights": file.weights}
    tables |= {f"methods.{toml_key(method)}": file.methods[method] for method in file.methods}
    for table_name, table in tables.items():
        lines += ["", f"[{table_name}]"]
        lines += [f"{toml_key(key)} = {toml_value(table[key])}" for key in table]
    return "\n".join(lines) + "\n"
