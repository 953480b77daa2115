"""vLLM: `vllm serve`. Flags and speculative configurations of version 0.32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specbench.measure.server.engines.base import Engine, EngineMethod, Launch, set_flags
from specbench.measure.server.engines.vllm_weights import eagle_folder, medusa_folder

_NGRAM = {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
"""The longest and shortest n-gram looked up, as in PLD."""
_NAMES = {"sps": "draft_model"}


def _arguments(launch: Launch) -> list[str]:
    flags = set_flags(
        host="127.0.0.1",
        port=launch.port,
        served_model_name=launch.served_name,
        max_model_len=launch.context,
        max_num_seqs=max(launch.num_at_once, 1),
        dtype=launch.dtype,
        enforce_eager=launch.is_cpu,
        no_enable_prefix_caching=True,
        enable_per_request_metrics=True,
    )
    if speculation := _speculation(launch):
        flags += set_flags(
            speculative_config=speculation, per_request_spec_decode_metrics="detailed"
        )  # vLLM refuses the second without the first
    return ["serve", str(launch.model), *flags]


def _speculation(launch: Launch) -> str:
    """The value of --speculative-config; empty for vanilla."""
    if launch.method == "vanilla":
        return ""
    values: dict[str, Any] = {"method": _NAMES.get(launch.method, launch.method)}
    if launch.weights:
        values["model"] = str(_weights(launch, launch.weights))
    if launch.num_tokens:
        values["num_speculative_tokens"] = launch.num_tokens
    if launch.scope == "request":
        values["suffix_decoding_max_cached_requests"] = 0
    return json.dumps(values | (_NGRAM if launch.method == "ngram" else {}))


def _weights(launch: Launch, weights: Path) -> Path:
    """The folder of draft weights that vLLM reads."""
    if launch.method == "medusa":
        return medusa_folder(weights, launch.model, launch.scratch)
    return eagle_folder(weights, launch.scratch) if launch.method == "eagle" else weights


VLLM = Engine(
    name="vllm",
    title="vLLM",
    executable=("vllm",),
    install="`pip install vllm` (for NVIDIA GPUs), in an environment of its own",
    methods={
        "vanilla": EngineMethod("Vanilla"),
        "ngram": EngineMethod("N-gram", 5),
        "suffix": EngineMethod("Suffix", scopes=("run", "request")),
        "sps": EngineMethod("SpS", 4, "sps"),
        "eagle": EngineMethod("EAGLE", 4, "eagle"),
        "eagle3": EngineMethod("EAGLE-3", 4, "eagle3"),
        "medusa": EngineMethod("Medusa", 4, "medusa"),
    },
    arguments=_arguments,
    settings={"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
)
