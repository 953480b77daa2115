"""Checks of a server's answer: its prompt, its tokens, and its counts of drafts."""

from collections.abc import Iterator, Sequence

from specbench.measure.server.prompt_counts import PromptOffset, cut_text
from specbench.measure.server.stream import Answer, Counts
from specbench.models.chat import ChatCodec
from specbench.types import Request

_MOST_TOKENS_OFF = 3
"""Tokens by which a server's count may differ from the number of tokens of its text. A text may
tokenise into other tokens than those it was made of, but not into many more or fewer.
"""
_MOST_SHARE_OFF = 0.2
"""The share of a long text's tokens by which the count may differ."""
_COUNTS = "The counts of the server contradict each other"
LONGEST_DRAFT = 1024
"""Most tokens of a draft. The last step may accept that many beyond the end of an answer."""


def prompt_problems(
    num_read: int, num_sent: int, turn: int, offset: PromptOffset, *, is_sent: bool
) -> Iterator[str]:
    """Describe how the prompt that a server read differs from ours, if that is an error.

    If the prompt was sent as tokens (`is_sent`), the server must count as many as were sent.
    `num_read` is the server's count of the prompt's tokens, 0 without a count.
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
    """Describe how an answer differs from what was sent or asked for, one sentence per difference.

    Args:
        request: the prompt's tokens, and the most tokens of an answer.
        answer: what the server sent. Its `token_ids` are None if it sent text only; its numbers of
            tokens, of the answer and of the prompt, are the server's own, None if it sent none.
        codec: knows the number of tokens that the model can emit; 0 if unknown.
        token_ids: the answer's tokens as sent; the tokens of its text if it was sent as text.
        num_tokens: number of these tokens; if only text was sent, as the server counted them.
    """
    if answer.num_tokens is not None and answer.num_tokens != num_tokens:
        yield f"The server counted {answer.num_tokens} tokens and sent {num_tokens}."
    # A text may tokenise into a few tokens more or fewer than it was made of: _MOST_TOKENS_OFF, or
    # _MOST_SHARE_OFF of its tokens if that is more.
    num_tokens_off = abs(num_tokens - len(token_ids))
    most_tokens_off = max(_MOST_TOKENS_OFF, _MOST_SHARE_OFF * len(token_ids))
    # Tokens that were counted but are not in the text. If text of reasoning was sent, they are the
    # marks around it, in any number. If not, the server's count of reasoning has to explain them.
    num_hidden = num_tokens - len(token_ids)
    most_explained = answer.reasoning_tokens + most_tokens_off
    is_within = answer.num_reasoning > 0 or num_hidden <= most_explained
    is_explained = has_reasoning(answer) and num_hidden > 0 and is_within
    if answer.token_ids is None and num_tokens_off > most_tokens_off and not is_explained:
        yield f"The server counted {num_tokens} tokens, but its text has about {len(token_ids)}."
    if num_tokens > request.max_new_tokens:
        yield (
            f"The server sent {num_tokens} tokens, more than the {request.max_new_tokens} that it "
            "was asked for."
        )
    for token in token_ids:  # without a known vocabulary, any id from 0 is right
        if not 0 <= token < (codec.vocab_size or token + 1):
            yield f"The server sent token {token}, but the model has {codec.vocab_size} tokens."


def contradictions(counts: Counts, num_tokens: int, draft_length: int) -> Iterator[str]:
    """Describe impossible counts of an answer's drafts, one sentence per problem.

    `num_tokens` is the number of the answer's tokens, `draft_length` the most tokens of a draft; 0
    if unknown. A draft may go on after the end of the answer, by LONGEST_DRAFT tokens at most.
    A count is None if the server does not report it; the sentences begin with _COUNTS.
    """
    num_drafts = counts.num_drafts  # steps with a draft
    num_drafted = counts.num_drafted  # draft tokens of all steps
    num_accepted = counts.num_accepted or 0  # accepted draft tokens of all steps
    per_step = counts.accepted_per_step  # accepted draft tokens of each step with a draft [steps]
    # The most draft tokens that there can be: each accepted one is in the answer or beyond its end.
    most_drafted = num_tokens + LONGEST_DRAFT if num_drafted is None else num_drafted
    if num_drafts is not None and draft_length:  # no draft is longer
        most_drafted = min(most_drafted, num_drafts * draft_length)
    if min(num_drafts or 0, num_drafted or 0, num_accepted, *(per_step or ())) < 0:
        yield f"{_COUNTS}: one is negative."
    if num_accepted > most_drafted:
        yield (
            f"{_COUNTS}: {num_accepted} tokens were accepted of at most {most_drafted} draft "
            "tokens."
        )
    if num_drafts is not None and num_drafts > num_tokens:  # each step makes a token or more
        yield f"{_COUNTS}: {num_drafts} steps made {num_tokens} tokens."
    if per_step is not None and (len(per_step), sum(per_step)) != (num_drafts, num_accepted):
        yield (
            f"{_COUNTS}: {num_drafts} steps accepted {num_accepted} tokens, but the list of steps "
            f"has {len(per_step)} with {sum(per_step)}."
        )
    if counts.drafted_per_step is not None:
        yield from _drafted_problems(counts.drafted_per_step, per_step or ())


def _drafted_problems(drafted: Sequence[int], accepted: Sequence[int]) -> Iterator[str]:
    """Describe steps whose accepted tokens contradict their draft tokens."""
    if len(drafted) != len(accepted):
        yield f"{_COUNTS}: {len(drafted)} steps drafted, and {len(accepted)} steps accepted tokens."
    for num_drafted, num_accepted in zip(drafted, accepted, strict=False):
        if not num_accepted <= num_drafted <= LONGEST_DRAFT:
            yield f"{_COUNTS}: a step accepted {num_accepted} of {num_drafted} draft tokens."
