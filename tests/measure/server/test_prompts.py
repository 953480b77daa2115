"""The prompt that a server read: offsets of its rendering, cuts, and missing counts."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

import pytest
from msgspec import UnsetType

from specbench.measure.server.client import Client
from specbench.measure.server.find import find_server
from specbench.measure.server.prompt_counts import UNKNOWN_OFFSET, PromptOffset
from specbench.measure.server.records import make_record
from specbench.measure.server.stream import Answer, Counts, RequestFailed
from specbench.models.cards import find_model
from specbench.models.templates import Message
from specbench.types import RecordKey, Request
from tests.measure.server.test_backend import Letters
from tests.support.stub_server import Stub, serving


class Spelled(Letters):
    """A codec with a token for each letter of a chat, and two tokens around each message."""

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return (1,) * num_letters(messages)


def num_letters(messages: Sequence[Mapping[str, str]]) -> int:
    return sum(len(message["content"]) + 2 for message in messages)


@pytest.mark.parametrize(
    ("count", "offset"),
    [
        (num_letters, PromptOffset(0, 0, is_known=True)),
        (lambda chat: num_letters(chat) + 1, PromptOffset(1, 0, is_known=True)),
        (lambda chat: num_letters(chat) - 1, PromptOffset(-1, 0, is_known=True)),
        (lambda chat: num_letters(chat) + 95, PromptOffset(95, 0, is_known=True)),
        (lambda chat: num_letters(chat) + len(chat), PromptOffset(1, 2, is_known=True)),
        (lambda chat: 14, UNKNOWN_OFFSET),  # counts nothing
        (lambda chat: 0, UNKNOWN_OFFSET),
        (lambda chat: min(num_letters(chat), 64), UNKNOWN_OFFSET),  # cuts already here
    ],
)
def test_two_short_chats_reveal_a_servers_offset(
    count: Callable[[Sequence[Mapping[str, str]]], int], offset: PromptOffset
) -> None:
    async def find(root: str) -> PromptOffset:
        async with Client(root, request_s=5) as client:
            server = await find_server(client, find_model("tiny"), Spelled(), served_model="")
            return server.offset

    with serving(Stub("plain", count=count)) as stub:
        assert asyncio.run(find(stub.root)) == offset


def reported(
    counted: int | None, cached: int | None, sent: int, turn: int, offset: PromptOffset | None
) -> int | UnsetType:
    """The prompt tokens that a record reports. Without an offset, the prompt was sent as tokens."""
    answer = Answer(
        "fgh", (5, 6, 7, 2), "eos", 4, counted, Counts(), 0.0, (1.0,), cached_tokens=cached
    )
    record = make_record(
        RecordKey("sps", 0.0, "chat", "chat/1", turn, 0, 1),
        Request((1,) * sent, 16),
        answer,
        Letters(),
        began=0.0,
        is_prompt_sent=offset is None,
        offset=offset or UNKNOWN_OFFSET,
    )
    assert record.prompt_tokens == sent and record.serving is not None
    return record.serving.reported_prompt_tokens


SYSTEM = PromptOffset(30, 2, is_known=True)
LATER = PromptOffset(0, 0, is_known=True, sent_prompts=((1,) * 150, (7, 8)))
FEWER = PromptOffset(-1, 0, is_known=True)


@pytest.mark.parametrize(
    ("counted", "cached", "sent", "turn", "offset", "count"),
    [
        (230, None, 200, 0, SYSTEM, 230),
        (232, 180, 200, 1, SYSTEM, 232),  # all counted, some of them from a cache
        (52, 180, 200, 1, SYSTEM, 232),  # without those of the cache
        (45, None, 200, 0, LATER, 0),  # without what it shares with an earlier prompt
        (36, None, 200, 1, LATER, 0),  # and without the answer to that
        (199, None, 200, 1, LATER, 199),
        (224, None, 200, 0, SYSTEM, 224),  # special tokens in a text
        (250, None, 200, 0, SYSTEM, 250),
        (199, None, 200, 3, FEWER, 199),
        (170, None, 200, 0, UNKNOWN_OFFSET, 170),
        (None, None, 200, 0, FEWER, 0),
        (0, None, 200, 0, FEWER, 0),
        (1, None, 200, 0, FEWER, 0),  # all but the last from a cache
        (200, None, 200, 0, None, 200),
        (None, None, 200, 0, None, 0),
    ],
)
def test_an_honest_count_is_kept(
    counted: int | None,
    cached: int | None,
    sent: int,
    turn: int,
    offset: PromptOffset | None,
    count: int,
) -> None:
    assert reported(counted, cached, sent, turn, offset) == count


@pytest.mark.parametrize(
    ("counted", "sent", "turn", "offset", "message"),
    [
        (1024, 3811, 0, FEWER, "read 1,024 of 3,811 tokens of the prompt: it cut the rest"),
        (1024, 3811, 0, UNKNOWN_OFFSET, "read 1,024 of 3,811 tokens"),
        (2048, 2040, 0, SYSTEM, "read 2,048 of 2,070 tokens"),
        (90, 200, 1, LATER, "read 90 of 200 tokens"),
        (36, 200, 0, LATER, "read 36 of 200 tokens"),
        (199, 200, 0, None, "counted 199 tokens of the prompt, but 200 were sent"),
        (201, 200, 0, None, "counted 201 tokens of the prompt, but 200 were sent"),
    ],
)
def test_a_prompt_that_was_cut_fails_with_both_numbers(
    counted: int, sent: int, turn: int, offset: PromptOffset | None, message: str
) -> None:
    with pytest.raises(RequestFailed, match=message):
        reported(counted, None, sent, turn, offset)
