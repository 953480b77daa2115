"""The forms in which servers take a prompt and stream an answer.

Knows JSON in both directions (`chunks` has what is read). Must not know HTTP, time, or runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specbench.measure.server.chunks import (
    NO_CHOICE,
    NO_USAGE,
    Meta,
    Metrics,
    Speculation,
    Timings,
    read_chunk,
    read_llama,
    read_sglang,
)
from specbench.measure.server.stream import ChatRequest, Counts, Event
from specbench.types import Request

_MOST_SEED = 2**31
"""Servers take seeds of 32 bits or more."""
_UNFILTERED = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Without them, vLLM and SGLang sample as the model's generation_config.json says."""


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
        chunk = read_chunk(data)
        usage = chunk.usage or NO_USAGE
        choice = chunk.choices[0] if chunk.choices else NO_CHOICE
        text = choice.delta.text if choice.delta else choice.text or ""
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
        chunk = read_llama(data)
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
        chunk = read_sglang(data)
        meta = chunk.meta_info or Meta()
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


def _sampling(request: Request) -> dict[str, Any]:
    sampling = request.sampling
    values: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": request.seed % _MOST_SEED,
    }
    return {**values, "top_k": sampling.top_k} if sampling.top_k else values


def _counts(metrics: Metrics) -> Counts:
    speculation = metrics.speculative_decoding or Speculation()
    return Counts(
        num_drafts=speculation.num_spec_steps,
        num_accepted=speculation.num_accepted_draft_tokens,
        accepted_per_step=speculation.per_step_accepted,
        prefill_s=_seconds(metrics.time_to_first_token_ms),
        decode_s=_seconds(metrics.generation_time_ms),
    )


def _llama_counts(timings: Timings) -> Counts:
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
