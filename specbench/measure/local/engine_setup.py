"""Set up the engine before it loads a model: device, dtype, files and template.

Finds and checks files, and estimates memory. Loads no weights.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specbench.errors import CheckpointError, UserError
from specbench.log.header import RunHeader
from specbench.log.model import ModelHeader, precision
from specbench.measure.base import SetupInfo
from specbench.measure.local.engine import EngineBackend
from specbench.measure.local.engine_load import Device, EngineParts, fitted, pick_mode
from specbench.measure.methods import check_scopes, select_methods
from specbench.measure.spec import AUTO, PAPER, RunSpec
from specbench.measure.weights import find_checkpoint
from specbench.models import checkpoints, memory
from specbench.models.cards import (
    GGUF_TYPE,
    Dtype,
    ModelCard,
    find_model,
    models_file,
    pick_dtype,
)
from specbench.models.chat import load_codec
from specbench.models.hub import resolve_model
from specbench.models.tokenizers import load_tokenizer
from specbench.settings.files import fits_of, read_settings, with_stored
from specbench.settings.run_method import RunMethod
from specbench.types import CONFIG_NAMES, Shape

if TYPE_CHECKING:
    from specbench.zoo.stand_in.plan import StandIn

FLOAT16_WARNING = (
    "The model ran in float16: GPUs below compute capability 8.0 emulate bfloat16, several times "
    "slower. `--dtype bfloat16` uses it all the same."
)
STAND_IN_WARNING = (
    "The weights are a stand-in: times are those of the real shape, tokens and accept lengths are "
    "those of tiny, whose rotary base and context it has."
)
SPREAD_WARNING = (
    "The layers of the model are spread over {} GPUs, which work one after the other, without CUDA "
    "graphs. Clocks, heat and load are those of the first GPU, and energy is not measured."
)


def context_length(path: Path, what: str) -> int | None:
    """Tokens that the context of a folder's model holds; None if its config has no number."""
    config, original = checkpoints.read_config(path, what), "original_max_position_embeddings"
    text = config.get("text_config") or config
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    lengths = [text.get("max_position_embeddings")]
    if "longrope" in (rope.get("rope_type"), rope.get("type")):
        lengths.append(text.get(original, rope.get(original)))  # as the engine has it
    return min((one for one in lengths if isinstance(one, int)), default=None)


class EngineSetup(EngineParts):
    """A model and its methods, ready to be loaded."""

    @property
    def title(self) -> str:
        return f"{self.card.title} ({precision(self.quantization, self.dtype)}, {self.device.name})"

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(one.label for one in self.methods)

    @property
    def no_checkpoint(self) -> tuple[str, ...]:
        return tuple(one.label for one in self.missing)

    @property
    def context(self) -> int | None:
        return context_length(self.path, self.card.name)  # loading the model will say why

    def fits(self) -> dict[str, str]:
        """The model, machine and versions that tuned settings and cost curves belong to."""
        return fits_of(
            self.describe().model,
            device=self.device.name,
            execution=self.mode.name,
            threads=self.spec.threads,
            temperatures=self.spec.samplings_text(),
        )

    def describe(self) -> SetupInfo:
        is_ours = self.card.is_embedded or self.stand_in is not None
        files = checkpoints.identify(self.path)
        model = ModelHeader(
            name=self.card.name,
            label=self.card.title,
            source="embedded" if is_ours else self.card.repo,
            dtype=self.dtype,
            quantization=self.quantization,
            is_stand_in=self.stand_in is not None,
            is_embedded=self.card.is_embedded,
            shape=self.stand_in.shape if self.stand_in else None,
            revision=files.revision,
            files=files.files,
            template_sha256=self.codec.template.sha256,
        )
        values = {
            "device": self.device.name,
            "dtype": self.dtype,
            "template": self.codec.template.name,
            "execution": self.mode.name,
            "settings": self.settings,
        }
        warnings = (
            self.codec.template.warning,
            STAND_IN_WARNING if self.stand_in else None,
            SPREAD_WARNING.format(self.device.num_gpus) if self.device.num_gpus > 1 else None,
            self._float16_warning(),
        )
        methods = {one.label: one.describe() for one in self.methods + self.missing}
        told = (*self.broken, *(text for text in warnings if text))
        return SetupInfo(model, methods, values, told)

    def _float16_warning(self) -> str | None:
        is_replaced = self.dtype == "float16" and not self.device.has_bfloat16
        auto = pick_dtype(self.card, "auto", self.device.name, self.path) if is_replaced else None
        return FLOAT16_WARNING if auto == "bfloat16" else None

    def check_memory(self, num_tokens: int) -> None:
        if self.need:
            what = f"{self.card.title} with requests of up to {num_tokens} tokens"
            memory.check_context(self.need, num_tokens, self.dtype, self.device.name, what=what)

    def open(self, folder: Path, before: RunHeader | None = None) -> EngineBackend:
        return EngineBackend(self, is_metered=True, before=before)


def make_engine_setup(spec: RunSpec, *, is_offline: bool = False) -> EngineSetup:
    """Resolve and check the model and the methods that `spec` names, the cheap things first.

    A model too large for one GPU gets as many as it needs, unless `spec` names one.

    Raises:
        UserError: an unknown name, a wrong value, or a missing or broken file.
    """
    methods = spec.run_methods
    check_scopes(spec, methods)
    setup_on = partial(_setup_on, spec=spec, methods=methods, is_offline=is_offline)
    return fitted(spec.device, setup_on)


def _setup_on(
    device: Device, *, spec: RunSpec, methods: Sequence[RunMethod], is_offline: bool
) -> EngineSetup:
    """The setup on a device.

    Raises:
        TooLarge: the model does not fit there.
    """
    card = spec.card
    mode = pick_mode(spec.execution, device, spec.kernels)
    make = _stand_in_setup if spec.weights == "stand-in" else partial(_setup, is_offline=is_offline)
    setup = make(spec, card, methods, device=device, has_graphs=mode.name == "graph")
    setup = replace(setup, mode=mode)
    is_measured = device.kind == "cpu" and spec.weights == "hub"
    settings = PAPER if spec.settings == AUTO and not is_measured else spec.settings
    if settings not in (AUTO, PAPER):
        setup = replace(setup, methods=read_settings(settings, card.name).of(setup.methods))
    if spec.settings == AUTO and spec.weights == "hub":
        methods = with_stored(setup.methods, card.name, spec.samplings_text(), setup.fits)
        setup = replace(setup, methods=methods)
    return replace(setup, settings=settings)


def _setup(
    spec: RunSpec,
    card: ModelCard,
    named: Sequence[RunMethod],
    *,
    device: Device,
    has_graphs: bool,
    is_offline: bool,
) -> EngineSetup:
    check_memory = partial(memory.check_fits, what=f"Model {card.name}")

    def check_shape() -> None:
        if card.shape is not None:
            check_memory(card.shape, _dtype(spec, card, device), device.name)

    path, errors = Path(), list[CheckpointError]()
    try:
        path = resolve_model(card, offline=is_offline, before_download=check_shape)
    except CheckpointError as error:
        errors.append(error)
    find = partial(find_checkpoint, card, is_offline=is_offline)
    chosen, missing, broken, more = select_methods(spec, card, named, resolve_weights=find)
    if errors := [*errors, *more]:
        messages = dict.fromkeys(error.message for error in errors)
        raise CheckpointError("\n".join(messages), errors[0].hint) from errors[0]
    dtype = _dtype(spec, card, device, path)
    found = [one.weights for one in chosen if isinstance(one.weights, Path)]
    drafts = [weights for weights in found if weights.is_dir()]
    stored, is_plain = _stored_weights(card, path, device)
    need = check_memory(
        path, dtype, device.name, drafts=drafts, has_graphs=has_graphs, is_dequantized=is_plain
    )
    codec = load_codec(path, card, spec.template)
    for draft in drafts:
        if (draft / "tokenizer_config.json").is_file():
            checkpoints.check_same_vocabulary(
                codec.tokenizer, load_tokenizer(draft), what=str(draft)
            )
    made = EngineSetup(spec, card, path, device, dtype, codec, chosen, missing, broken)
    return replace(made, quantization=stored, need=need)


def _dtype(spec: RunSpec, card: ModelCard, device: Device, path: Path | None = None) -> Dtype:
    """The dtype to load in: float16 if auto means bfloat16, and the GPU would emulate it."""
    picked = pick_dtype(card, spec.dtype, device.name, path)
    is_free = spec.dtype == "auto" and picked == "bfloat16" and not card.is_float16_unsafe
    return "float16" if is_free and not device.has_bfloat16 else picked


def _stored_weights(card: ModelCard, path: Path, device: Device) -> tuple[str, bool]:
    """The name of a checkpoint's quantised weights, and True if loading makes plain ones of them.

    Raises:
        UserError: they or the model cannot be read.
    """
    import torch

    from specbench.engine.stored_formats import check_format, is_dequantized
    from specbench.engine.supported import check_type

    config = checkpoints.read_config(path, card.name)
    check_type(config.get("model_type"), path)
    converted = config.get(GGUF_TYPE)
    stored = converted or checkpoints.quantization_of(config)
    if converted:
        return f"dequantised {converted}", False
    if stored:
        check_format(stored, path)
    if is_dequantized(stored, torch.device(device.kind)):
        return f"dequantised {stored}", True
    return checkpoints.stored_format(config), False


def _stand_in_setup(
    spec: RunSpec, card: ModelCard, named: Sequence[RunMethod], *, device: Device, has_graphs: bool
) -> EngineSetup:
    """The setup of tiny, tokenizer and template included, in the shape of the card's model."""
    stand_in = stand_in_of(card)
    find = partial(find_checkpoint, card, is_offline=True, stand_in=stand_in)
    chosen, missing, broken, _ = select_methods(spec, card, named, resolve_weights=find)
    folder = Path(card.repo) if Path(card.repo).is_dir() else None
    dtype = _dtype(spec, card, device, folder)
    what = f"The stand-in of {stand_in.name}"
    context = stand_in.target.config["max_position_embeddings"]
    made = [one.weights for one in chosen]
    drafters = [one.num_numbers for one in made if not isinstance(one, Path | None)]
    need = replace(
        memory.estimate(stand_in.shape, dtype, context=context, what=what),
        # A drafter may copy its tensors while it is built, so the largest counts twice.
        draft_bytes=(sum(drafters) + max(drafters, default=0)) * memory.BYTES[dtype],
        reserve_bytes=memory.GRAPH_RESERVE if has_graphs else 0,
    )
    memory.check_need(need, dtype, device.name, what=what)
    path = stand_in.target.folder
    codec = load_codec(path, find_model("tiny"), spec.template)
    setup = EngineSetup(spec, card, path, device, dtype, codec, chosen, missing, broken)
    return replace(setup, stand_in=stand_in, need=need)


_FIELDS = {name: field for field, name in CONFIG_NAMES.items()}
_FIELDS["num_local_experts"] = "num_experts"
"""Names in config.json to fields of a shape."""


def stand_in_of(card: ModelCard) -> "StandIn":
    """The stand-in of a card's model, and of its SpS draft model if the card has one.

    Raises:
        UserError: the card's shape is unknown, or too small for tiny.
    """
    from specbench.zoo.stand_in.plan import plan_stand_in

    shape = card.shape or (None if card.is_embedded else _folder_shape(card))
    if shape is None:
        what = "stand-ins are made from it" if card.is_embedded else "its shape is unknown"
        raise UserError(
            f"{card.name} has no stand-in: {what}.",
            "Give a folder with the model's config.json, or a Llama-like model of `specbench list "
            "models`.",
        )
    draft = card.weights_of("sps")
    return plan_stand_in(
        card.name, shape, models_file().draft_shape.get(draft.repo) if draft else None
    )


def _folder_shape(card: ModelCard) -> Shape | None:
    """The shape in a folder's config.json; None if the card's model is not a folder."""
    if not Path(card.repo).is_dir():
        return None
    config = checkpoints.read_config(Path(card.repo), f"Model {card.name}")
    usual = {"num_key_value_heads": config.get("num_attention_heads"), "num_local_experts": 1}
    given: dict[str, Any] = {name: config.get(name) or usual.get(name) for name in _FIELDS}
    if given["head_dim"] is None:
        del given["head_dim"]  # hidden size by heads
    wrong = [name for name, n in given.items() if not isinstance(n, int) or n < 1]
    if wrong:
        raise UserError(
            f"The config.json in {card.repo} has no valid {', '.join(wrong)}.",
            "A stand-in takes its shape from a Llama-like model's config.json.",
        )
    numbers = {_FIELDS[name]: number for name, number in given.items()}
    return Shape(**numbers, architecture=str(config.get("model_type")))
