"""Answers of a vLLM server, one per line: its own times, and its drafts of each answer."""

from specbench.log.exchange.format import (
    FileContent,
    Format,
    answer_key,
    counts_from_drafts,
    rate_figure,
)
from specbench.log.exchange.source import Fields, SourceFile
from specbench.log.record import Amount, Whole
from specbench.types import Record, StopReason

_STOP_REASONS: dict[str, StopReason] = {"length": "budget"}
_OLDER = "speculative_decoding_stats"
"""The drafts of a choice, in versions before `metrics` had them."""


def _drafts(answer: Fields) -> Fields:
    """The object with the counts of drafts; without any, an empty one."""
    older = answer.first("choices").get(_OLDER, dict, {})
    drafts = answer.get("metrics.speculative_decoding", dict, older)
    return Fields(answer.source, answer.place, drafts)


def _matches(first: Fields) -> bool:
    return first.has("choices", "usage") and (
        first.has("metrics") or first.first("choices").has(_OLDER)
    )


def _read(source: SourceFile) -> FileContent:
    records = [_record(number, answer) for number, answer in enumerate(source.entries)]
    models = {answer.get("model", str, "") for answer in source.entries}
    content = FileContent(
        records=records,
        counting="tokens: usage.completion_tokens; the first is the prefill's; steps: those after "
        "it - accepted draft tokens",
        lacks=("token ids", "the temperature of requests", "seeds"),
        model=models.pop() if len(models) == 1 else "",
    )
    counted = [_drafts(answer) for answer in source.entries]
    drafts = sum(answer.get("num_spec_steps", Whole, 0) for answer in counted)
    accepted = sum(answer.get("num_accepted_draft_tokens", Whole, 0) for answer in counted)
    if drafts:
        rule = "1 + accepted draft tokens / steps with a draft"
        content.figures.append(rate_figure("acceptance length", 1 + accepted / drafts, rule))
    return content


def _record(number: int, answer: Fields) -> Record:
    drafts = _drafts(answer)
    choice = answer.first("choices")
    counts = counts_from_drafts(
        answer.get("usage.completion_tokens", Whole),
        drafts.get("num_accepted_draft_tokens", Whole, None),
        drafts.get("num_spec_steps", Whole, 0),
    )
    steps = tuple(number + 1 for number in drafts.get("per_step_accepted", list[Whole], []))
    is_whole = (sum(steps), len(steps)) == (counts.num_emitted, counts.num_steps)
    first_ms = answer.get("metrics.time_to_first_token_ms", Amount, None)
    rest_ms = answer.get("metrics.generation_time_ms", Amount, None)
    text = choice.get("message.content", str, "") or choice.get("text", str, "")
    return Record(
        answer_key(f"answer {number}"),
        "ok",
        answer.get("usage.prompt_tokens", Whole, 0),
        text=text,
        stop_reason=_STOP_REASONS.get(choice.get("finish_reason", str, "")),
        prefill_s=None if first_ms is None else first_ms / 1e3,
        decode_s=None if rest_ms is None else rest_ms / 1e3,
        accept_lengths=steps if is_whole else (),
        imported=counts,
    )


FORMAT = Format(
    title="answers of vLLM with metrics",
    tool="vLLM",
    arithmetic="mean_acceptance_length is 1 + accepted draft tokens / steps with a draft",
    matches=_matches,
    read=_read,
)
