"""Compare the number of prompt tokens that a server read with the number rendered here.

A server that takes chats renders them itself. Its prompt may have a few tokens more or fewer than
ours, such as another BOS or a system text, but the same number in every chat. If more tokens are
missing, the server cut the prompt.
"""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile

from specbench.measure.server.client import Client
from specbench.measure.server.stream import Answer, ChatRequest, RequestFailed, StreamProtocol
from specbench.models.chat import ChatCodec
from specbench.models.templates import Message
from specbench.types import Request

_LONGER_CHAT: Sequence[Message] = (
    {"role": "user", "content": "The ship waits in the harbour for the wind to turn. " * 8},
    {"role": "assistant", "content": "Then it sails."},
    {"role": "user", "content": "Where does it go?"},
)
"""A chat of two turns. Compared with a chat of one turn, it shows the tokens that a turn adds."""
_MOST_PER_TURN = 8
"""The most tokens that a turn may add to the difference. More would depend on the text."""


@dataclass(frozen=True, slots=True)
class PromptOffset:
    """The tokens that a server's prompts have in addition to those of the same prompts rendered
    here.

    A negative number means that the server's prompts have fewer tokens.
    """

    of_chat: int = 0
    """Additional tokens in every chat."""
    per_turn: int = 0
    """Additional tokens for each turn after the first."""
    is_known: bool = False
    """True if both were measured. If not, a difference may have other reasons."""
    sent_prompts: Collection[tuple[int, ...]] = ()
    """The server's latest prompts, as rendered here. It may have their tokens in a cache."""

    def tokens_expected(self, num_sent: int, turn: int) -> int:
        """The server's number of tokens for a whole prompt of `num_sent` tokens here.

        `turn` is the turn of the chat, counted from 0.
        """
        return num_sent + self.of_chat + self.per_turn * turn

    def most_missing(self, num_expected: int) -> float:
        """The most tokens that a whole prompt may lack.

        A server may read the text of a special token as one token, where we send several. The limit
        is 8 tokens, or 1 % of the prompt if that is more. If the offset is unknown, it is 40
        tokens, or 10 %.
        """
        return max(8, 0.01 * num_expected) if self.is_known else max(40, 0.1 * num_expected)


UNKNOWN_OFFSET = PromptOffset()


async def find_offset(
    client: Client,
    protocol: StreamProtocol,
    codec: ChatCodec,
    model: str,
    short_answer: Answer,
    num_sent: int,
) -> PromptOffset:
    """The tokens that a server adds to prompts rendered here, from its counts for two chats.

    The server has already answered a chat of one turn. Now a chat of two turns is sent. The offset
    is unknown if the server fails, or does not count the tokens of these prompts. It is also
    unknown if the second turn adds or lacks more than _MOST_PER_TURN tokens, because then the
    server counts something else.

    Args:
        client: sends requests to the server.
        protocol: the form of requests, which sends chats as messages.
        codec: renders a chat as tokens.
        model: the model's name at the server.
        short_answer: the answer to the chat of one turn, with the server's count of its prompt.
        num_sent: tokens of the chat of one turn, as rendered here.
    """
    request = Request(codec.render(_LONGER_CHAT), max_new_tokens=1)
    num_read = 0  # tokens of the two-turn chat, as the server counts them; 0 without a count
    with suppress(RequestFailed):  # the server gave no answer
        long_answer = await client.complete(protocol, model, ChatRequest(request, _LONGER_CHAT))
        num_read = long_answer.prompt_tokens or 0
    of_chat = (short_answer.prompt_tokens or 0) - num_sent  # tokens added to every chat
    per_turn = num_read - len(request.prompt_ids) - of_chat  # tokens added to the second turn
    if not short_answer.prompt_tokens or not num_read or abs(per_turn) > _MOST_PER_TURN:
        return UNKNOWN_OFFSET
    return PromptOffset(of_chat, per_turn, is_known=True)


def tokens_read(answer: Answer, request: Request, turn: int, offset: PromptOffset) -> int:
    """The number of a prompt's tokens that a server read by its own count, or 0 if unknown.

    A count may leave out tokens that come from a cache. The first case that fits decides:
    - no count, or 1 (all but the last token may come from a cache): unknown;
    - the count lacks at most `offset.most_missing` tokens of the whole prompt: the count;
    - the server reports that exactly the missing tokens came from a cache: all tokens;
    - the missing tokens may be the beginning of an earlier prompt, with its answer: unknown;
    - otherwise, the server cut the prompt: the count.

    Args:
        answer: what the server sent, with its counts of the prompt's tokens (`prompt_tokens`) and
            of those that came from a cache (`cached_tokens`). A count that it did not give is None.
        request: the prompt as rendered here, and the most tokens of an answer.
        turn: the turn of the chat that the prompt ends with, from 0.
        offset: the tokens that the server adds to our prompts, and its latest prompts.
    """
    num_counted = answer.prompt_tokens or 0
    num_expected = offset.tokens_expected(len(request.prompt_ids), turn)  # of the whole prompt
    if num_counted <= 1 < num_expected:  # no count, or all but the last token from a cache
        return 0
    if num_counted >= num_expected - offset.most_missing(num_expected):  # the whole prompt
        return num_counted
    if num_counted + (answer.cached_tokens or 0) == num_expected:  # the rest is from a cache
        return num_expected
    # `most_new` tokens follow the beginning that this prompt shares with an earlier one. After the
    # first turn, the cache may also have the answer to the earlier prompt, with up to
    # `max_new_tokens` tokens. Templates may add a few tokens.
    most_new = num_expected - _num_shared(request.prompt_ids, offset.sent_prompts)
    least_new = most_new - (request.max_new_tokens if turn else 0)
    are_new_counted = least_new - _MOST_PER_TURN <= num_counted <= most_new + _MOST_PER_TURN
    return 0 if are_new_counted else num_counted  # else the server cut the prompt


def _num_shared(prompt: tuple[int, ...], sent_prompts: Collection[tuple[int, ...]]) -> int:
    """The length of the longest beginning that a prompt shares with an earlier prompt."""
    pairs_of_tokens = [  # for each earlier prompt: tokens of both at each position
        zip(prompt, sent_prompt, strict=False)
        for sent_prompt in sent_prompts
        if sent_prompt is not prompt
    ]
    shared_lengths = [
        sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        for pairs in pairs_of_tokens
    ]
    return max(shared_lengths, default=0)


def cut_text(num_read: int, num_sent: int, turn: int, offset: PromptOffset) -> str:
    """The message about a prompt that a server cut, or an empty text if it read the whole prompt.

    `num_read` is the number of prompt tokens that the server read, 0 if unknown. `num_sent` is the
    number of tokens as rendered here. `turn` is the turn of the chat, from 0.
    """
    num_expected = offset.tokens_expected(num_sent, turn)
    if not num_read or num_read >= num_expected - offset.most_missing(num_expected):
        return ""
    num_whole = num_sent if num_read < num_sent else num_expected  # for the message
    return (
        f"The server read {num_read:,} of {num_whole:,} tokens of the prompt: it cut the rest. "
        "Start it with a longer context."
    )
