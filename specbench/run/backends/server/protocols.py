"""The forms in which servers take a prompt and stream an answer.

Knows JSON in both directions. Must not know HTTP, time, or what a run is. Shapes of the chunks as
served by vLLM 0.32, llama.cpp b11434 and SGLang 0.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from specbench.run.backends.server.stream import ChatRequest, Counts, Event
from specbench.types import Request

_MOST_SEED = 2**31
"""Servers take seeds of 32 bits or more."""
_UNFILTERED = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Without them, vLLM and SGLang sample as the model's generation_config.json says."""


class _Delta(Struct, frozen=True):
    content: str | None = None
    reasoning_content: str | None = None


class _Choice(Struct, frozen=True):
    text: str | None = None
    delta: _Delta | None = None
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None


class _Usage(Struct, frozen=True):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


_NO_CHOICE, _NO_USAGE = _Choice(), _Usage()


class _Speculation(Struct, frozen=True):
    num_spec_steps: int | None = None
    num_accepted_draft_tokens: int | None = None
    per_step_accepted: tuple[int, ...] | None = None


class _Metrics(Struct, frozen=True):
    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    speculative_decoding: _Speculation | None = None


class _Chunk(Struct, frozen=True):
    choices: tuple[_Choice, ...] = ()
    usage: _Usage | None = None
    metrics: _Metrics | None = None
    error: Any = None


class _Timings(Struct, frozen=True):
    prompt_ms: float | None = None
    predicted_ms: float | None = None
    draft_n_accepted: int | None = None


class _LlamaChunk(Struct, frozen=True):
    content: str = ""
    tokens: tuple[int, ...] = ()
    stop: bool = False
    stop_type: str = ""
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    timings: _Timings | None = None
    error: Any = None


class _Finish(Struct, frozen=True):
    type: str = ""
    message: str | None = None


class _Meta(Struct, frozen=True):
    finish_reason: _Finish | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    spec_verify_ct: int | None = None
    spec_num_correct_drafts: int | None = None


class _SglangChunk(Struct, frozen=True):
    text: str = ""
    output_ids: tuple[int, ...] | None = None
    meta_info: _Meta | None = None
    error: Any = None


@dataclass(frozen=True, slots=True)
class Completions:
    """`/v1/completions` with the prompt as token ids, or `/v1/chat/completions` with messages.

    `returns_ids` also asks for the answer's token ids, and for sampling from the plain
    distribution. Both are no part of the OpenAI API, and only some servers know them.
    """

    is_chat: bool = False
    returns_ids: bool = True

    @property
    def name(self) -> str:
        return "chat" if self.is_chat else "completions"

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.is_chat else "/v1/completions"

    def body(self, model: str, ask: ChatRequest) -> dict[str, Any]:
        prompt: dict[str, Any] = (
            {"messages": list(ask.messages)}
            if self.is_chat
            else {"prompt": list(ask.request.prompt_ids)}
        )
        return {
            "model": model,
            **prompt,
            "max_tokens": ask.request.max_new_tokens,
            **(_UNFILTERED if self.returns_ids else {}),
            **_sampling(ask.request),
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"return_token_ids": True} if self.returns_ids else {}),
        }

    def read(self, data: bytes) -> Event:
        chunk = _read_chunk(data)
        usage = chunk.usage or _NO_USAGE
        choice = chunk.choices[0] if chunk.choices else _NO_CHOICE
        text = choice.text or ""
        if choice.delta:
            text = (choice.delta.reasoning_content or "") + (choice.delta.content or "")
        return Event(
            text,
            choice.token_ids,
            finish=choice.finish_reason,
            num_tokens=usage.completion_tokens,
            prompt_tokens=usage.prompt_tokens,
            counts=_counts(chunk.metrics) if chunk.metrics else None,
            error=None if chunk.error is None else _error(chunk.error),
        )


@dataclass(frozen=True, slots=True)
class Llamacpp:
    """llama.cpp's own `/completion`, which returns token ids and the counts of each answer."""

    name: str = "llamacpp"
    path: str = "/completion"

    def body(self, model: str, ask: ChatRequest) -> dict[str, Any]:
        return {
            "prompt": list(ask.request.prompt_ids),
            "n_predict": ask.request.max_new_tokens,
            "top_k": 0,
            "min_p": 0.0,
            **_sampling(ask.request),
            "stream": True,
            "return_tokens": True,
            "cache_prompt": False,
        }

    def read(self, data: bytes) -> Event:
        chunk = _read_llama(data)
        timings = chunk.timings if chunk.stop else None
        return Event(
            chunk.content,
            chunk.tokens,
            finish=chunk.stop_type or ("none" if chunk.stop else None),
            num_tokens=chunk.tokens_predicted if chunk.stop else None,
            prompt_tokens=chunk.tokens_evaluated if chunk.stop else None,
            counts=_llama_counts(timings) if timings else None,
            error=_error(chunk.error),
        )


@dataclass(frozen=True, slots=True)
class Sglang:
    """SGLang's own `/generate`, which returns token ids and the counts of each answer."""

    name: str = "sglang"
    path: str = "/generate"

    def body(self, model: str, ask: ChatRequest) -> dict[str, Any]:
        sampling = _sampling(ask.request)
        return {
            "input_ids": list(ask.request.prompt_ids),
            "sampling_params": {
                "max_new_tokens": ask.request.max_new_tokens,
                "sampling_seed": sampling.pop("seed"),
                **sampling,
            },
            "stream": True,
        }

    def read(self, data: bytes) -> Event:
        chunk = _read_sglang(data)
        meta = chunk.meta_info or _Meta()
        finish = meta.finish_reason
        verified, accepted = meta.spec_verify_ct, meta.spec_num_correct_drafts
        if accepted is None and verified is not None and meta.completion_tokens is not None:
            accepted = max(meta.completion_tokens - 1 - verified, 0)
        return Event(
            chunk.text,
            chunk.output_ids,
            finish=finish.type if finish else None,
            num_tokens=meta.completion_tokens if finish else None,
            prompt_tokens=meta.prompt_tokens if finish else None,
            counts=Counts(num_drafts=verified, num_accepted=accepted) if finish else None,
            error=_error(chunk.error),
            is_whole=True,
            num_so_far=meta.completion_tokens,
        )


_read_chunk = msgspec.json.Decoder(_Chunk).decode
_read_llama = msgspec.json.Decoder(_LlamaChunk).decode
_read_sglang = msgspec.json.Decoder(_SglangChunk).decode


def _sampling(request: Request) -> dict[str, Any]:
    sampling = request.sampling
    values: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": request.seed % _MOST_SEED,
    }
    return {**values, "top_k": sampling.top_k} if sampling.top_k else values


def _counts(metrics: _Metrics) -> Counts:
    speculation = metrics.speculative_decoding or _Speculation()
    return Counts(
        num_drafts=speculation.num_spec_steps,
        num_accepted=speculation.num_accepted_draft_tokens,
        accepted_per_step=speculation.per_step_accepted,
        prefill_s=_seconds(metrics.time_to_first_token_ms),
        decode_s=_seconds(metrics.generation_time_ms),
    )


def _llama_counts(timings: _Timings) -> Counts:
    return Counts(
        num_accepted=timings.draft_n_accepted,
        prefill_s=_seconds(timings.prompt_ms),
        decode_s=_seconds(timings.predicted_ms),
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None or milliseconds < 0 else milliseconds / 1e3


def _error(error: Any) -> str | None:
    """The text of an error event; servers send a string or an object with a message."""
    if error is None:
        return None
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message or error)
