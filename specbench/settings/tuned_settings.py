"""The settings that this user tuned last, which `--settings auto` takes where they fit.

They are kept per model and temperature, and used only where machine, model, weights and versions
are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from specbench.data.toml_files import read_toml
from specbench.log.files import folder_errors, write_whole
from specbench.log.model import ModelHeader
from specbench.settings.files import SettingsFile, checked_options, hash_of, toml_text
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
    with folder_errors(path, "XDG_CACHE_HOME"):
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

    A method keeps its options if its weights differ, if the user set a tuned option, or if the
    file of a tuned tree is missing.

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
        if _reason_not_to_use(file, method):  # a text; empty if its settings are used
            tuned_methods.append(method)
        else:
            method_name = method.method.name
            # those of the file, in the types of the method's options
            options = checked_options(method_name, file.methods[method_name])
            tuned_methods.append(method.tuned(options, source=TUNED, sha256=digest))
    return tuple(tuned_methods)


def _reason_not_to_use(file: SettingsFile, method: RunMethod) -> str:
    """Why a method keeps its options in place of a file's tuned ones; "" if it gets these.

    Args:
        file: has the tuned options of methods, and the hash of each one's weights, by name.
        method: `decided_by_user` are the options that the user gave, and those that they replace.
    """
    method_name = method.method.name
    if method_name not in file.methods:
        return "it was not tuned"
    # in the types of the method's options
    tuned_options = checked_options(method_name, file.methods[method_name])
    if tuned_options.keys() & method.decided_by_user:
        return "the user set a tuned option"
    tree = str(tuned_options.get("tree", ""))  # name, shape or JSON file of a static tree
    if tree.endswith(".json") and not Path(tree).is_file():
        return f"the tree {tree} is missing"
    draft_weights = method.describe().weights  # of the checkpoint; None if it needs none
    weights_hash = hash_of(draft_weights.files) if draft_weights else ""
    if file.weights.get(method_name, "") != weights_hash:
        return "it was tuned with other weights"
    return ""


def _path_of(model: str, temperatures: str) -> Path:
    """The file with the last tuned settings of a model at some temperatures."""
    from specbench.engine.kernels.native_build import user_folder

    digest = sha256((model + temperatures).encode()).hexdigest()
    return user_folder().parent / "tunes" / f"{Path(model).name}-{digest[:8]}.toml"
