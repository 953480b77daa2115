"""Read answers of a vLLM server, one per line, with the server's times and drafts."""

from specbench.log.exchange.format import (
    FileContent,
    Format,
    answer_key,
    rate_figure,
    with_drafts,
)
from specbench.log.exchange.source import Fields, SourceFile
from specbench.log.record import Amount, Whole
from specbench.types import Record, StopReason

_STOP_REASONS: dict[str, StopReason] = {"length": "budget"}
"""vLLM's names of stop reasons -> ours. Other reasons are unknown."""
_OLDER = "speculative_decoding_stats"
"""The key of the drafts in a choice, in versions whose `metrics` do not have them."""


def _drafts(answer: Fields) -> Fields:
    """The object with the counts of drafts, or an empty object."""
    older = answer.first("choices").get(_OLDER, dict, {})
    drafts = answer.get("metrics.speculative_decoding", dict, older)
    return Fields(answer.source, answer.place, drafts)


def _matches(first_value: Fields) -> bool:
    return first_value.has("choices", "usage") and (
        first_value.has("metrics") or first_value.first("choices").has(_OLDER)
    )


def _read(source: SourceFile) -> FileContent:
    """Read the answers of a file, one per line, with the acceptance length of all answers by vLLM's
    formula. It is left out if no answer has drafts, or if one has drafts without the number of
    accepted tokens.
    """
    records = [_record(number, answer) for number, answer in enumerate(source.entries)]
    models = {answer.get("model", str, "") for answer in source.entries}
    content = FileContent(
        records=records,
        counting="tokens: usage.completion_tokens; the first is the prefill's; steps: those after "
        "it - accepted draft tokens",
        lacks=("token ids", "the temperature of requests", "seeds"),
        model=models.pop() if len(models) == 1 else "",
    )
    counts_of_answers = [_drafts(answer) for answer in source.entries]
    draft_counts = [
        counts for counts in counts_of_answers if counts.get("num_spec_steps", Whole, 0)
    ]
    accepted = [counts.get("num_accepted_draft_tokens", Whole, None) for counts in draft_counts]
    if accepted and None not in accepted:
        num_drafts = sum(counts.get("num_spec_steps", Whole) for counts in draft_counts)
        content.figures.append(
            rate_figure(
                name="acceptance length",
                number=1 + sum(accepted) / num_drafts,
                rule="1 + accepted draft tokens / steps with a draft",
            )
        )
    return content


def _record(number: int, answer: Fields) -> Record:
    """The record of an answer. `number` counts the answers of the file from 0.

    Raises:
        UserError: a field is missing or wrong.
    """
    choice = answer.first("choices")  # the list's first object; it must have one
    first_token_ms = answer.get("metrics.time_to_first_token_ms", Amount, None)
    rest_ms = answer.get("metrics.generation_time_ms", Amount, None)  # after the first token
    answer_text = choice.get("message.content", str, "") or choice.get("text", str, "")
    record = Record(
        answer_key(f"answer {number}"),
        "ok",
        answer.get("usage.prompt_tokens", Whole, 0),
        text=answer_text,
        stop_reason=_STOP_REASONS.get(choice.get("finish_reason", str, "")),
        prefill_s=None if first_token_ms is None else first_token_ms / 1e3,
        decode_s=None if rest_ms is None else rest_ms / 1e3,
    )
    num_tokens = answer.get("usage.completion_tokens", Whole)
    return with_drafts(record, num_tokens, _drafts(answer))


FORMAT = Format(
    title="answers of vLLM with metrics",
    tool="vLLM",
    arithmetic="mean_acceptance_length is 1 + accepted draft tokens / steps with a draft",
    matches=_matches,
    read=_read,
)
