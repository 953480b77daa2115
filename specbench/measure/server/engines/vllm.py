"""vLLM: `vllm serve`. Flags and speculative configurations of version 0.32."""

import json
from pathlib import Path
from typing import Any

from specbench.errors import CheckpointError
from specbench.measure.server import engine

_NGRAM = {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
"""The longest and shortest n-gram looked up, as in PLD."""
_NAMES = {"sps": "draft_model"}


def _arguments(launch: engine.Launch) -> list[str]:
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
        enable_per_request_metrics=True,
        speculative_config=speculation,
        per_request_spec_decode_metrics="detailed" if speculation else "",  # else it is refused
    )
    return ["serve", str(launch.model), *flags]


def _speculation(launch: engine.Launch) -> str:
    """The value of --speculative-config; empty for vanilla."""
    if launch.method == "vanilla":
        return ""
    values: dict[str, Any] = {"method": _NAMES.get(launch.method, launch.method)}
    if launch.weights:
        is_medusa = launch.method == "medusa"
        made = medusa_folder(launch.weights, launch.model, launch.scratch) if is_medusa else None
        values["model"] = str(made or launch.weights)
    if launch.num_tokens:
        values["num_speculative_tokens"] = launch.num_tokens
    if launch.scope == "request":
        values["suffix_decoding_max_cached_requests"] = 0
    return json.dumps(values | (_NGRAM if launch.method == "ngram" else {}))


def medusa_folder(weights: Path, model: Path, made: Path) -> Path:
    """Medusa heads with the settings that vLLM asks for: `weights` itself if it is in its layout.

    The weights are linked.
    """
    config, target = (
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
        for folder in (weights, model)
    )
    if "medusa_num_heads" not in config:
        return weights
    config |= {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": target["hidden_size"],
        "vocab_size": target["vocab_size"],
        "medusa_fc_bias": True,
        "num_heads": config["medusa_num_heads"],
        "num_hidden_layers": config["medusa_num_layers"],
    }
    made.mkdir(parents=True, exist_ok=True)
    (made / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for file in weights.iterdir():
        link = made / file.name
        if file.name != "config.json" and not link.exists():
            link.symlink_to(file.resolve())
    return made


def _check_folder(folder: Path, method: str) -> None:
    """Refuse an EAGLE head with a bias in its first layer, which vLLM 0.32 ignores."""
    from specbench.methods._checkpoint import FILES, read_tensors

    if method == "eagle" and "fc.bias" in read_tensors(method, folder, FILES):
        raise CheckpointError(
            f"vLLM cannot run the EAGLE head in {folder}: it ignores fc.bias without a "
            "message, and accepts no draft token.",
            "Use a head without this bias, or leave eagle out.",
        )


ENGINE = engine.Engine(
    title="vLLM",
    executable=("vllm",),
    install="`pip install vllm` (for NVIDIA GPUs), in an environment of its own",
    methods={
        **engine.METHODS,
        "medusa": engine.EngineMethod("Medusa", 4, "medusa"),
        "suffix": engine.EngineMethod("Suffix", scopes=("run", "request"), is_default=False),
    },
    arguments=_arguments,
    settings={"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
    thread_settings={"OMP_NUM_THREADS": "{}", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    check_folder=_check_folder,
    version=("/version", "version"),
    counters={
        **engine.DRAFT_COUNTERS,
        "generation_tokens": "num_tokens",
        "prefix_cache_hits": "num_cached_tokens",
    },
)
