"""Models by name: an alias of `models.toml`, a local folder, or a Hugging Face id.

Knows names, repositories, shapes and dtype rules. Loads no weights and uses no network.
"""

import functools
import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specbench.errors import UserError, unknown_name
from specbench.types import Shape as Shape

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16", "float16")

_PACKAGE = Path(__file__).resolve().parent.parent
_TINY = _PACKAGE / "zoo" / "tiny"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class Drafter:
    """A method's trained part: a repository id, or a local folder for `tiny`."""

    method: str
    repo: str
    revision: str = "main"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A target model as the user named it.

    `repo` is a Hub id or the path of a folder; `hub.resolve` takes both. `template` None means the
    tokenizer's own; `is_known` tells a card of ours from a model we know nothing about.
    """

    name: str
    title: str
    repo: str
    revision: str = "main"
    dtype: Dtype | None = None
    template: str | None = None
    shape: Shape | None = None
    drafters: tuple[Drafter, ...] = ()
    note: str = ""
    is_known: bool = True
    is_gated: bool = False
    is_embedded: bool = False
    is_float16_unsafe: bool = False

    def drafter(self, method: str) -> Drafter | None:
        """The method's checkpoint for this model, or None: there is no checkpoint.

        EAGLE-2 is another way to run EAGLE's weights, so it falls back to them.
        """
        by_method = {drafter.method: drafter for drafter in self.drafters}
        if method == "eagle2" and method not in by_method:
            return by_method.get("eagle")
        return by_method.get(method)


def known_models() -> Mapping[str, ModelCard]:
    """The models with a name of ours, `tiny` first, in the order of `models.toml`."""
    models = {"tiny": _tiny_card()}
    for name, table in _tables()["model"].items():
        drafters = tuple(Drafter(*item) for item in table.get("drafters", {}).items())
        parts = {"name": name, "shape": Shape(**table["shape"]), "drafters": drafters}
        models[name] = ModelCard(**{**table, **parts})
    return models


@functools.cache
def draft_parameters() -> Mapping[str, int]:
    """Parameters of known draft models, by repository."""
    return {repo: millions * 10**6 for repo, millions in _tables()["draft_parameters"].items()}


def find_model(name: str) -> ModelCard:
    """The model a user means: an alias, else a folder that exists, else a Hub id `org/name`.

    A folder or Hub id that is a known model by another name keeps that model's template, dtype and
    drafters. Raises UserError for anything else.
    """
    known = known_models()
    if name.lower() in known:
        return known[name.lower()]
    path = Path(name).expanduser()
    if name and path.is_dir():
        return _folder_card(path)
    if path.is_file():
        hint = "Give the folder that holds config.json and the weights."
        raise UserError(f"--model {name} is a file.", hint)
    if _HUB_ID.fullmatch(name):
        return _hub_card(name)
    if "/" in name or name.startswith((".", "~")):
        hint = f"Give a folder that exists, a Hugging Face id, or one of {', '.join(known)}."
        raise UserError(f"There is no model folder {name!r}.", hint)
    raise unknown_name("model", name, known, "Or a local folder, or a Hugging Face id `org/name`.")


def pick_dtype(card: ModelCard, requested: str, device: str, path: Path | None = None) -> Dtype:
    """The dtype to load in, for `--dtype requested` on `device` ("cpu", "cuda", "cuda:1").

    auto: float32 on a CPU; on a GPU the card's, else the one in the config.json below `path`, else
    float16. Raises UserError for float16 where it overflows.
    """
    if requested != "auto":
        for dtype in DTYPES:
            if dtype == requested:
                if dtype == "float16" and card.is_float16_unsafe:
                    message = f"{card.name} overflows in float16."
                    raise UserError(message, "Use `--dtype bfloat16` or `--dtype auto`.")
                return dtype
        raise unknown_name("dtype", requested, ("auto", *DTYPES))
    if device == "cpu":
        return "float32"
    if card.dtype is not None:
        return card.dtype
    config = _read_config(path) if path is not None else {}
    stored = config.get("dtype") or config.get("torch_dtype")
    return next((dtype for dtype in DTYPES if dtype == stored), "float16")


@functools.cache
def draft_shapes() -> Mapping[str, Shape]:
    """Shapes of known draft models, by repository."""
    return {repo: Shape(**shape) for repo, shape in _tables()["draft_shape"].items()}


@functools.cache
def _tables() -> dict[str, Any]:
    path = Path(__file__).with_name("models.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


def template_tables() -> Mapping[str, Mapping[str, str]]:
    """Our own chat templates: name -> {"system", "jinja"}."""
    tables: Mapping[str, Mapping[str, str]] = _tables()["template"]
    return tables


def _tiny_card() -> ModelCard:
    folders = sorted(_TINY.iterdir()) if _TINY.is_dir() else []
    drafters = tuple(
        Drafter(folder.name, str(folder))
        for folder in folders
        if folder.name != "target" and (folder / "config.json").is_file()
    )
    return ModelCard(
        name="tiny",
        title="tiny (embedded, trained by specbench)",
        repo=str(_TINY / "target"),
        drafters=drafters,
        note="An embedded model that this project trained, to try everything without a download.",
        is_embedded=True,
    )


def _hub_card(repo: str) -> ModelCard:
    for card in known_models().values():
        if card.repo.lower() == repo.lower():
            return card
    return ModelCard(name=repo, title=repo.partition("/")[2], repo=repo, is_known=False)


def _folder_card(path: Path) -> ModelCard:
    """The folder's card: a known model's, if both the folder's name and its shape say so."""
    path = path.resolve()
    own = ModelCard(name=path.name, title=path.name, repo=str(path), is_known=False)
    config = _read_config(path)
    for card in known_models().values():
        if card.shape is None or not _is_named_after(path, card.repo):
            continue
        size = (config.get("num_hidden_layers"), config.get("hidden_size"))
        if size == (card.shape.num_layers, card.shape.hidden_size):
            return ModelCard(
                name=path.name,
                title=card.title,
                repo=str(path),
                dtype=card.dtype,
                template=card.template,
                shape=card.shape,
                drafters=card.drafters,
                note=f"Taken for {card.repo} by its folder's name and shape.",
                is_float16_unsafe=card.is_float16_unsafe,
            )
    return own


def _is_named_after(path: Path, repo: str) -> bool:
    """Whether the folder is called as the repository, also inside the Hugging Face cache."""
    names = {path.name.lower()}
    if path.parent.name == "snapshots":
        names.add(path.parent.parent.name.lower().rpartition("--")[2])
    return repo.rpartition("/")[2].lower() in names


def _read_config(path: Path) -> dict[str, Any]:
    """A folder's config.json, or nothing: what is wrong with it is `checkpoints`' to say."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return config if isinstance(config, dict) else {}
