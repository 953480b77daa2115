"""Make requests and read streams of the OpenAI API, as vLLM 0.32 and many other servers use them.

Fields that only vLLM sends are in vLLM's file in `engines`. Those of TensorRT-LLM are here.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from specbench.measure.server.engines.vllm import AnswerMetrics
from specbench.measure.server.stream import (
    ChatRequest,
    Counts,
    Event,
    StreamProtocol,
    error_text,
    sampling_values,
)

_UNFILTERED: Mapping[str, Any] = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Fields without which vLLM and SGLang sample as the model's generation_config.json says."""


def completions(*, is_chat: bool = False, returns_ids: bool = True) -> StreamProtocol:
    """A protocol of the OpenAI API, which is a form of requests and answers.

    A request goes to `/v1/completions` with the prompt as token ids, or with `is_chat` to
    `/v1/chat/completions` with the prompt as messages. With `returns_ids`, it also asks for the
    answer's token ids, and for sampling from the plain distribution. The fields for this are not
    part of the OpenAI API, and only some servers know them.
    """

    def body(model: str, ask: ChatRequest) -> dict[str, Any]:
        """The fields of a request's JSON.

        `model` is the model's name at the server. `ask` has the prompt as tokens and as messages.
        """
        prompt: dict[str, Any] = {"prompt": list(ask.request.prompt_ids)}
        if is_chat:
            prompt = {"messages": list(ask.messages)}
        return {
            "model": model,
            **prompt,
            "max_tokens": ask.request.max_new_tokens,
            **(_UNFILTERED if returns_ids else {}),  # no min-p or penalty, and by default no top-k
            **sampling_values(ask.request),  # temperature, top_p, top_k and seed
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"return_token_ids": True} if returns_ids else {}),
        }

    # `_read` turns a line of the streamed answer into an event (new text or tokens, counts).
    if is_chat:
        return StreamProtocol(
            "chat", path="/v1/chat/completions", body=body, read=_read, takes_tokens=False
        )
    return StreamProtocol("completions", path="/v1/completions", body=body, read=_read)


class _Delta(Struct, frozen=True):
    """New text of an answer in a chat."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    @property
    def thought(self) -> str:
        """New reasoning. Servers send it under either of two names, or both."""
        return self.reasoning or self.reasoning_content or ""

    @property
    def text(self) -> str:
        """The new text, reasoning included."""
        return self.thought + (self.content or "")


class _DraftCounts(Counts, frozen=True):
    """Counts of an answer's drafts, with TensorRT-LLM's names. The last event's choice has them."""

    num_drafts: int | None = field(default=None, name="num_spec_steps")
    num_drafted: int | None = field(default=None, name="total_draft_tokens")
    num_accepted: int | None = field(default=None, name="total_accepted_draft_tokens")
    drafts_by_accepted: tuple[int, ...] | None = field(default=None, name="acceptance_histogram")


class _Choice(Struct, frozen=True):
    """New text and tokens of an answer, and with the last ones the reason why it ended."""

    index: int | None = None
    text: str | None = None
    delta: _Delta | None = None
    token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    speculative_decoding: _DraftCounts | None = None


class _PromptDetails(Struct, frozen=True):
    """Parts of a prompt's number of tokens."""

    cached_tokens: int | None = None


class _AnswerDetails(Struct, frozen=True):
    """Parts of an answer's number of tokens."""

    reasoning_tokens: int | None = None


class _Usage(Struct, frozen=True):
    """Numbers of tokens, sent once per answer."""

    prompt_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens: int | None = None
    completion_tokens_details: _AnswerDetails | None = None


_NO_CHOICE = _Choice()
_NO_USAGE = _Usage()


class _Chunk(Struct, frozen=True):
    """An event of the OpenAI API."""

    choices: tuple[_Choice, ...] | None = None
    usage: _Usage | None = None
    metrics: AnswerMetrics | None = None
    error: Any = None


_read_chunk = msgspec.json.Decoder(_Chunk).decode


def _read(event_json: bytes) -> Event:
    """The event of one `data:` line, in JSON: new text and tokens, or counts.

    Fields that the server leaves out are None, or 0 for the two numbers about reasoning. Raises
    ValueError if the JSON has another form.
    """
    chunk = _read_chunk(event_json)
    usage = chunk.usage or _NO_USAGE  # numbers of tokens
    prompt_details = usage.prompt_tokens_details
    answer_details = usage.completion_tokens_details
    # Only one answer was asked for: it has the index 0, or no index.
    choices = (choice for choice in chunk.choices or () if choice.index in (None, 0))
    choice = next(choices, _NO_CHOICE)
    return Event(
        text=choice.delta.text if choice.delta else choice.text or "",  # `delta` is for chats
        token_ids=choice.token_ids,
        finish=choice.finish_reason,
        num_tokens=usage.completion_tokens,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=prompt_details.cached_tokens if prompt_details else None,
        counts=chunk.metrics.counts() if chunk.metrics else choice.speculative_decoding,
        error=error_text(chunk.error),
        num_reasoning=len(choice.delta.thought) if choice.delta else 0,  # characters
        reasoning_tokens=(answer_details and answer_details.reasoning_tokens) or 0,
    )
