"""Settings from a file or a run: options of methods, where the user gave no others.

model = "tiny"                   # of this model only; may be left out

[methods.eagle2]                 # as in `--method eagle2:total_tokens=12,depth=3`
total_tokens = 12
depth = 3

A file that `specbench tune` wrote also says where it was measured (`fits`), and with which
weights. It is kept for `--settings auto`, which uses it only where all of that is equal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import Struct

from specbench import registry
from specbench.data.toml_files import read_toml
from specbench.errors import UserError
from specbench.log.files import folder_errors, write_whole
from specbench.log.model import FileHeader, ModelHeader
from specbench.log.store import HEADER, read_header
from specbench.settings.run_method import RunMethod
from specbench.types import VERSION

TUNED = "tuned"
_HINT = "Give auto, paper, a settings.toml, or the folder of a run."


class SettingsFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of settings as it is written."""

    methods: dict[str, dict[str, Any]]
    title: str = ""
    model: str = ""
    fits: dict[str, str] = {}
    weights: dict[str, str] = {}


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
            f"The settings in {path} are for {of_model}, not for {model}.",
            "Settings of one model do not fit another: give --settings auto or paper.",
        )
    return Settings(methods, path.name, sha256(file.read_bytes()).hexdigest())


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

    return {"specbench": VERSION, **{name: version(name) for name in ("torch", "transformers")}}


def hash_of(files: Mapping[str, FileHeader]) -> str:
    """One hash of a checkpoint's files."""
    listed = sorted((name, one.sha256 or str(one.bytes)) for name, one in files.items())
    return sha256(json.dumps(listed).encode()).hexdigest()


def toml_text(file: SettingsFile) -> str:
    """The file in TOML."""
    lines = [f"{name} = {json.dumps(getattr(file, name))}" for name in ("title", "model")]
    parts = {"fits": file.fits, "weights": file.weights}
    for name, values in {**parts, **{f"methods.{k}": v for k, v in file.methods.items()}}.items():
        lines += ["", f"[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items())]
    return "\n".join(lines) + "\n"


def _stored(model: str, temperature: str) -> Path:
    """The file with this user's last tuned settings of a model at a temperature."""
    from specbench.engine.kernels.native_build import user_folder

    name = f"{Path(model).name}-{sha256((model + temperature).encode()).hexdigest()[:8]}.toml"
    return user_folder().parent / "tunes" / name


def keep_settings(file: SettingsFile) -> Path:
    """Keep tuned settings for `--settings auto`, in place of earlier ones of model and
    temperature.
    """
    path = _stored(file.model, file.fits["temperature"])
    with folder_errors(path, "XDG_CACHE_HOME"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, toml_text(file).encode())
    return path


def with_stored(
    methods: Sequence[RunMethod],
    model: str,
    temperatures: str,
    fits: Callable[[], dict[str, str]],
) -> tuple[RunMethod, ...]:
    """The methods, with the tuned settings of this model if they were made here and fit.

    Those with other weights, with an option of their own that was tuned, or whose tuned tree
    is gone stay as they are.
    `fits` is called only if there are stored settings.
    """
    path = _stored(model, temperatures)
    if not path.is_file():
        return tuple(methods)
    file = read_toml(path, SettingsFile, what="Settings", hint=f"Remove {path}.")
    if file.fits != dict(fits()):
        return tuple(methods)
    content_hash, found = sha256(path.read_bytes()).hexdigest(), []
    for one in methods:
        name, weights = one.method.name, one.describe().weights
        options = _checked(name, file.methods.get(name, {}))
        tree = str(options.get("tree", ""))
        is_free = name in file.methods and not {*options} & {*one.asked.given}
        is_free &= not tree.endswith(".json") or Path(tree).is_file()
        is_same = file.weights.get(name, "") == (hash_of(weights.files) if weights else "")
        found.append(one.tuned(options, TUNED, content_hash) if is_free and is_same else one)
    return tuple(found)


def _checked(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a method in their types; UserError for an unknown or wrong one."""
    method = registry.get(name)
    texts = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in given.items()
    }
    made = asdict(registry.make_options(method, texts))
    return {key: made[key] for key in given}
