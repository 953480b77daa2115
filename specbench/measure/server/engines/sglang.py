"""SGLang: `python -m sglang.launch_server`. Flags of version 0.5."""

import sys
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from specbench.measure.server import stream
from specbench.measure.server.engine import DRAFT_COUNTERS, METHODS, Engine, Launch, set_flags

_ALGORITHMS = {"sps": "STANDALONE", "eagle": "EAGLE", "eagle3": "EAGLE3", "ngram": "NGRAM"}
"""SGLang's names of the methods."""


def _arguments(launch: Launch) -> list[str]:
    """Flags of a server, which drafts chains with a method."""
    is_chain = launch.weights is not None
    return set_flags(
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
        speculative_algorithm=_ALGORITHMS.get(launch.method),
        speculative_draft_model_path=launch.weights,
        speculative_num_steps=launch.num_tokens if is_chain else None,
        speculative_eagle_topk=1 if is_chain else None,
        speculative_num_draft_tokens=launch.num_tokens + 1 if launch.method in _ALGORITHMS else "",
    )


class _Finish(Struct, frozen=True):
    """SGLang's reason of an answer's end."""

    type: str = ""


class _Meta(Struct, frozen=True):
    """SGLang's counts of one answer."""

    finish_reason: _Finish | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    spec_verify_ct: int | None = None
    spec_num_correct_drafts: int | None = None


class _Chunk(Struct, frozen=True):
    """An event of SGLang's `/generate`."""

    text: str = ""
    output_ids: tuple[int, ...] | None = None
    meta_info: _Meta | None = None
    error: Any = None


_read_chunk = msgspec.json.Decoder(_Chunk).decode


def _body(model: str, ask: stream.ChatRequest) -> dict[str, Any]:
    """The JSON of a request."""
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


def _read(data: bytes) -> stream.Event:
    """The event of one `data:` line, which repeats the answer so far."""
    chunk = _read_chunk(data)
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
        counts=stream.Counts(num_drafts=meta.spec_verify_ct, num_accepted=_num_accepted(meta)),
    )


def _num_accepted(meta: _Meta) -> int | None:
    """Accepted draft tokens of an answer; None if SGLang does not say."""
    if meta.spec_num_correct_drafts is not None:
        return meta.spec_num_correct_drafts
    if meta.spec_verify_ct is None or meta.completion_tokens is None:
        return None
    # Prefill and each verification emit one token that is not a draft.
    return max(meta.completion_tokens - 1 - meta.spec_verify_ct, 0)


ENGINE = Engine(
    title="SGLang",
    executable=(sys.executable, "-m", "sglang.launch_server"),
    install="`pip install sglang`, in an environment of its own",
    methods=METHODS,
    arguments=_arguments,
    variables={"HF_HUB_OFFLINE": "1"},
    version=("/get_server_info", "version"),
    own_flags=("--model", "--dtype", "--config"),
    protocol=stream.StreamProtocol("sglang", "/generate", _body, _read),
    counters={
        **DRAFT_COUNTERS,
        "spec_verify_calls": "num_verify_calls",
        "generation_tokens": "num_tokens",
        "cached_tokens": "num_cached_tokens",
    },
)
