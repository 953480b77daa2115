"""Check the prompt, the tokens and the counts of drafts of a server's answer."""

import math
from collections.abc import Iterator, Sequence

from specbench.measure.server.prompt_counts import PromptOffset, cut_text
from specbench.measure.server.stream import Answer, Counts
from specbench.models.chat import ChatCodec
from specbench.types import Request

_MOST_TOKENS_OFF = 3
"""The number of tokens by which a server's count may differ from the tokens of its text. A text may
be tokenised into other tokens than it was made of, but not into many more or fewer.
"""
_MOST_SHARE_OFF = 0.2
"""The share of a long text's tokens by which the server's count may differ from them."""
_COUNTS = "The counts of the server contradict each other"
"""The beginning of a sentence about contradictory counts."""
LONGEST_DRAFT = 1024
"""The most tokens of a draft. The last step may accept as many beyond the end of an answer."""


def prompt_problems(
    num_read: int, num_sent: int, turn: int, offset: PromptOffset, *, is_sent: bool
) -> Iterator[str]:
    """Describe how the prompt that a server read differs from ours, if this is an error.

    `num_read` is the number of prompt tokens that the server read (see `tokens_read`), 0 if
    unknown. `num_sent` is the number of our prompt's tokens. If they were sent as tokens
    (`is_sent`), both must be equal. `turn` is the turn of the chat, and `offset` has the tokens
    that the server adds to our prompts.
    """
    if is_sent and num_read and num_read != num_sent:
        yield (
            f"The server counted {num_read} tokens of the prompt, but {num_sent} were sent: it "
            "changed the prompt."
        )
    if text := cut_text(num_read, num_sent, turn, offset):
        yield text


def has_reasoning(answer: Answer) -> bool:
    """True if the server sent reasoning, or counted some."""
    return answer.num_reasoning > 0 or answer.reasoning_tokens > 0


def answer_problems(
    request: Request,
    answer: Answer,
    codec: ChatCodec,
    token_ids: tuple[int, ...],
    num_tokens: int,
) -> Iterator[str]:
    """Describe in a sentence each difference between an answer and what was sent or asked for.

    Args:
        request: what was sent. It has the most tokens of an answer (`max_new_tokens`).
        answer: what the server sent. `answer.token_ids` is None if the server sent text only.
            `answer.num_tokens` is the server's own count, or None if it sent no count.
            `answer.num_reasoning` is the number of characters of reasoning that it sent before the
            text, and `answer.reasoning_tokens` its count of the reasoning's tokens; 0 without any.
        codec: has the size of the model's vocabulary (`vocab_size`); 0 if unknown.
        token_ids: the tokens that the server sent, or the tokens of its text if it sent text only.
        num_tokens: the number of the answer's tokens. If the server sent text only, this is its own
            count (if it sent one), which may differ from the length of `token_ids`.
    """
    if answer.num_tokens is not None and answer.num_tokens != num_tokens:
        yield f"The server counted {answer.num_tokens} tokens and sent {num_tokens}."
    # Tokens that were counted but are not in the text; negative if the text has more tokens.
    num_hidden = num_tokens - len(token_ids)
    # A text may be tokenised into a few tokens more or fewer than it was made of: up to
    # _MOST_TOKENS_OFF tokens, or _MOST_SHARE_OFF of its tokens if that is more.
    most_off = max(_MOST_TOKENS_OFF, _MOST_SHARE_OFF * len(token_ids))
    # With reasoning, more tokens may be hidden. If the server sent the text of the reasoning, only
    # the marks around that text (such as "<think>") are hidden, and there may be any number of
    # them. Else all tokens of the reasoning are hidden, as many as the server counted.
    most_hidden = max(0, answer.reasoning_tokens) + most_off  # a wrong server may count below 0
    if answer.num_reasoning > 0:
        most_hidden = math.inf
    if answer.token_ids is None and not -most_off <= num_hidden <= most_hidden:
        yield f"The server counted {num_tokens} tokens, but its text has about {len(token_ids)}."
    if num_tokens > request.max_new_tokens:
        yield (
            f"The server sent {num_tokens} tokens, more than the {request.max_new_tokens} that it "
            "was asked for."
        )
    for token in token_ids:  # an unknown size of the vocabulary allows any id of 0 or more
        if not 0 <= token < (codec.vocab_size or token + 1):
            yield f"The server sent token {token}, but the model has {codec.vocab_size} tokens."


def contradictions(counts: Counts, num_tokens: int, draft_length: int) -> Iterator[str]:
    """Describe in a sentence each contradiction in the counts of an answer's drafts.

    Args:
        counts: the server's counts for this answer; a count that it does not report is None.
        num_tokens: number of the answer's tokens.
        draft_length: the most tokens of a draft; 0 if unknown.
    """
    # The number of steps with a draft. A server that lists steps without a draft counts these too.
    num_drafts = counts.num_drafts
    num_drafted = counts.num_drafted  # draft tokens of all steps
    per_step = counts.accepted_per_step  # accepted draft tokens of each listed step [steps]
    # Accepted draft tokens, in the list if the total is not reported; 0 without both.
    num_accepted = sum(per_step or ()) if counts.num_accepted is None else counts.num_accepted
    # The most draft tokens that can be accepted: all that were drafted. If that number is unknown,
    # it is the number of the answer's tokens plus LONGEST_DRAFT, because the last draft may go on
    # beyond the end of the answer.
    most_accepted = num_tokens + LONGEST_DRAFT if num_drafted is None else num_drafted
    if num_drafts is not None and draft_length:  # no draft is longer than `draft_length`
        most_accepted = min(most_accepted, num_drafts * draft_length)
    # A count that is not reported is replaced by 0 here.
    if min(num_drafts or 0, num_drafted or 0, num_accepted, *(per_step or ())) < 0:
        yield f"{_COUNTS}: one is negative."
    if num_accepted > most_accepted:
        yield (
            f"{_COUNTS}: {num_accepted} tokens were accepted of at most {most_accepted} draft "
            "tokens."
        )
    if num_drafts is not None and num_drafts > num_tokens:  # each step makes a token or more
        yield f"{_COUNTS}: {num_drafts} steps made {num_tokens} tokens."
    are_totals_reported = None not in (num_drafts, counts.num_accepted)
    if (
        per_step is not None
        and are_totals_reported
        and (len(per_step), sum(per_step)) != (num_drafts, num_accepted)
    ):
        yield (
            f"{_COUNTS}: {num_drafts} steps accepted {num_accepted} tokens, but the list of steps "
            f"has {len(per_step)} with {sum(per_step)}."
        )
    if counts.drafted_per_step is not None:  # accepted tokens need a list then, too
        yield from _drafted_problems(counts.drafted_per_step, per_step or ())


def _drafted_problems(drafted: Sequence[int], accepted: Sequence[int]) -> Iterator[str]:
    """Describe steps whose accepted tokens contradict their draft tokens.

    `drafted` and `accepted` have the number of these tokens per step [steps].
    """
    if len(drafted) != len(accepted):
        yield f"{_COUNTS}: {len(drafted)} steps drafted, but {len(accepted)} steps accepted tokens."
    for num_drafted, num_accepted in zip(drafted, accepted, strict=False):
        if not num_accepted <= num_drafted <= LONGEST_DRAFT:
            yield f"{_COUNTS}: a step accepted {num_accepted} of {num_drafted} draft tokens."
