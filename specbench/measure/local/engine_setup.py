"""Choose the device, dtype, files and template with which the engine runs.

The module finds and checks files, and estimates memory. It loads no weights.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from specbench.engine.weight_files import find_weights, names_of
from specbench.errors import CheckpointError
from specbench.log.header import RunHeader
from specbench.log.model import ModelHeader, precision
from specbench.measure.base import SetupInfo
from specbench.measure.local.device import Device, fitted, pick_mode
from specbench.measure.local.engine import EngineBackend
from specbench.measure.local.engine_load import EngineParts
from specbench.measure.local.stand_ins import stand_in_of
from specbench.measure.methods import check_scopes, select_methods
from specbench.measure.spec import AUTO, PAPER, RunSpec
from specbench.measure.weights import find_checkpoint
from specbench.models import checkpoints, memory
from specbench.models.cards import GGUF_TYPE, Dtype, ModelCard, pick_dtype, tiny_card
from specbench.models.chat import ChatCodec, load_codec
from specbench.models.hub import resolve_model
from specbench.models.tokenizers import load_tokenizer
from specbench.settings.files import read_settings
from specbench.settings.run_method import RunMethod
from specbench.settings.tuned_settings import fits_of, with_tuned

FLOAT16_WARNING = (
    "The model ran in float16: GPUs below compute capability 8.0 emulate bfloat16, several times "
    "slower. To use bfloat16 in spite of this, give `--dtype bfloat16`."
)
STAND_IN_WARNING = (
    "The weights are a stand-in: times are as with the real shape, but tokens, accept lengths, "
    "rotary base and context are tiny's."
)
SPREAD_WARNING = (
    "The layers of the model are spread over {} GPUs, which work one after the other, without CUDA "
    "graphs. Clocks, heat and load are those of the first GPU, and energy is not measured."
)


def context_length(path: Path, what: str) -> int | None:
    """The length of a model's context in tokens, or None if its config.json does not say.

    `path` is the folder of the config.json, `what` the model's name for errors.
    """
    config = checkpoints.read_config(path, what)  # the config.json as a dict
    text_config = config.get("text_config") or config  # multimodal models nest the text part
    # The table with the type and the scaling of the rotary embedding; empty if the config has none.
    rope = text_config.get("rope_scaling") or text_config.get("rope_parameters") or {}
    lengths = [text_config.get("max_position_embeddings")]  # in tokens; None if absent
    if "longrope" in (rope.get("rope_type"), rope.get("type")):
        # Such a model has other rotary frequencies beyond its original length, so the engine stops
        # there. This length is in the config or in the table of the rotary embedding.
        original_key = "original_max_position_embeddings"
        lengths.append(text_config.get(original_key, rope.get(original_key)))
    return min((length for length in lengths if isinstance(length, int)), default=None)


class EngineSetup(EngineParts):
    """The model and the methods of a run, ready to be loaded."""

    @property
    def title(self) -> str:
        return f"{self.card.title} ({precision(self.quantization, self.dtype)}, {self.device.name})"

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(method.label for method in self.methods)

    @property
    def no_checkpoint(self) -> tuple[str, ...]:
        return tuple(method.label for method in self.missing)

    @property
    def context(self) -> int | None:
        return context_length(self.path, self.card.name)

    def fits(self) -> dict[str, str]:
        """The model, machine and versions for which tuned settings and cost curves are valid."""
        return fits_of(
            self.describe().model,
            device=self.device.name,
            execution=self.mode.name,
            threads=self.spec.threads,
            temperatures=self.spec.samplings_text(),
        )

    def describe(self) -> SetupInfo:
        """The setup's part of a run's header: the model, the methods, and values chosen here."""
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
            num_parameters=memory.target_parameters(
                self.card, self.stand_in.shape if self.stand_in else self.path
            ),
            shape=self.stand_in.shape if self.stand_in else None,
            revision=files.revision,
            files=files.files,
            template_sha256=self.codec.template.sha256,
            chat=self.codec.describe(),
        )
        values = {
            "device": self.device.name,
            "dtype": self.dtype,
            "template": self.codec.template.name,
            "execution": self.mode.name,
            "settings": self.settings,
        }
        methods = {method.label: method.describe() for method in self.methods + self.missing}
        return SetupInfo(model, methods, values, warnings=(*self.broken, *self._warnings()))

    def _warnings(self) -> list[str]:
        """Warnings about files, the template, a stand-in, several GPUs and float16."""
        # Says that an index (a list of weight files) of the target is not read; empty if none is.
        # `_unread_indexes` has such sentences about the drafters' files.
        files_note = find_weights(self.path).note
        warnings = [files_note, *self._unread_indexes(), *self.codec.warnings]
        if self.stand_in:
            warnings.append(STAND_IN_WARNING)
        if self.device.num_gpus > 1:
            warnings.append(SPREAD_WARNING.format(self.device.num_gpus))
        warnings.append(self._float16_warning() or "")
        return [warning for warning in warnings if warning]

    def _unread_indexes(self) -> Iterator[str]:
        """A warning about each index in a folder of draft weights that is not read."""
        for method in self.methods:
            for folder in _draft_folders([method]):  # the method's folder, or none
                note = find_weights(folder, names_of(method.checkpoint or "")).note
                if note and folder != self.path:
                    yield f"{method.label}: {note}"

    def _float16_warning(self) -> str | None:
        """A warning if float16 replaces the model's own bfloat16, else None."""
        if self.dtype != "float16" or self.device.has_bfloat16:
            return None
        usual = pick_dtype(self.card, "auto", self.device.name, self.path)
        return FLOAT16_WARNING if usual == "bfloat16" else None

    def check_memory(self, num_tokens: int) -> None:
        if self.need:
            what = f"{self.card.title} with requests of up to {num_tokens} tokens"
            memory.check_context(self.need, num_tokens, self.dtype, self.device.name, what=what)

    def open(self, folder: Path, before: RunHeader | None = None) -> EngineBackend:
        return EngineBackend(self, is_metered=True, before=before)


def make_engine_setup(spec: RunSpec, *, is_offline: bool = False) -> EngineSetup:
    """Find and check the model and the methods that `spec` names, the cheap checks first.

    A model too large for one GPU gets as many GPUs as it needs, unless `spec` names one.

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
    """The setup of a run with these methods on a device.

    Raises:
        TooLarge: the model does not fit on the device.
    """
    mode = pick_mode(spec.execution, device, spec.kernels)
    make = _stand_in_setup if spec.weights == "stand-in" else partial(_setup, is_offline=is_offline)
    setup = make(spec, methods, device=device, has_graphs=mode.name == "graph")
    setup = replace(setup, mode=mode)
    return _with_settings(setup, spec)


def _with_settings(setup: EngineSetup, spec: RunSpec) -> EngineSetup:
    """Give methods the settings that are known before the model is loaded.

    `spec.settings` is "auto", "paper", or the path of a file of settings or of a run. With "auto",
    methods get the settings that the user tuned on this machine. Methods without tuned settings
    get settings in the warm-up on a CPU, and keep the papers' settings on a GPU. For a stand-in
    (`spec.weights` is "stand-in", not "hub"), "auto" means the papers' settings for all methods.
    """
    settings = spec.settings  # stays "auto" only if the warm-up is to choose settings
    if settings == AUTO and (setup.device.kind != "cpu" or spec.weights != "hub"):
        settings = PAPER
    if settings not in (AUTO, PAPER):  # the path of a file or a run
        # `of` returns the methods with the options that they have in the file or the run.
        methods = read_settings(settings, spec.card.name).of(setup.methods)
        setup = replace(setup, methods=methods)
    if spec.settings == AUTO and spec.weights == "hub":
        # Settings that were tuned earlier for these temperatures. They are used only if they were
        # tuned with the model, machine and versions that `setup.fits` returns.
        methods = with_tuned(setup.methods, spec.card.name, spec.samplings_text(), setup.fits)
        setup = replace(setup, methods=methods)
    return replace(setup, settings=settings)


class _StoredWeights(NamedTuple):
    """The quantised weights of a checkpoint."""

    format: str
    """The format as in run.json; "" for plain weights."""
    is_dequantized: bool
    """True if loading turns them into plain weights."""


def _setup(
    spec: RunSpec,
    named: Sequence[RunMethod],  # empty for the default methods
    *,
    device: Device,
    has_graphs: bool,  # True to keep memory for CUDA graphs
    is_offline: bool,  # True to download nothing
) -> EngineSetup:
    """The setup of a model from its checkpoint, with the methods `named` by the user.

    Raises:
        CheckpointError: files of the model or of methods are missing or damaged.
        TooLarge: the model does not fit on the device.
    """
    card = spec.card
    check_memory = partial(memory.check_fits, what=f"Model {card.name}")  # raises TooLarge

    def check_shape() -> None:  # raises TooLarge before anything is downloaded
        if card.shape is not None:  # the card has the sizes of the model
            check_memory(card.shape, _dtype(spec, device), device.name)

    path = Path()  # becomes the checkpoint's folder
    errors: list[CheckpointError] = []  # the model's, raised together with those of methods
    try:
        path = resolve_model(card, offline=is_offline, before_download=check_shape)
    except CheckpointError as error:
        errors.append(error)
    selected = select_methods(  # methods that run, lack a checkpoint, or are broken
        spec,
        named,
        resolve_weights=partial(find_checkpoint, card, is_offline=is_offline),
        num_parameters=memory.target_parameters(card, None if errors else path),
    )
    _raise_all([*errors, *selected.errors])
    dtype = _dtype(spec, device, path)  # `spec` may say "auto"
    draft_folders = _draft_folders(selected.methods)  # checkpoints of the methods
    stored = _stored_weights(card, path, device)  # their format, and if loading dequantises them
    need = check_memory(  # the bytes that the run needs
        path,
        dtype,
        device.name,
        drafts=draft_folders,
        has_graphs=has_graphs,
        is_dequantized=stored.is_dequantized,
    )
    codec = load_codec(path, card, spec.template, spec.template_args)  # tokenizer and chat template
    _check_vocabularies(codec, draft_folders)  # raises if a draft model's tokenizer differs
    return EngineSetup(
        spec,
        card,
        path,
        device,
        dtype,
        codec,
        methods=selected.methods,
        missing=selected.missing,  # methods without a checkpoint
        broken=selected.broken,  # sentences about plug-ins that cannot be imported
        quantization=stored.format,
        need=need,
    )


def _draft_folders(methods: Sequence[RunMethod]) -> list[Path]:
    """The folders of the methods' draft weights. A method with a file or no weights has none."""
    all_weights = [method.weights for method in methods]
    return [weights for weights in all_weights if isinstance(weights, Path) and weights.is_dir()]


def _raise_all(errors: Sequence[CheckpointError]) -> None:
    """Raise the errors, if any, as a single error that has each message once."""
    if errors:
        messages = dict.fromkeys(error.message for error in errors)
        raise CheckpointError("\n".join(messages), errors[0].hint) from errors[0]


def _check_vocabularies(codec: ChatCodec, drafts: Sequence[Path]) -> None:
    """Refuse draft models, given by their folders, whose tokenizer differs from the target's."""
    for draft in drafts:
        if (draft / "tokenizer_config.json").is_file():
            checkpoints.check_same_vocabulary(
                codec.tokenizer, load_tokenizer(draft), what=str(draft)
            )


def _dtype(spec: RunSpec, device: Device, path: Path | None = None) -> Dtype:
    """The dtype to load weights in. "auto" gives float16 if the GPU would emulate bfloat16."""
    picked = pick_dtype(spec.card, spec.dtype, device.name, path)
    may_change = spec.dtype == "auto" and picked == "bfloat16" and not spec.card.is_float16_unsafe
    return "float16" if may_change and not device.has_bfloat16 else picked


def _stored_weights(card: ModelCard, path: Path, device: Device) -> _StoredWeights:
    """The format of a checkpoint's weights, and whether loading turns them into plain weights.

    `card` names the model for errors; `path` is the checkpoint's folder.

    Raises:
        UserError: the engine cannot read the weights, or does not support the model's type.
    """
    import torch

    from specbench.engine.stored_formats import check_format, is_dequantized
    from specbench.engine.supported import check_type

    config = checkpoints.read_config(path, card.name)
    check_type(config.get("model_type"), path)
    # The type that weights had in a GGUF file, if the file was converted to plain weights.
    if gguf_type := config.get(GGUF_TYPE):
        return _StoredWeights(f"dequantised {gguf_type}", is_dequantized=False)
    # The method of quantisation, such as "awq"; "" for plain weights.
    quantization = checkpoints.quantization_of(config)
    if quantization:
        check_format(quantization, path)  # raises for a format that the engine cannot read
    # Weights are dequantised if the device (`kind` is "cpu" or "cuda") or the installed packages
    # cannot compute with them. One format is always dequantised.
    if is_dequantized(quantization, torch.device(device.kind)):
        return _StoredWeights(f"dequantised {quantization}", is_dequantized=True)
    # This format names the type of its numbers too, such as "awq int4".
    return _StoredWeights(checkpoints.stored_format(config), is_dequantized=False)


def _stand_in_setup(
    spec: RunSpec, named: Sequence[RunMethod], *, device: Device, has_graphs: bool
) -> EngineSetup:
    """The setup of a stand-in: weights in the model's shape that give the answers of tiny, the
    small model that ships with specbench.

    `named` are the methods that the user named. With `has_graphs`, memory is kept for CUDA graphs.

    Raises:
        UserError: the model has no stand-in, no named method has weights, weights were named, or
            two methods have one label.
        CheckpointError: a datastore is missing or damaged.
        TooLarge: the stand-in does not fit on the device.
    """
    card = spec.card  # the card of the model whose shape the stand-in has
    stand_in = stand_in_of(card)  # plans of the weights of target and draft models
    # finds a method's weights without a download: the stand-in's plan, or the path of a datastore
    resolve_weights = partial(find_checkpoint, card, is_offline=True, stand_in=stand_in)
    num_parameters = stand_in.shape.num_parameters  # the target's
    selected = select_methods(  # methods that run, lack weights, or are broken
        spec, named, resolve_weights=resolve_weights, num_parameters=num_parameters
    )
    _raise_all(selected.errors)  # such as a datastore that does not exist
    model_folder = Path(card.repo) if Path(card.repo).is_dir() else None  # None: a model of the Hub
    dtype = _dtype(spec, device, model_folder)
    what = f"The stand-in of {stand_in.name}"  # the name in errors
    context = stand_in.target.config["max_position_embeddings"]  # in tokens
    weights_of_methods = [method.weights for method in selected.methods]
    # The number of parameters of each method whose weights are to be made. The other methods have
    # a path, or None.
    draft_sizes = [
        weights.num_numbers
        for weights in weights_of_methods
        if not isinstance(weights, Path | None)
    ]
    # A drafter may copy its tensors while it is built, so the largest drafter counts twice.
    num_draft_numbers = sum(draft_sizes) + max(draft_sizes, default=0)
    need = replace(
        memory.estimate(stand_in.shape, dtype, context=context, what=what),
        draft_bytes=num_draft_numbers * memory.BYTES[dtype],
        reserve_bytes=memory.GRAPH_RESERVE if has_graphs else 0,
    )
    memory.check_need(need, dtype, device.name, what=what)  # raises TooLarge
    path = stand_in.target.folder  # tiny's folder: tokenizer, template, and weights to enlarge
    return EngineSetup(
        spec,
        card,
        path,
        device,
        dtype,
        codec=load_codec(path, tiny_card(), spec.template, spec.template_args),
        methods=selected.methods,
        missing=selected.missing,  # methods for which the stand-in has no weights
        broken=selected.broken,  # sentences about plug-ins that cannot be imported
        stand_in=stand_in,
        need=need,
    )
