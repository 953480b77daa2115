"""SGLang: `python -m sglang.launch_server`. Flags of version 0.5."""

from __future__ import annotations

import sys

from specbench.measure.server.engines.base import Engine, EngineMethod, Launch, set_flags

_ALGORITHMS = {"sps": "STANDALONE", "eagle": "EAGLE", "eagle3": "EAGLE3", "ngram": "NGRAM"}


def _arguments(launch: Launch) -> list[str]:
    flags = set_flags(
        model_path=launch.model,
        host="127.0.0.1",
        port=launch.port,
        served_model_name=launch.served_name,
        context_length=launch.context,
        max_running_requests=max(launch.num_at_once, 1),
        dtype=launch.dtype,
        disable_radix_cache=True,
        enable_metrics=True,
        device="cpu" if launch.is_cpu else "",
    )
    return [*flags, *_speculation(launch)]


def _speculation(launch: Launch) -> list[str]:
    """Flags of a chain of drafts; none for vanilla."""
    if launch.method == "vanilla":
        return []
    is_chain = launch.weights is not None
    return set_flags(
        speculative_algorithm=_ALGORITHMS[launch.method],
        speculative_draft_model_path=launch.weights,
        speculative_num_steps=launch.num_tokens if is_chain else None,
        speculative_eagle_topk=1 if is_chain else None,
        speculative_num_draft_tokens=launch.num_tokens + 1,
    )


SGLANG = Engine(
    name="sglang",
    title="SGLang",
    executable=(sys.executable, "-m", "sglang.launch_server"),
    install="`pip install sglang`, in an environment of its own",
    methods={
        "vanilla": EngineMethod("Vanilla"),
        "ngram": EngineMethod("N-gram", 5),
        "sps": EngineMethod("SpS", 4, "sps"),
        "eagle": EngineMethod("EAGLE", 4, "eagle"),
        "eagle3": EngineMethod("EAGLE-3", 4, "eagle3"),
    },
    arguments=_arguments,
    settings={"HF_HUB_OFFLINE": "1"},
)
