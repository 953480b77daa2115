"""Make requests from prompts, with chats and sampling. Find where an answer's tokens end."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

from specbench.errors import SpecbenchError, UserError
from specbench.measure.base import Plan, Work, loads_of_run
from specbench.measure.spec import RunSpec
from specbench.models.chat import ChatCodec
from specbench.models.templates import Message
from specbench.types import Record, RecordKey, Request, RequestKey, seed_of

TOKEN_HINT = "Leave the prompt out, or use a chat template, which encodes the token as text."
"""The hint for a prompt with a token that the model cannot read."""


def make_request(work: Work, prompt_ids: tuple[int, ...], key: RequestKey) -> Request:
    """The request for an answer to a rendered chat.

    `prompt_ids` are the tokens of the chat; `key` names the prompt, turn, pass and temperature.

    Raises:
        UserError: the model's embedding has no row for one of its tokens.
    """
    if problem := work.codec.beyond_text(prompt_ids):
        raise UserError(f"Prompt {key.sample_id} has {problem}.", TOKEN_HINT)
    return Request(
        prompt_ids,
        work.max_new_tokens,
        sampling=work.spec.sampling(key.temperature),
        eos_ids=work.codec.eos_ids,
        seed=seed_of(work.spec.seed, key),
    )


class _ChatSize(NamedTuple):
    """A rendered chat, and the most new tokens of its answers."""

    prompt_ids: tuple[int, ...]
    max_new_tokens: int

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + self.max_new_tokens


def warm_up_requests(plan: Plan) -> list[Request]:
    """Two requests per temperature: the first turn of the first prompt, and the longest possible
    chat.

    A backend warms up with them before it measures the plan's run, so that kernels are loaded. A
    server answers all of them. The engine completes only the first prompt, and takes temperatures
    and sizes from the others. Prompts with tokens that the model cannot read are skipped, since
    their samples will fail. At least one prompt can be read, because other runs are refused.
    """
    codec = plan.setup.codec
    budget = plan.max_new_tokens  # of an answer
    # Pairs of the turns of a prompt, and the tokens of all turns as a single message. This is about
    # the length of the chat without answers; `whole_chats` adds the budget of an answer per turn.
    chats = [
        (prompt.turns, codec.render([user(" ".join(prompt.turns))]))
        for prompt_set in plan.prompt_sets
        for prompt in prompt_set.prompts
    ]
    # `beyond_text` is empty if the model can read all tokens.
    readable_chats = [(turns, ids) for turns, ids in chats if not codec.beyond_text(ids)]
    first_turns, _ = readable_chats[0]
    usual = _ChatSize(codec.render([user(first_turns[0])]), budget)
    whole_chats = [_ChatSize(ids, budget * len(turns)) for turns, ids in readable_chats]
    longest = max(whole_chats, key=lambda chat: chat.num_tokens)
    return [
        Request(chat.prompt_ids, chat.max_new_tokens, plan.spec.sampling(temperature))
        for temperature in plan.spec.temperatures
        for chat in (usual, longest)
    ]


def reply_key(spec: RunSpec, first: str, key: RecordKey) -> RecordKey:
    """The key of the answer with which a chat continues after the turn of `key`.

    With `history` "shared", it is an answer of the method `first`. Servers answer one method after
    the other, so on servers it is the answer of the first method in the first pass at the first
    load, which comes before all others. With `history` "own", it is the method's answer.
    """
    if spec.history == "own":
        return key
    if spec.backend != "server":
        return replace(key, method=first)
    load = loads_of_run(spec)[0]
    return replace(
        key, method=first, repeat=0, concurrency=load.concurrency, request_rate=load.request_rate
    )


def whole_reply(record: Record) -> Message:
    """An answer as a message of the chat, with its reasoning. Older runs sent it back like this."""
    return {"role": "assistant", "content": record.text}


def make_chat(
    turns: Sequence[str],
    replies: Sequence[Record],
    message_of: Callable[[Record], Message] = whole_reply,
) -> list[Message]:
    """The chat up to the last of these turns, with a reply after each earlier turn.

    `turns` are the user's texts. `replies[turn]` is the record of the answer to a turn.
    `message_of` turns a record into a message: a dict with the keys "role" and "content".

    Raises:
        SpecbenchError: a reply is missing or failed.
    """
    messages: list[Message] = []
    for turn, user_text in enumerate(turns):
        messages.append(user(user_text))
        if turn < len(turns) - 1:
            # The chat cannot continue without the answer to this turn.
            if turn >= len(replies):
                raise SpecbenchError(f"Turn {turn + 1}, which this turn follows, has no answer.")
            if not replies[turn].is_ok:
                raise SpecbenchError(f"Turn {turn + 1}, which this turn follows, has failed.")
            messages.append(message_of(replies[turn]))
    return messages


def user(text: str) -> Message:
    """A message of the user."""
    return {"role": "user", "content": text}


_WINDOW = 8
"""The number of earlier tokens that may change a token's text. A character has at most four bytes,
so four tokens would be enough.
"""


def token_ends(codec: ChatCodec, token_ids: Sequence[int], text: str) -> tuple[int, ...]:
    """The position in an answer's text at which each of its tokens ends [tokens].

    A position is a number of characters from the start of `text`, which is the decoded text of
    `token_ids`. A character whose bytes are spread over several tokens ends with the last of these
    tokens. Short windows of tokens are decoded, because decoding the whole text for every token
    would take longer than the answer did.
    """

    def num_characters(window_ids: Sequence[int]) -> int:
        """The number of whole characters in the text of some tokens."""
        if not window_ids:
            return 0
        # The bytes of an unfinished character decode to replacement characters.
        return len(codec.text(window_ids).rstrip("\N{REPLACEMENT CHARACTER}"))

    num_added = []  # number of characters that each token adds to the text [tokens]
    for i in range(len(token_ids)):
        # Token i, and enough tokens before it to complete a character. They also keep its leading
        # space, which a decoder may drop at the start of a text.
        window_ids = token_ids[max(0, i - _WINDOW) : i + 1]
        num_added.append(num_characters(window_ids) - num_characters(window_ids[:-1]))
    ends = [min(end, len(text)) for end in accumulate(num_added)]
    if ends:  # an unfinished character at the end of the text belongs to the last token
        ends[-1] = len(text)
    # No token may end after a later token: each end becomes the minimum of itself and all later.
    smallest_from_back = accumulate(reversed(ends), min)
    return tuple(reversed([*smallest_from_back]))
