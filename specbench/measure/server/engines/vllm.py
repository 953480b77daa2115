"""Start vLLM, with `vllm serve` and the flags, configurations and metrics of 0.32 and 0.33."""

import json
from collections.abc import Mapping
from dataclasses import replace as replace_method
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from specbench.errors import CheckpointError
from specbench.log.files import write_whole
from specbench.measure.server import engine
from specbench.measure.server.stream import Counts
from specbench.models.checkpoints import read_config

_NGRAM = {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
"""Lengths in tokens of the longest and the shortest n-gram that is looked up, as in PLD."""
_TABLE: dict[str, type[engine.OptionValue]] = {"table": str}
"""The option for a file with draft tokens by load. All methods with a draft size have it."""
_SAMPLING: dict[str, type[engine.OptionValue]] = {
    **_TABLE,
    "draft_sample_method": str,
    "rejection_sample_method": str,
}
"""Options of all methods with draft weights."""
_PARALLEL = {**_SAMPLING, "parallel_drafting": bool}
"""Options of methods whose weights may draft several tokens at once (P-EAGLE, PARD)."""
_LOOKUP: dict[str, type[engine.OptionValue]] = {
    **_TABLE,
    "prompt_lookup_max": int,
    "prompt_lookup_min": int,
}
_SUFFIX: dict[str, type[engine.OptionValue]] = {
    "suffix_decoding_max_tree_depth": int,
    "suffix_decoding_max_spec_factor": float,
    "suffix_decoding_min_token_prob": float,
}
_DSPARK = {**_SAMPLING, "dspark_draft_topk": int, "enable_adaptive_verification": bool}
_FLY: dict[str, type[engine.OptionValue]] = {
    "fly_window_size": int,
    "fly_entropy_threshold": float,
    "fly_entropy_top_k": int,
}
_LOSSLESS_SAMPLING = ("standard", "block", "strict", "probabilistic")
"""Values of `rejection_sample_method` that keep the target's distribution. The last two belong to
older versions, which a running server may have.
"""
METHODS = {
    **engine.METHODS,
    "ngram": replace_method(engine.METHODS["ngram"], options=_LOOKUP),
    "sps": engine.EngineMethod(
        "SpS",
        4,
        "sps",
        is_chain=True,
        engine_name="draft_model",
        options={**_PARALLEL, **_FLY, "use_heterogeneous_vocab": bool},
    ),
    "eagle": replace_method(engine.METHODS["eagle"], options={**_PARALLEL, **_FLY}),
    "eagle3": replace_method(engine.METHODS["eagle3"], options={**_PARALLEL, **_FLY}),
    "medusa": engine.EngineMethod("Medusa", 4, "medusa", gone_in="0.33"),
    "suffix": engine.EngineMethod(
        "Suffix", scopes=("run", "request"), is_default=False, options=_SUFFIX
    ),
    "ngram_gpu": engine.EngineMethod("N-gram (GPU)", 5, is_default=False, options=_LOOKUP),
    "mtp": engine.EngineMethod(
        "MTP",
        1,
        "mtp module",
        needs_weights=False,
        is_chain=True,
        is_default=False,
        options={**_SAMPLING, **_FLY},
    ),
    "dflash": engine.EngineMethod(
        "DFlash", 8, "dflash", is_default=False, options={**_SAMPLING, **_FLY}
    ),
    "dspark": engine.EngineMethod("DSpark", 7, "dspark", is_default=False, options=_DSPARK),
    "custom_class": engine.EngineMethod(
        "Custom class", 4, is_default=False, options={"model": str}
    ),
    engine.WHOLE: engine.WHOLE_METHOD,
}
"""The methods of vLLM. Methods that need a particular target or package run only if named."""


def _arguments(launch: engine.Launch) -> list[str]:
    """The words of a server's command line, without the executable.

    `launch` is the server to start. `set_flags` leaves out flags that are None, False, 0 or empty.
    """
    speculation = _speculation(launch)
    flags = engine.set_flags(
        host="127.0.0.1",
        port=launch.port,
        served_model_name=launch.served_name,
        max_model_len=launch.context,
        max_num_seqs=launch.num_at_once,
        dtype=launch.dtype,
        enforce_eager=launch.is_cpu,
        no_enable_prefix_caching=True,
        gpu_memory_utilization=launch.gpu_share,
        enable_per_request_metrics=True,
        speculative_config=speculation,
        # vLLM refuses this flag without speculation.
        per_request_spec_decode_metrics="detailed" if speculation else "",
    )
    return ["serve", str(launch.model), *flags]


def _speculation(launch: engine.Launch) -> str:
    """The value of --speculative-config, in JSON; empty for vanilla.

    `launch` is the server to start. It has the folders of the target model and of the draft weights
    (None if the method reads none), and a folder for files in vLLM's own layout (`scratch`). Its
    `options` are the user's options of the method, or with WHOLE the whole configuration.
    """
    if launch.method == "vanilla":
        return ""
    if launch.method == engine.WHOLE:
        return json.dumps(launch.options)
    config: dict[str, Any] = {"method": METHODS[launch.method].engine_name or launch.method}
    if launch.weights and launch.method == "medusa":
        # A folder of the weights in vLLM's layout.
        config["model"] = str(medusa_folder(launch.weights, launch.model, launch.scratch))
    elif launch.weights:
        config["model"] = str(launch.weights)
    if launch.num_tokens:  # the most tokens of a draft; 0 if the method decides
        config["num_speculative_tokens"] = launch.num_tokens
    if launch.method == "suffix" and launch.scope == "request":  # to forget earlier requests
        config["suffix_decoding_max_cached_requests"] = 0
    if launch.method in ("ngram", "ngram_gpu"):
        config |= _NGRAM
    return json.dumps({**config, **launch.options})  # the user's options replace the others


def _is_lossy(options: Mapping[str, Any]) -> bool:
    """True if the rule of acceptance changes the output's distribution, as "fly" does."""
    return options.get("rejection_sample_method", "standard") not in _LOSSLESS_SAMPLING


def _info_options(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """The speculative configuration in vLLM's settings, as texts by option; empty without one.

    `info` has the settings by name, or a dict of them under the name `vllm_config`.
    """
    settings = info.get("vllm_config", info)
    config = settings.get("speculative_config") if isinstance(settings, dict) else None
    if not isinstance(config, dict):
        return {}
    return {name: str(setting) for name, setting in config.items()}


def medusa_folder(weights: Path, model: Path, scratch: Path) -> Path:
    """A folder with Medusa heads in vLLM's layout.

    `weights` is the folder of the heads, `model` the folder of the target model. If `weights` has
    vLLM's layout, it is returned. Else the result is `scratch`, a folder that only this server
    uses. It gets a config.json with the settings that vLLM needs, and links to the other files in
    `weights`.

    Raises:
        CheckpointError: a config.json cannot be read, or lacks a size.
    """
    config = read_config(weights, "The medusa checkpoint")  # the settings of config.json, by name
    if "medusa_num_heads" not in config:  # only the Medusa authors' layout has this key
        return weights
    model_config = read_config(model, "The model")
    text_config = model_config.get("text_config") or model_config  # the part for text, if any
    config |= {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": _size(text_config, "hidden_size", model),
        "vocab_size": _size(text_config, "vocab_size", model),
        # The linear layers of the authors' heads have biases, unless the checkpoint says otherwise.
        "medusa_fc_bias": config.get("medusa_fc_bias", True),
        # vLLM's names for the number of heads, and for the number of layers per head.
        "num_heads": config["medusa_num_heads"],
        "num_hidden_layers": _size(config, "medusa_num_layers", weights),
    }
    scratch.mkdir(parents=True, exist_ok=True)
    write_whole(scratch / "config.json", json.dumps(config).encode())
    for file in weights.iterdir():
        link = scratch / file.name
        if file.name != "config.json":
            link.unlink(missing_ok=True)  # from an earlier start, perhaps to a folder that is gone
            link.symlink_to(file.resolve())
    return scratch


def _size(config: Mapping[str, Any], name: str, folder: Path) -> int:
    """A size in the config of a folder's checkpoint.

    Raises:
        CheckpointError: the config lacks the size.
    """
    size = config.get(name)
    if not isinstance(size, int):
        raise CheckpointError(
            f"{folder}: config.json has no {name}.", f"Add {name} to it, or leave medusa out."
        )
    return size


def _check_folder(folder: Path, method: str) -> None:
    """Refuse an EAGLE head with a bias in its first layer, which vLLM 0.32 ignores."""
    from specbench.methods.shared.checkpoint import FILES, read_tensors

    if method == "eagle" and "fc.bias" in read_tensors(method, folder, FILES):
        raise CheckpointError(
            f"vLLM cannot run the EAGLE head in {folder}: vLLM ignores fc.bias without a "
            "message, and accepts no draft token.",
            "Use a head without this bias, or leave eagle out.",
        )


class _DraftCounts(Counts, frozen=True):
    """Counts of an answer's drafts, by vLLM's names."""

    num_drafts: int | None = field(default=None, name="num_spec_steps")
    num_drafted: int | None = field(default=None, name="num_draft_tokens")
    num_accepted: int | None = field(default=None, name="num_accepted_draft_tokens")
    accepted_per_step: tuple[int, ...] | None = field(default=None, name="per_step_accepted")
    drafted_per_step: tuple[int, ...] | None = field(default=None, name="per_step_drafted")
    drafts_by_accepted: tuple[int, ...] | None = field(default=None, name="acceptance_histogram")


class AnswerMetrics(Struct, frozen=True):
    """Times and counts of one answer, which vLLM adds to the last event of the OpenAI API."""

    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    speculative_decoding: _DraftCounts | None = None

    def counts(self) -> Counts:
        """The times and counts, by our names."""
        return replace(
            self.speculative_decoding or Counts(),
            prefill_ms=self.time_to_first_token_ms,
            decode_ms=self.generation_time_ms,
        )


ENGINE = engine.Engine(
    title="vLLM",
    executable=("vllm",),
    install="`pip install vllm` (for NVIDIA GPUs), in an environment of its own",
    methods=METHODS,
    arguments=_arguments,
    variables={"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
    thread_variables={"OMP_NUM_THREADS": "{}", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    check_folder=_check_folder,
    version_keys={"/version": "version"},
    known_versions=("0.32", "0.33"),
    option_since=dict.fromkeys((*_FLY, "rejection_sample_method=fly"), "0.33"),
    packages=("vllm", "vllm-cpu"),
    cpu_cache_gib=1,  # VLLM_CPU_KVCACHE_SPACE
    share_flag="--gpu-memory-utilization",
    is_lossy=_is_lossy,
    info_path="/server_info?config_format=json",
    info_options=_info_options,
    own_flags=("--model", "--dtype", "--config", "--uds"),
    speculation_flags=("-sc",),
    completes_flags=True,
    counters={
        **engine.DRAFT_COUNTERS,
        "generation_tokens": "num_tokens",
        "prefix_cache_hits": "num_cached_tokens",
    },
)
