"""Make records of a server's answers, with tokens, times and steps counted as in our engine.

Answers whose counts contradict each other are refused.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import chain, pairwise

from msgspec import UNSET, UnsetType

from specbench.errors import checked_seconds
from specbench.measure.methods import BASELINE
from specbench.measure.server.address import without_key
from specbench.measure.server.answer_checks import (
    LONGEST_DRAFT,
    answer_problems,
    contradictions,
    has_reasoning,
    prompt_problems,
)
from specbench.measure.server.baseline import answer_drafts
from specbench.measure.server.prompt_counts import (
    UNKNOWN_OFFSET,
    PromptOffset,
    tokens_read,
)
from specbench.measure.server.stream import Answer, Counts, RequestFailed
from specbench.models.chat import ChatCodec
from specbench.types import Record, RecordKey, Request, Serving, StopReason

_DIGITS = 6
"""The decimals of seconds that are kept: whole microseconds."""


def make_record(
    key: RecordKey,
    request: Request,
    answer: Answer,
    codec: ChatCodec,
    *,
    began: float,
    is_prompt_sent: bool,
    draft_length: int = 0,
    offset: PromptOffset = UNKNOWN_OFFSET,
) -> Record:
    """The record of an answer.

    Args:
        key: the method, task, prompt, turn, pass, temperature and load.
        request: the prompt's tokens, the most tokens of an answer, and the seed.
        answer: what the server sent: the text, the token ids (None if it sent text only), its own
            number of tokens (None if it sent none), and counts of drafts. `sent` and `arrivals` are
            times of `perf_counter` at which the request was sent and tokens arrived.
        codec: tokens to text and back.
        began: time of `perf_counter` at which the block of requests began.
        is_prompt_sent: True if the prompt was sent as tokens. Then the server must count as many.
        draft_length: most tokens of a draft; 0 if unknown.
        offset: tokens that the server's chat template adds to our prompts, and its latest prompts.

    Raises:
        ClockError: the clock went back, or stood still.
        RequestFailed: the server's counts contradict each other, or contradict what was sent or
            asked for; the baseline's server drafted; or the user's API key is in the answer.
    """
    token_ids = _token_ids(answer, codec)  # tokens as sent, else tokens of the text
    num_tokens = _num_tokens(answer, token_ids)
    num_sent = len(request.prompt_ids)
    num_read = tokens_read(answer, request, key.turn, offset)  # 0: unknown
    problems = chain(  # a sentence per problem
        prompt_problems(num_read, num_sent, key.turn, offset, is_sent=is_prompt_sent),
        answer_problems(request, answer, codec, token_ids, num_tokens),
        contradictions(answer.counts, num_tokens, draft_length),
    )
    if problem := next(problems, ""):
        raise RequestFailed(problem)
    # The text of the tokens, if the server sent them.
    answer_text = answer.text if answer.token_ids is None else codec.text(token_ids)
    if without_key(answer_text) != answer_text:  # the user's API key, which no file may have
        raise RequestFailed("The server sent the key back in its answer.")
    _check_clock(answer)
    return Record(
        key,
        "ok",
        prompt_tokens=num_sent,
        token_ids=token_ids,
        text=answer_text,
        stop_reason=_stop_reason(answer, num_tokens, request.max_new_tokens),
        prefill_s=round(answer.arrivals[0] - answer.sent, _DIGITS),
        decode_s=round(answer.arrivals[-1] - answer.arrivals[0], _DIGITS),
        accept_lengths=_accept_lengths(key.method, answer, num_tokens),  # tokens per step
        seed=request.seed,
        # The fields that only a server's answer has.
        serving=_serving(answer, num_tokens, num_read, began, len(codec.token_ids(answer.text))),
    )


def _num_tokens(answer: Answer, token_ids: Sequence[int]) -> int:
    """The number of an answer's tokens.

    If the server sent text only, its own count is used if there is one, because the tokens of the
    text may differ from those that the model generated.
    """
    if answer.token_ids is None and answer.num_tokens is not None:
        return answer.num_tokens
    return len(token_ids)


def _check_clock(answer: Answer) -> None:
    """Raise ClockError if a token arrived before an earlier token, or the answer took no time."""
    waits_s = (end - begin for begin, end in pairwise((answer.sent, *answer.arrivals)))
    checked_seconds(min(0.0, *waits_s) or answer.arrivals[-1] - answer.sent, "the answer")


def _stop_reason(answer: Answer, num_tokens: int, max_new_tokens: int) -> StopReason:
    """The reason why the answer ended. Servers report a full context and a used-up budget alike."""
    if answer.stop == "eos":
        return "eos"
    return "length" if num_tokens < max_new_tokens else "budget"


def _serving(
    answer: Answer, num_tokens: int, num_read: int, began: float, num_of_text: int
) -> Serving:
    """The times and counts of an answer that only a server's record has.

    Args:
        answer: what the server sent; a count that it lacks is None.
        num_tokens: number of the answer's tokens.
        num_read: number of the prompt's tokens that the server read; 0 if unknown.
        began: time of `perf_counter` at which the block of requests began.
        num_of_text: number of tokens in the answer's text. Servers count the marks around reasoning
            but do not send them, and some do the same with all reasoning.
    """
    counts = answer.counts
    num_drafts = counts.num_drafts
    if counts.drafted_per_step is not None:  # some lists have steps without a draft, too
        num_drafts = sum(num_drafted > 0 for num_drafted in counts.drafted_per_step)
    # The seconds between arrivals.
    gaps_s = [later - earlier for earlier, later in pairwise(answer.arrivals)]
    return Serving(
        began_s=max(0.0, round(answer.sent - began, _DIGITS)),
        gaps_s=tuple(round(gap_s, _DIGITS) for gap_s in gaps_s),
        reported_tokens=num_tokens if answer.token_ids is None else None,
        num_accepted=counts.num_accepted,
        num_drafts=num_drafts,
        server_prefill_s=_seconds(counts.prefill_ms),
        server_decode_s=_seconds(counts.decode_ms),
        num_retries=answer.num_retries,
        num_reasoning=answer.num_reasoning or UNSET,
        num_hidden=max(0, num_tokens - num_of_text) or UNSET if has_reasoning(answer) else UNSET,
        reported_prompt_tokens=num_read,
        cached_prompt_tokens=max(0, answer.cached_tokens or 0) or UNSET,
        num_drafted=UNSET if counts.num_drafted is None else counts.num_drafted,
        drafts_by_length=_drafts_by_length(counts.drafted_per_step or ()),
        drafts_by_accepted=_drafts_by_accepted(counts),
    )


def _drafts_by_length(drafted: Sequence[int]) -> tuple[int, ...] | UnsetType:
    """The numbers of drafts with 1, 2, 3, ... tokens. `drafted` has draft tokens [steps]."""
    num_by_length = Counter(drafted)
    lengths = range(1, max(drafted, default=0) + 1)
    return tuple(num_by_length[length] for length in lengths) or UNSET


def _drafts_by_accepted(counts: Counts) -> tuple[int, ...] | UnsetType:
    """The numbers of drafts of which 0, 1, 2, ... tokens were accepted, as the server reports them.

    UNSET if they are missing, do not count all drafts, or are not credible.
    """
    histogram = counts.drafts_by_accepted or ()
    is_whole = sum(histogram) == counts.num_drafts and min(histogram, default=0) >= 0
    return histogram if histogram and is_whole and len(histogram) <= LONGEST_DRAFT else UNSET


def _seconds(milliseconds: float | None) -> float | None:
    """A server's time in seconds, or None if it sent none."""
    if milliseconds is None or milliseconds < 0:
        return None
    return milliseconds / 1e3


def _token_ids(answer: Answer, codec: ChatCodec) -> tuple[int, ...]:
    """The token ids of an answer as the server sent them, or else those of the answer's text.

    An end token that the server left out is added. llama.cpp also leaves out tokens that end within
    a character of several bytes. So the tokens of the text are used if the server counted more
    tokens than it sent (`answer.num_tokens`, None without a count). Their number must be the
    server's count, and they must contain all ids that it sent, in the same order.

    `codec` turns the text into tokens.
    """
    if answer.token_ids is None:  # the server sent text only
        return _with_end(codec.token_ids(answer.text), answer, codec)
    sent_ids = _with_end(answer.token_ids, answer, codec)
    if answer.num_tokens is not None and len(sent_ids) < answer.num_tokens:
        ids_of_text = _with_end(codec.token_ids(answer.text), answer, codec)
        if len(ids_of_text) == answer.num_tokens and _is_subsequence(sent_ids, ids_of_text):
            return ids_of_text
    return sent_ids


def _is_subsequence(ids: Sequence[int], whole: Sequence[int]) -> bool:
    """True if all of `ids` occur in `whole` in this order, perhaps with others between them."""
    remaining = iter(whole)
    return all(token_id in remaining for token_id in ids)  # `in` advances `remaining` to the id


def _with_end(ids: tuple[int, ...], answer: Answer, codec: ChatCodec) -> tuple[int, ...]:
    """The tokens of an answer, with the end token added if the server left it out.

    Nothing is added if the server sent token ids, and as many as it counted.
    """
    if answer.stop != "eos" or codec.end_id is None:
        return ids
    has_end = bool(ids) and ids[-1] in codec.eos_ids
    has_all_tokens = answer.token_ids is not None and answer.num_tokens == len(ids)
    if has_end or has_all_tokens:
        return ids
    return (*ids, codec.end_id)


def _accept_lengths(method: str, answer: Answer, num_tokens: int) -> tuple[int, ...]:
    """The tokens that each step emitted [steps]. Empty if the server does not list its steps.

    A step emits its accepted draft tokens and one more token. Tokens that a step accepted beyond
    the end of the answer are left out. Steps that are not listed had no draft, and emit one token
    each. Where they occurred is unknown, so they are put at the end. The baseline has only such
    steps.

    Args:
        method: the method as records spell it; BASELINE is decoding without drafts.
        answer: what the server sent, with its counts of drafts (None for a count that it lacks).
        num_tokens: number of the answer's tokens.

    Raises:
        RequestFailed: the server of the baseline made drafts.
    """
    counts = answer.counts
    num_remaining = num_tokens - 1  # tokens of steps still to come; the prefill emits the first
    if method == BASELINE:
        # the largest of its counts of drafts, draft tokens and accepted tokens; 0 without counts
        if largest_count := answer_drafts(counts):
            raise RequestFailed(
                f"The server of {BASELINE} counted {largest_count} drafts or draft tokens: it must "
                "run without speculation."
            )
        return (1,) * num_remaining
    if counts.accepted_per_step is None:
        return ()
    lengths: list[int] = []
    for num_accepted in counts.accepted_per_step:  # accepted draft tokens of each listed step
        if num_remaining <= 0:
            break
        length = min(num_accepted + 1, num_remaining)
        lengths.append(length)
        num_remaining -= length
    return (*lengths, *[1] * num_remaining)  # one token for each step that is not listed
