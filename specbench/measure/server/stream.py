"""Define the form of the requests that servers take, and of their answers.

A `StreamProtocol` turns requests into JSON, and JSON into events. Those of the OpenAI API are in
`openai_api`; an engine's own protocol is in its file in `engines`. `answer_reader` puts the events
of an answer together.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from specbench.errors import SpecbenchError
from specbench.measure.server.address import without_key
from specbench.models.templates import Message
from specbench.types import Request

_MOST_SEED = 2**31
"""Seeds that are sent are below this number, since some servers take only 32 bits."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request with its prompt as tokens, and as a chat for servers that take no tokens."""

    request: Request
    """The prompt as tokens, with the sampling and the most new tokens."""
    messages: Sequence[Message]
    """The prompt as a chat."""


class Counts(Struct, frozen=True):
    """Counts and times that a server reports for one answer; None if it does not report them."""

    num_drafts: int | None = None
    """Number of steps with a draft. Some servers count steps without a draft, too."""
    num_drafted: int | None = None
    """Number of draft tokens of all steps."""
    num_accepted: int | None = None
    """Number of draft tokens that were accepted."""
    accepted_per_step: tuple[int, ...] | None = None
    """Accepted draft tokens of each step [steps]. Some servers list steps without a draft, too."""
    drafted_per_step: tuple[int, ...] | None = None
    """Draft tokens of the same steps [steps]."""
    drafts_by_accepted: tuple[int, ...] | None = None
    """Numbers of drafts of which 0, 1, 2, ... tokens were accepted."""
    prefill_ms: float | None = None
    """Milliseconds up to the first token."""
    decode_ms: float | None = None
    """Milliseconds from the first token to the last."""


class Event(Struct, frozen=True, gc=False):
    """One event of a stream: new text or tokens. The last also has the finish reason and counts."""

    text: str = ""
    """New text, or all text so far if `is_whole`."""
    token_ids: tuple[int, ...] | None = None
    """The ids of new tokens; None if the server sends none."""
    finish: str | None = None
    """The server's word for why the answer ended; None before the end."""
    num_tokens: int | None = None
    """Tokens of the answer, as the server counts them."""
    prompt_tokens: int | None = None
    """Tokens of the prompt, as the server counts them."""
    cached_tokens: int | None = None
    """Tokens of the prompt that the server had in a cache."""
    counts: Counts | None = None
    """Counts and times of the answer."""
    error: str | None = None
    """The message of an error event."""
    is_whole: bool = False
    """True if the text includes the text of all earlier events."""
    num_reasoning: int = 0
    """Number of characters at the beginning of the text that are the model's reasoning."""
    reasoning_tokens: int = 0
    """Tokens of reasoning that the server counted, whether it sent them or not; 0 if none."""
    num_so_far: int | None = None
    """Number of the answer's tokens so far. If `token_ids` has as many, it has all of them."""


@dataclass(frozen=True, slots=True)
class StreamProtocol:
    """A form of requests and answers."""

    name: str
    """Name in the header of a run."""
    path: str
    """Path of requests, below the server's root."""
    body: Callable[[str, ChatRequest], dict[str, Any]]
    """Makes the JSON object of a request from the model's name and the request."""
    read: Callable[[bytes], Event]
    """Makes an event from the JSON of a `data:` line. Raises ValueError if it has another form."""
    takes_tokens: bool = True
    """True if prompts are sent as tokens, False if they are sent as messages of a chat."""
    keeps_connections: bool = True
    """False for servers that drop connections although they said they would keep them."""


class RequestFailed(SpecbenchError):
    """The reason why a request got no answer. The user's key is removed from it.

    `is_refused` is True if the server did not begin the request, `wants_key` if it asks for a key.
    `retry_after_s` has the seconds that the server asks us to wait, or None.
    """

    def __init__(
        self,
        reason: str,
        *,
        is_refused: bool = False,
        wants_key: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(without_key(reason))
        self.is_refused = is_refused
        self.wants_key = wants_key
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer. Times are of `perf_counter`, in seconds."""

    text: str
    """The text as the server sent it."""
    token_ids: tuple[int, ...] | None
    """The tokens as the server sent them; None if it sends text only."""
    stop: str
    """The reason why the answer ended: "eos" or "budget"."""
    num_tokens: int | None
    """Tokens as the server counted them; None if it did not."""
    prompt_tokens: int | None
    """Tokens of the prompt as the server counted them; None if it did not."""
    counts: Counts
    """Counts and times that the server reported."""
    sent: float
    """Time at which the request was first sent."""
    arrivals: tuple[float, ...]
    """Times at which text, tokens or the end token arrived [arrivals]. Tokens that arrive
    together are one arrival.
    """
    num_retries: int = 0
    """Number of attempts that were refused or got no connection."""
    num_reasoning: int = 0
    """Number of characters at the beginning of the text that are the model's reasoning."""
    reasoning_tokens: int = 0
    """Tokens of reasoning that the server counted, whether it sent them or not; 0 if none."""
    cached_tokens: int | None = None
    """Tokens of the prompt that the server had in a cache; None if it does not say."""


def sampling_values(request: Request) -> dict[str, Any]:
    """The sampling and the seed of a request, by the names that servers use."""
    sampling = request.sampling
    values: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": request.seed % _MOST_SEED,
    }
    if sampling.top_k:  # 0 keeps all tokens
        values["top_k"] = sampling.top_k
    return values


def error_text(error: Any) -> str | None:
    """The text of an error event, in which servers send a string or an object with a message."""
    if error is None:
        return None
    message = error.get("message") if isinstance(error, Mapping) else error
    return str(message or error)
