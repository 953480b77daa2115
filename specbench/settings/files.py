"""Settings from a file or a run: options of methods, unless the user gave others.

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
    """A file of settings as it is written."""

    methods: dict[str, dict[str, Any]]
    """Options by method, or by label ("sps:weights=A") for a method with several weights."""
    title: str = ""
    """Description for readers."""
    model: str = ""
    """The only model that the settings are for; empty for any."""
    fits: dict[str, str] = {}
    """Machine, model, temperatures and versions that the settings were measured with."""
    weights: dict[str, str] = {}
    """Hash of the weights of each entry of `methods` that has some."""
    engine: str = ""
    """The serving engine that the settings are for; empty for methods in this process."""


class Settings(NamedTuple):
    """The settings of methods, with their source."""

    methods: Mapping[str, Mapping[str, Any]]
    """Options by method, or by its spelling in records."""
    source: str
    """Name of the file."""
    sha256: str
    """Hash of the file."""

    def of(self, methods: Sequence[RunMethod]) -> tuple[RunMethod, ...]:
        """The methods with their settings; methods without settings here stay as they are."""
        return tuple(self._set(method) for method in methods)

    def _set(self, method: RunMethod) -> RunMethod:
        by_name = self.methods.get(method.method.name)
        options = self.methods.get(method.label, by_name)
        return method.tuned(options, self.source, self.sha256) if options else method


def read_settings(name: str, model: str) -> Settings:
    """The settings of a file or of a run, with the hash of the file that has them.

    Args:
        name: path of a `settings.toml`, or of the folder of a run.
        model: name of the model that the settings are used for.

    Raises:
        UserError: there is no such file or run, it is for another model, or a value is wrong.
    """
    path = Path(name).expanduser()
    options_by_method: dict[str, dict[str, Any]]  # by label (run) or name (file)
    if path.is_dir():  # of a run
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
        options_by_method = {  # in the types of the method's options
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
    """Options of a method in their types, from the values of a file.

    Args:
        label: the method's name, or its label, which begins with it.
        options: as in TOML. A tree may be a list of paths.

    Raises:
        UserError: an option is unknown, or its value is wrong.
    """
    all_options = _options_of(label, options).as_dict()
    return {option: all_options[option] for option in options}


def _options_of(label: str, options: Mapping[str, Any]) -> MethodOptions:
    """The options of a method, in a type of its own, from the values of a file."""
    texts = {}
    for option, value in options.items():
        text = str(value)
        texts[option] = text.lower() if isinstance(value, bool) else text
    return registry.make_options(registry.get(label.partition(":")[0]), texts)


def _check_tree(label: str, method: MethodHeader, path: Path) -> None:
    """Refuse a file of a static tree that has changed since the run whose header names it.

    Raises:
        UserError: the file has another tree, or cannot be read.
    """
    tree = str(method.options.get("tree", ""))
    if not tree.endswith(".json") or method.tree_sha256 is None:  # None: of an older version
        return
    if _options_of(method.name, {"tree": tree}).tree_sha256() != method.tree_sha256:
        raise UserError(
            f"{path}: {label} ran with the tree in {tree}, which is gone or has changed.",
            "Restore that file, or give --settings another source.",
        )


def toml_text(file: SettingsFile) -> str:
    """The text of a file of settings in TOML.

    It has the title, the model, and tables: `fits`, the machine, model and versions that it was
    measured with; `weights`, the hash of each method's weights; and the options of each method.
    """
    lines = [f"title = {toml_value(file.title)}", f"model = {toml_value(file.model)}"]
    if file.engine:
        lines.append(f"engine = {toml_value(file.engine)}")
    # by the name of a TOML table, its keys and values
    tables: dict[str, Mapping[str, Any]] = {"fits": file.fits, "weights": file.weights}
    for method, options in file.methods.items():
        tables[f"methods.{toml_key(method)}"] = options
    for table_name, table in tables.items():
        lines += ["", f"[{table_name}]"]
        lines += [f"{toml_key(key)} = {toml_value(table[key])}" for key in table]
    return "\n".join(lines) + "\n"
