"""The settings that this user tuned last. `--settings auto` uses them if they fit.

They are kept by model and temperature in the folder `tunes` of the cache. They fit if the machine,
the model, its weights and the versions are the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from specbench.data.cache import CACHE_VARIABLE, cache_dir
from specbench.data.toml_files import read_toml
from specbench.errors import UserError, os_errors, unknown_name
from specbench.log.files import REPEAT, folder_errors, write_whole
from specbench.log.model import ModelHeader
from specbench.models.checkpoints import hash_of
from specbench.settings.files import SettingsFile, checked_options, toml_text
from specbench.settings.run_method import RunMethod
from specbench.types import VERSION

TUNED = "tuned"
"""The source of these settings in the header of a run."""
ALL = "all"
"""The word that stands for all stored settings."""


def fits_of(
    model: ModelHeader, *, device: str, execution: str, threads: int | None, temperatures: str
) -> dict[str, str]:
    """Describe the machine, model and versions for which settings measured here are valid."""
    from specbench.machine import environment

    return {
        "machine": environment.capture().device_phrase(device, None),
        "threads": str(threads or "auto"),
        "execution": execution,
        "target": hash_of(model.files),
        "dtype": model.dtype,
        "quantization": model.quantization,
        "temperature": temperatures,
        **versions(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages on which profiles, cost curves and settings depend."""
    from importlib.metadata import version

    packages = {name: version(name) for name in ("torch", "transformers")}
    return {"specbench": VERSION, **packages}


def keep_settings(file: SettingsFile) -> Path:
    """Store tuned settings in place of earlier ones for the same model and temperatures."""
    path = tunes_folders()[0] / _file_name(file.model, file.fits["temperature"])
    with folder_errors(path, CACHE_VARIABLE, REPEAT):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, toml_text(file).encode())
    return path


def with_tuned(
    methods: Sequence[RunMethod],
    model: str,
    temperatures: str,
    fits: Callable[[], Mapping[str, str]],
) -> tuple[RunMethod, ...]:
    """Return the methods, with the tuned settings of this model if these fit the machine.

    A method keeps its options if the settings were tuned with other weights, or if the user gave
    one of the tuned options.

    Args:
        methods: with the paper's options.
        model: name of the model.
        temperatures: temperatures of the run, as a text.
        fits: returns machine, model and versions here, which settings have to fit. It is called
            only if settings are stored.
    """
    path = _path_of(model, temperatures)  # the settings that were tuned last
    if path is None:
        return tuple(methods)
    file = _read(path)
    if file.fits != dict(fits()):  # another machine, or other versions
        return tuple(methods)
    digest = sha256(path.read_bytes()).hexdigest()  # hash of the file, for the run's header
    tuned_methods = []
    for method in methods:
        options = _tuned_options(file, method)
        if options is None or options.keys() & method.decided_by_user:
            tuned_methods.append(method)
        else:
            tuned_methods.append(method.tuned(options, source=TUNED, sha256=digest))
    return tuple(tuned_methods)


def _tuned_options(file: SettingsFile, method: RunMethod) -> dict[str, Any] | None:
    """Read a method's options from a file; None if it was not tuned with its weights.

    Also None if the tree is the name of a file, as in files of an older version: that file may have
    changed.
    """
    draft_weights = method.describe().weights  # None if the method needs no checkpoint
    weights_hash = hash_of(draft_weights.files) if draft_weights else ""
    for label, options in file.methods.items():
        is_same_method = label.partition(":")[0] == method.method.name
        is_file_of_tree = str(options.get("tree", "")).endswith(".json")
        if is_same_method and file.weights.get(label, "") == weights_hash and not is_file_of_tree:
            return checked_options(label, options)
    return None


class StoredTune(NamedTuple):
    """A stored file of tuned settings."""

    path: Path
    """The path of the file."""
    file: SettingsFile | None
    """The content of the file; None if it cannot be read."""
    error: str = ""
    """The reason why the file cannot be read."""

    @property
    def model(self) -> str:
        """The name of the model; empty if the file cannot be read."""
        return self.file.model if self.file else ""

    @property
    def date(self) -> str:
        """The day of the tune; empty if the file cannot be read."""
        return self.file.title.removeprefix("tuned ") if self.file else ""


def stored_tunes() -> list[StoredTune]:
    """Read all settings that `specbench tune` keeps for this user, one entry per file."""
    tunes = []
    for path in _stored_paths():
        try:
            tunes.append(StoredTune(path, _read(path)))
        except UserError as error:
            tunes.append(StoredTune(path, None, error.message))
    return tunes


def forget(name: str) -> list[StoredTune]:
    """Remove the stored settings of a model, those in a file, or all (`ALL`).

    Raises:
        UserError: no settings have this name, or a file cannot be removed.
    """
    tunes = stored_tunes()
    forgotten = [tune for tune in tunes if name in (ALL, tune.model, tune.path.name)]
    if not forgotten:
        names = {word for tune in tunes for word in (tune.path.name, tune.model) if word}
        raise unknown_name("tuned model or file", name, names, "See `specbench list tunes`.")
    for tune in forgotten:
        for folder in tunes_folders():  # in all: an older file of the same name would take over
            with os_errors(f"{tune.path} cannot be removed", "Make its folder writable."):
                (folder / tune.path.name).unlink(missing_ok=True)
    return forgotten


def tunes_folders() -> list[Path]:
    """Return the folders of stored settings, beginning with the folder of new ones."""
    from specbench.engine.kernels.native_build import user_folder

    former = user_folder().parent / "tunes"
    return [cache_dir() / "tunes", former] if os.environ.get(CACHE_VARIABLE) else [former]


def _stored_paths() -> list[Path]:
    """List the files of stored settings. A new file hides an older file of the same name."""
    path_by_name: dict[str, Path] = {}
    for folder in tunes_folders():
        for path in sorted(folder.glob("*.toml")):
            path_by_name.setdefault(path.name, path)
    return [*path_by_name.values()]


def _path_of(model: str, temperatures: str) -> Path | None:
    """Find the file of a model's settings at some temperatures. Return None without one."""
    name = _file_name(model, temperatures)
    return next((path for path in _stored_paths() if path.name == name), None)


def _file_name(model: str, temperatures: str) -> str:
    digest = sha256((model + temperatures).encode()).hexdigest()
    return f"{Path(model).name}-{digest[:8]}.toml"


def _read(path: Path) -> SettingsFile:
    return read_toml(path, SettingsFile, what="Settings", hint=f"Remove {path}.")
