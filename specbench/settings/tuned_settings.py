"""The settings that this user tuned last. `--settings auto` takes them if they fit.

They are kept per model and temperature, and used only if machine, model, weights and versions are
equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from specbench.data.toml_files import read_toml
from specbench.log.files import REPEAT, folder_errors, write_whole
from specbench.log.model import ModelHeader
from specbench.models.checkpoints import hash_of
from specbench.settings.files import SettingsFile, checked_options, toml_text
from specbench.settings.run_method import RunMethod
from specbench.types import VERSION

TUNED = "tuned"
"""Source of these settings in a header."""


def fits_of(
    model: ModelHeader, *, device: str, execution: str, threads: int | None, temperatures: str
) -> dict[str, str]:
    """Machine, model, temperatures and versions that settings measured here are for."""
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
    """Versions that profiles, cost curves and settings are made with."""
    from importlib.metadata import version

    packages = {name: version(name) for name in ("torch", "transformers")}
    return {"specbench": VERSION, **packages}


def keep_settings(file: SettingsFile) -> Path:
    """Keep tuned settings, in place of earlier ones of the same model and temperatures."""
    path = _path_of(file.model, file.fits["temperature"])
    with folder_errors(path, "XDG_CACHE_HOME", REPEAT):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, toml_text(file).encode())
    return path


def with_tuned(
    methods: Sequence[RunMethod],
    model: str,
    temperatures: str,
    fits: Callable[[], Mapping[str, str]],
) -> tuple[RunMethod, ...]:
    """The methods, with the tuned settings of this model if they were made here and fit.

    A method keeps its options if its weights differ, or if the user set a tuned option.

    Args:
        methods: with the paper's options.
        model: its name.
        temperatures: of the run, as a text.
        fits: returns what settings have to fit here by name: machine, model and versions. It is
            called only if settings are stored.
    """
    path = _path_of(model, temperatures)  # the file of the settings that were tuned last
    if not path.is_file():
        return tuple(methods)
    file = read_toml(path, SettingsFile, what="Settings", hint=f"Remove {path}.")
    if file.fits != dict(fits()):  # they were made on another machine, or with other versions
        return tuple(methods)
    digest = sha256(path.read_bytes()).hexdigest()  # of the file, for the run's header
    tuned_methods = []
    for method in methods:
        options = _tuned_options(file, method)
        if options is None or options.keys() & method.decided_by_user:
            tuned_methods.append(method)
        else:
            tuned_methods.append(method.tuned(options, source=TUNED, sha256=digest))
    return tuple(tuned_methods)


def _tuned_options(file: SettingsFile, method: RunMethod) -> dict[str, Any] | None:
    """A method's options in a file, in their types; None if it was not tuned with its weights.

    Also None if its tree is the name of a file, which an older version kept: it may have changed.
    """
    draft_weights = method.describe().weights  # of the checkpoint; None if it needs none
    weights_hash = hash_of(draft_weights.files) if draft_weights else ""
    for label, options in file.methods.items():
        is_same_method = label.partition(":")[0] == method.method.name
        is_file_of_tree = str(options.get("tree", "")).endswith(".json")
        if is_same_method and file.weights.get(label, "") == weights_hash and not is_file_of_tree:
            return checked_options(label, options)
    return None


def _path_of(model: str, temperatures: str) -> Path:
    """The file with the last tuned settings of a model at some temperatures."""
    from specbench.engine.kernels.native_build import user_folder

    digest = sha256((model + temperatures).encode()).hexdigest()
    return user_folder().parent / "tunes" / f"{Path(model).name}-{digest[:8]}.toml"
