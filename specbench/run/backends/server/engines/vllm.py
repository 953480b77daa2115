"""vLLM: `vllm serve`. Flags and speculative configurations of version 0.32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from specbench.run.backends.server.engines.base import Engine, EngineMethod, Launch, set_flags

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
        per_request_spec_decode_metrics="detailed",
        speculative_config=_speculation(launch),
    )
    return ["serve", str(launch.model), *flags]


def _speculation(launch: Launch) -> str:
    """The value of --speculative-config; empty for vanilla."""
    if launch.method == "vanilla":
        return ""
    values: dict[str, Any] = {"method": _NAMES.get(launch.method, launch.method)}
    if launch.weights:
        is_medusa = launch.method == "medusa"
        values["model"] = str(_medusa_folder(launch) if is_medusa else launch.weights)
    if launch.num_tokens:
        values["num_speculative_tokens"] = launch.num_tokens
    return json.dumps(values | (_NGRAM if launch.method == "ngram" else {}))


def _medusa_folder(launch: Launch) -> Path:
    """Medusa heads with the configuration that vLLM asks for; the weights are linked."""
    assert launch.weights is not None
    config = json.loads((launch.weights / "config.json").read_text(encoding="utf-8"))
    target = json.loads((launch.model / "config.json").read_text(encoding="utf-8"))
    config |= {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "hidden_size": target["hidden_size"],
        "vocab_size": target["vocab_size"],
        "medusa_fc_bias": True,
        "num_heads": config["medusa_num_heads"],
        "num_hidden_layers": config["medusa_num_layers"],
    }
    launch.scratch.mkdir(parents=True, exist_ok=True)
    for file in launch.weights.iterdir():
        link = launch.scratch / file.name
        if file.name != "config.json" and not link.exists():
            link.symlink_to(file.resolve())
    (launch.scratch / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return launch.scratch


VLLM = Engine(
    name="vllm",
    title="vLLM",
    executable=("vllm",),
    install="`pip install vllm` (for NVIDIA GPUs), in an environment of its own",
    methods={
        "vanilla": EngineMethod("Vanilla"),
        "ngram": EngineMethod("N-gram", 5),
        "suffix": EngineMethod(
            "Suffix", note="It learns from earlier requests, so that repeats flatter it."
        ),
        "sps": EngineMethod("SpS", 4, "sps"),
        "eagle": EngineMethod("EAGLE", 4, "eagle"),
        "eagle3": EngineMethod("EAGLE-3", 4, "eagle3"),
        "medusa": EngineMethod("Medusa", 4, "medusa"),
    },
    arguments=_arguments,
    settings={"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"},
)
