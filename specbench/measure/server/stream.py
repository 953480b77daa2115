"""A request to a server, the events of its answer, and the protocol that turns one into the other.

Must not know HTTP, nor the forms that servers use (see `protocols`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import Struct

from specbench.measure.base import Message
from specbench.types import Request


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request with the chat that its prompt tokens render, for servers that take no tokens."""

    request: Request
    messages: Sequence[Message]


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts that a server reports for one answer; `accepted_per_step` has drafted steps only."""

    num_drafts: int | None = None
    num_accepted: int | None = None
    accepted_per_step: tuple[int, ...] | None = None
    prefill_s: float | None = None
    decode_s: float | None = None


class Event(Struct, frozen=True, gc=False):
    """One event of a stream: new text, new tokens, and at its end the reason and the counts.

    `finish` is the server's own word for the end. `is_whole` marks a text that repeats those of
    earlier events; token ids do so too if there are as many as `num_so_far`.
    """

    text: str = ""
    token_ids: tuple[int, ...] | None = None
    finish: str | None = None
    num_tokens: int | None = None
    prompt_tokens: int | None = None
    counts: Counts | None = None
    error: str | None = None
    is_whole: bool = False
    num_so_far: int | None = None


class StreamProtocol(Protocol):
    """A form of requests and answers. `path` is below the server's root."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> str: ...
    def body(self, model: str, ask: ChatRequest) -> dict[str, Any]: ...
    def read(self, data: bytes) -> Event:
        """The event of one `data:` line. Raises ValueError if it has another form."""
        ...
