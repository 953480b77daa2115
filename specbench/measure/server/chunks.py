"""JSON of the events that servers stream: the fields that are read, and no others.

Shapes as served by vLLM 0.32, llama.cpp b11434 and SGLang 0.5.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct


class Delta(Struct, frozen=True):
    """New text of a chat."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    @property
    def text(self) -> str:
        """The new text. Servers send the model's reasoning under either of two names, or both."""
        return (self.reasoning or self.reasoning_content or "") + (self.content or "")


class Choice(Struct, frozen=True):
    """New text and tokens of an answer, and the reason of its end."""

    text: str | None = None
    delta: Delta | None = None
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None


class Usage(Struct, frozen=True):
    """Numbers of tokens, sent once."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None


NO_CHOICE, NO_USAGE = Choice(), Usage()


class Speculation(Struct, frozen=True):
    """vLLM's counts of one answer's drafts."""

    num_spec_steps: int | None = None
    num_accepted_draft_tokens: int | None = None
    per_step_accepted: tuple[int, ...] | None = None


class Metrics(Struct, frozen=True):
    """vLLM's times and counts of one answer, in milliseconds."""

    time_to_first_token_ms: float | None = None
    generation_time_ms: float | None = None
    speculative_decoding: Speculation | None = None


class Chunk(Struct, frozen=True):
    """An event of the OpenAI API."""

    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    metrics: Metrics | None = None
    error: Any = None


class Timings(Struct, frozen=True):
    """llama.cpp's times and counts of one answer, in milliseconds."""

    prompt_ms: float | None = None
    predicted_ms: float | None = None
    draft_n_accepted: int | None = None


class LlamaChunk(Struct, frozen=True):
    """An event of llama.cpp's `/completion`."""

    content: str = ""
    tokens: tuple[int, ...] = ()
    stop: bool = False
    stop_type: str = ""
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    timings: Timings | None = None
    error: Any = None


class Finish(Struct, frozen=True):
    """SGLang's reason of an answer's end."""

    type: str = ""
    message: str | None = None


class Meta(Struct, frozen=True):
    """SGLang's counts of one answer."""

    finish_reason: Finish | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    spec_verify_ct: int | None = None
    spec_num_correct_drafts: int | None = None


class SglangChunk(Struct, frozen=True):
    """An event of SGLang's `/generate`."""

    text: str = ""
    output_ids: tuple[int, ...] | None = None
    meta_info: Meta | None = None
    error: Any = None


read_chunk = msgspec.json.Decoder(Chunk).decode
read_llama = msgspec.json.Decoder(LlamaChunk).decode
read_sglang = msgspec.json.Decoder(SglangChunk).decode
