"""Start SGLang, with `python -m sglang.launch_server` and the flags of version 0.5."""

import sys
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from specbench.measure.server import stream
from specbench.measure.server.engine import (
    DRAFT_COUNTERS,
    WHOLE,
    WHOLE_METHOD,
    Engine,
    EngineMethod,
    Launch,
    OptionValue,
    option_flags,
    set_flags,
)

_THRESHOLDS = ("accept_threshold_single", "accept_threshold_acc")
"""Options that make acceptance lossy if they are below 1."""
_VERIFYING: dict[str, type[OptionValue]] = {
    **dict.fromkeys(_THRESHOLDS, float),
    "use_rejection_sampling": bool,
}
"""Options of all methods."""
_TREE = {"eagle_topk": int, "num_draft_tokens": int, "adaptive": bool, **_VERIFYING}
"""Options of methods that draft trees. The first three are the children per node, the nodes of a
tree, and whether the number of drafting steps adapts.
"""
METHODS: dict[str, EngineMethod] = {
    "vanilla": EngineMethod("Vanilla"),
    "ngram": EngineMethod("N-gram", 5, engine_name="NGRAM", options=_VERIFYING),
    "sps": EngineMethod("SpS", 4, "sps", engine_name="STANDALONE", options=_TREE),
    "eagle": EngineMethod("EAGLE", 4, "eagle", engine_name="EAGLE", options=_TREE),
    "eagle3": EngineMethod("EAGLE-3", 4, "eagle3", engine_name="EAGLE3", options=_TREE),
    "mtp": EngineMethod(
        "MTP",
        3,
        "mtp module",
        needs_weights=False,
        is_default=False,
        engine_name="NEXTN",
        options=_TREE,
    ),
    "dflash": EngineMethod(
        "DFlash", 7, "dflash", is_default=False, engine_name="DFLASH", options=_VERIFYING
    ),
    "dspark": EngineMethod(
        "DSpark", 7, "dspark", is_default=False, engine_name="DSPARK", options=_VERIFYING
    ),
    WHOLE: WHOLE_METHOD,
}
"""The methods of SGLang. `num_tokens` is the number of drafting steps."""
_CHAINS = ("sps", "eagle", "eagle3", "mtp")
"""Methods that draft step by step. They draft chains, unless `eagle_topk` is above 1."""


def _arguments(launch: Launch) -> list[str]:
    """The words of a server's command line, without the executable.

    `launch` is the server to start. Methods in _CHAINS draft chains unless their options say
    otherwise. `set_flags` leaves out flags that are None, 0 or empty.
    """
    options = launch.options
    is_chain = launch.method in _CHAINS
    has_size = launch.method not in ("vanilla", WHOLE)  # with WHOLE, a file sets the size
    num_nodes = launch.num_tokens + 1 if has_size else None  # nodes of a draft, with the root
    flags = set_flags(
        model_path=launch.model,
        host="127.0.0.1",
        port=launch.port,
        served_model_name=launch.served_name,
        context_length=launch.context,
        max_running_requests=launch.num_at_once,
        dtype=launch.dtype,
        disable_radix_cache=True,
        enable_metrics=True,
        device="cpu" if launch.is_cpu else "",
        speculative_algorithm=METHODS[launch.method].engine_name,
        speculative_draft_model_path=launch.weights,
        speculative_num_steps=launch.num_tokens if is_chain else None,
        speculative_eagle_topk=1 if is_chain and "eagle_topk" not in options else None,
        speculative_num_draft_tokens=None if "num_draft_tokens" in options else num_nodes,
    )
    return [*flags, *option_flags(options, "--speculative-")]


def _is_lossy(options: Mapping[str, Any]) -> bool:
    """True if an acceptance threshold is below 1."""
    return any(float(options.get(name, 1.0)) < 1.0 for name in _THRESHOLDS)


def _info_options(info: Mapping[str, Any]) -> Mapping[str, Any]:
    """The acceptance thresholds in SGLang's settings, by option; empty without speculation.

    `info` has the settings by name. A threshold that is not a number is left out.
    """
    if not info.get("speculative_algorithm"):
        return {}
    thresholds = {name: info.get(f"speculative_{name}") for name in _THRESHOLDS}
    return {name: bound for name, bound in thresholds.items() if isinstance(bound, int | float)}


class _Finish(Struct, frozen=True):
    """SGLang's word for why an answer ended."""

    type: str = ""


class _Meta(Struct, frozen=True):
    """SGLang's counts of one answer."""

    finish_reason: _Finish | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    spec_verify_ct: int | None = None
    spec_num_correct_drafts: int | None = None
    spec_num_proposed_drafts: int | None = None
    spec_correct_drafts_histogram: tuple[int, ...] | None = None


class _Chunk(Struct, frozen=True):
    """An event of SGLang's `/generate`."""

    text: str = ""
    output_ids: tuple[int, ...] | None = None
    meta_info: _Meta | None = None
    error: Any = None


_read_chunk = msgspec.json.Decoder(_Chunk).decode


def _body(model: str, ask: stream.ChatRequest) -> dict[str, Any]:
    """The JSON object of a request. `model` is not used: an SGLang server has one model."""
    sampling = stream.sampling_values(ask.request)
    return {
        "input_ids": list(ask.request.prompt_ids),
        "sampling_params": {
            "max_new_tokens": ask.request.max_new_tokens,
            "sampling_seed": sampling.pop("seed"),
            **sampling,
        },
        "stream": True,
    }


def _read(event_json: bytes) -> stream.Event:
    """The event of one `data:` line, which repeats the answer so far."""
    chunk = _read_chunk(event_json)
    meta = chunk.meta_info or _Meta()
    event = stream.Event(
        chunk.text,
        chunk.output_ids,
        error=stream.error_text(chunk.error),
        is_whole=True,
        num_so_far=meta.completion_tokens,
    )
    if meta.finish_reason is None:
        return event
    return replace(
        event,
        finish=meta.finish_reason.type,
        num_tokens=meta.completion_tokens,
        prompt_tokens=meta.prompt_tokens,
        cached_tokens=meta.cached_tokens,
        counts=stream.Counts(
            num_drafts=meta.spec_verify_ct,  # verifications: one per draft
            num_drafted=meta.spec_num_proposed_drafts,
            num_accepted=_num_accepted(meta),
            drafts_by_accepted=meta.spec_correct_drafts_histogram,
        ),
    )


def _num_accepted(meta: _Meta) -> int | None:
    """The number of accepted draft tokens of an answer, or None if SGLang does not report it."""
    if meta.spec_num_correct_drafts is not None:
        return meta.spec_num_correct_drafts
    if meta.spec_verify_ct is None or meta.completion_tokens is None:
        return None
    # The prefill and each verification emit one token that is not a draft token.
    return max(meta.completion_tokens - 1 - meta.spec_verify_ct, 0)


ENGINE = Engine(
    title="SGLang",
    executable=(sys.executable, "-m", "sglang.launch_server"),
    install="`pip install sglang`, in an environment of its own",
    methods=METHODS,
    arguments=_arguments,
    variables={"HF_HUB_OFFLINE": "1"},
    version_keys={"/server_info": "version", "/get_server_info": "version"},  # new path, old path
    known_versions=("0.5", "0.5"),
    packages=("sglang",),
    is_lossy=_is_lossy,
    info_options=_info_options,
    own_flags=("--model", "--dtype", "--config"),
    completes_flags=True,
    protocol=stream.StreamProtocol("sglang", "/generate", _body, _read),
    counters={
        **DRAFT_COUNTERS,
        "spec_verify_calls": "num_verify_calls",
        "generation_tokens": "num_tokens",
        "cached_tokens": "num_cached_tokens",
    },
)
