"""Records of answers: their tokens, times and steps, counted as in the engine.

Answers whose counts contradict each other are refused.
"""

from collections.abc import Iterator
from itertools import chain, pairwise

from specbench.measure.methods import BASELINE
from specbench.measure.server.address import without_key
from specbench.measure.server.stream import Answer, Counts, RequestFailed
from specbench.models.chat import ChatCodec
from specbench.types import Record, RecordKey, Request, Serving

_DIGITS = 6
"""Digits of seconds that are kept: microseconds."""
_LEAST_GAP, _MOST_GAP = 3, 0.2
"""A text may tokenise into other tokens than it was made of, but not into many more or less."""
_COUNTS = "The counts of the server contradict each other"
_LONGEST_DRAFT = 1024
"""Tokens that a last step may have accepted beyond the end of an answer."""


def make_record(
    key: RecordKey,
    request: Request,
    answer: Answer,
    codec: ChatCodec,
    *,
    began: float,
    is_prompt_sent: bool,
    draft_length: int = 0,
) -> Record:
    """The record of an answer.

    Args:
        key: the record's key.
        request: what was asked.
        answer: what came back.
        codec: tokens to text and back.
        began: time at which the block began.
        is_prompt_sent: the prompt was sent as tokens, so that the server must count as many.
        draft_length: most tokens of a draft; 0 if unknown.

    Raises:
        RequestFailed: counts of the server contradict what was sent.
    """
    token_ids = _token_ids(answer, codec)
    num_tokens = len(token_ids)
    if answer.token_ids is None and answer.num_tokens is not None:
        num_tokens = answer.num_tokens
    problems = chain(
        _problems(request, answer, codec, token_ids, num_tokens, is_prompt_sent=is_prompt_sent),
        _contradictions(answer.counts, num_tokens, draft_length),
    )
    if problem := next(problems, ""):
        raise RequestFailed(problem)
    text = answer.text if answer.token_ids is None else codec.text(token_ids)
    if without_key(text) != text:
        raise RequestFailed("The server sent the key back in its answer.")
    first, last = answer.arrivals[0], answer.arrivals[-1]
    is_short = answer.stop == "budget" and num_tokens < request.max_new_tokens
    return Record(
        key,
        "ok",
        len(request.prompt_ids),
        token_ids=token_ids,
        text=text,
        stop_reason="eos" if answer.stop == "eos" else "length" if is_short else "budget",
        prefill_s=round(first - answer.sent, _DIGITS),
        decode_s=round(last - first, _DIGITS),
        accept_lengths=_accept_lengths(key.method, answer, num_tokens),
        seed=request.seed,
        serving=_serving(answer, num_tokens, began),
    )


def _serving(answer: Answer, num_tokens: int, began: float) -> Serving:
    """The times and counts of an answer in a block that began at `began`."""
    counts = answer.counts
    return Serving(
        began_s=round(answer.sent - began, _DIGITS),
        gaps_s=tuple(round(b - a, _DIGITS) for a, b in pairwise(answer.arrivals)),
        reported_tokens=num_tokens if answer.token_ids is None else None,
        num_accepted=counts.num_accepted,
        num_drafts=counts.num_drafts,
        server_prefill_s=_seconds(counts.prefill_ms),
        server_decode_s=_seconds(counts.decode_ms),
        num_retries=answer.num_retries,
    )


def _seconds(milliseconds: float | None) -> float | None:
    """A server's time in seconds; None if it sent none."""
    return None if milliseconds is None or milliseconds < 0 else milliseconds / 1e3


def _token_ids(answer: Answer, codec: ChatCodec) -> tuple[int, ...]:
    """The answer's tokens, with the end token that a server counts but does not send.

    llama.cpp streams no token that ends within a character. The text's own tokens take the
    place of the ids if there are as many as the server counted, and the ids are among them.
    """
    sent = answer.token_ids
    ids = _with_end(codec.token_ids(answer.text) if sent is None else sent, answer, codec)
    if sent is not None and answer.num_tokens is not None and len(ids) < answer.num_tokens:
        whole = _with_end(codec.token_ids(answer.text), answer, codec)
        rest = iter(whole)
        if len(whole) == answer.num_tokens and all(one in rest for one in ids):
            return whole
    return ids


def _with_end(ids: tuple[int, ...], answer: Answer, codec: ChatCodec) -> tuple[int, ...]:
    has_end = answer.stop != "eos" or (ids and ids[-1] in codec.eos_ids)
    is_complete = answer.token_ids is not None and answer.num_tokens == len(ids)
    end = codec.end_id
    return ids if has_end or is_complete or end is None else (*ids, end)


def _problems(
    request: Request,
    answer: Answer,
    codec: ChatCodec,
    token_ids: tuple[int, ...],
    num_tokens: int,
    *,
    is_prompt_sent: bool,
) -> Iterator[str]:
    """Describe how an answer differs from what was sent or asked for."""
    if answer.num_tokens is not None and answer.num_tokens != num_tokens:
        yield f"The server counted {answer.num_tokens} tokens and sent {num_tokens}."
    gap, most = abs(num_tokens - len(token_ids)), max(_LEAST_GAP, _MOST_GAP * len(token_ids))
    if answer.token_ids is None and gap > most:
        yield f"The server counted {num_tokens} tokens, but its text has about {len(token_ids)}."
    if num_tokens > request.max_new_tokens:
        yield (
            f"The server sent {num_tokens} tokens, more than the {request.max_new_tokens} that it "
            "was asked for."
        )
    counted, sent = answer.prompt_tokens, len(request.prompt_ids)
    if is_prompt_sent and counted is not None and counted != sent:
        yield (
            f"The server counted {counted} tokens of the prompt, but {sent} were sent: it "
            "changed the prompt."
        )
    for token in token_ids:
        if not 0 <= token < (codec.vocab_size or token + 1):
            yield f"The server sent the token {token}, and the model has {codec.vocab_size}."


def _contradictions(counts: Counts, num_tokens: int, draft_length: int) -> Iterator[str]:
    """Describe an impossible value among the counts of an answer's drafts."""
    drafts, drafted, accepted = counts.num_drafts, counts.num_drafted, counts.num_accepted or 0
    steps = counts.accepted_per_step
    most = num_tokens + _LONGEST_DRAFT if drafted is None else drafted
    if drafts is not None and draft_length:
        most = min(most, drafts * draft_length)
    if min(drafts or 0, drafted or 0, accepted, *(steps or ())) < 0:
        yield f"{_COUNTS}: one is negative."
    if accepted > most:
        yield f"{_COUNTS}: {accepted} tokens were accepted of at most {most} draft tokens."
    if drafts is not None and drafts > num_tokens:
        yield f"{_COUNTS}: {drafts} steps made {num_tokens} tokens."
    if steps is not None and (len(steps), sum(steps)) != (drafts, accepted):
        yield (
            f"{_COUNTS}: {drafts} steps accepted {accepted} tokens, but the list of steps has "
            f"{len(steps)} with {sum(steps)}."
        )


def _accept_lengths(method: str, answer: Answer, num_tokens: int) -> tuple[int, ...]:
    """Tokens emitted per step [steps]; empty if the server does not list its steps.

    A step without a draft is not listed: it emits one token, and is put at the end. Tokens
    accepted beyond the end of the answer are not counted.
    """
    counts, remaining = answer.counts, num_tokens - 1
    if method == BASELINE:
        if counts.num_accepted:
            raise RequestFailed(
                f"The server of {BASELINE} accepted {counts.num_accepted} draft tokens: it must "
                "run without speculation."
            )
        return (1,) * remaining
    if counts.accepted_per_step is None:
        return ()
    lengths: list[int] = []
    for accepted in counts.accepted_per_step:
        if remaining <= 0:
            break
        lengths.append(min(accepted + 1, remaining))
        remaining -= lengths[-1]
    return (*lengths, *(1 for _ in range(remaining)))
