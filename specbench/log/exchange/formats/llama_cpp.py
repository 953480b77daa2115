"""Read answers of llama-server, one per line. `timings` has the server's times and drafts."""

import math

from specbench.log.exchange.arithmetic import draft_figures
from specbench.log.exchange.format import (
    FileContent,
    Format,
    answer_key,
    counts_from_drafts,
)
from specbench.log.exchange.source import Fields, SourceFile
from specbench.log.record import Amount, Whole
from specbench.types import Record, StopReason

_SAME = 1e-6
"""Largest relative difference between a printed rate and the rate from the answer's times."""
_STOP_REASONS: dict[str, StopReason] = {"limit": "budget", "eos": "eos"}
"""llama.cpp's names of stop reasons -> ours. Other reasons are unknown."""


def _read(source: SourceFile) -> FileContent:
    """Read the answers of a file, which has a JSON object per answer. The model, the temperature
    and the budget of tokens are unknown if the answers do not agree. A budget of -1 means no
    limit.
    """
    answers = source.entries
    models = {answer.get("model", str, "") for answer in answers}
    temperatures = {
        answer.get("generation_settings.temperature", Amount, None) for answer in answers
    }
    budgets = {answer.get("generation_settings.n_predict", int, -1) for answer in answers}
    return FileContent(
        records=[_record(number, answer) for number, answer in enumerate(answers)],
        counting="tokens: predicted_n; the first is the prefill's; steps: tokens after the first - "
        "accepted draft tokens",
        lacks=("queueing times", "seeds", "single steps"),
        model=models.pop() if len(models) == 1 else "",
        temperature=temperatures.pop() if len(temperatures) == 1 else None,
        max_new_tokens=max(budgets) if len(budgets) == 1 and max(budgets) > 0 else None,
    )


def _record(number: int, answer: Fields) -> Record:
    """The record of an answer. `number` counts the answers of the file from 0.

    The printed rate in tokens per second shows which tokens the publisher counts: all of them, or
    those after the first in newer versions. All tokens count if there is no rate or no time, or if
    the rate fits neither number, which is noted.

    Raises:
        UserError: the counts of the answer contradict each other, or a field is missing or wrong.
    """
    num_tokens = answer.get("timings.predicted_n", Whole)
    num_drafted = answer.get("timings.draft_n", Whole, 0)
    num_accepted = answer.get("timings.draft_n_accepted", Whole, 0)
    predicted_ms = answer.get("timings.predicted_ms", Amount)
    token_ids = answer.get("tokens", tuple[Whole, ...], ())  # empty if the file has none
    if num_accepted > num_drafted:
        raise answer.error(f"{num_accepted} of {num_drafted} draft tokens are accepted")
    if token_ids and len(token_ids) != num_tokens:
        raise answer.error(f"predicted_n is {num_tokens}, but tokens has {len(token_ids)}")
    if num_tokens > 1 and not predicted_ms:
        raise answer.error(f"predicted_n is {num_tokens}, but predicted_ms is 0")
    rate = answer.get("timings.predicted_per_second", Amount, None)  # tokens/s
    fitting_counts = [num_tokens]  # the numbers of tokens that fit the rate
    if rate is not None and predicted_ms:
        fitting_counts = [
            count
            for count in (num_tokens, num_tokens - 1)
            if math.isclose(rate * predicted_ms / 1e3, count, rel_tol=_SAME)
        ]
    if not fitting_counts:
        answer.note(f"predicted_per_second is {rate:g}, which its times do not give")
    # computed tokens, and those from the cache
    prompt_tokens = answer.get("timings.prompt_n", Whole) + answer.get("timings.cache_n", Whole, 0)
    return Record(
        answer_key(f"answer {number}"),
        "ok",
        prompt_tokens,
        token_ids=token_ids,
        text=answer.get("content", str, ""),
        stop_reason=_STOP_REASONS.get(answer.get("stop_type", str, "")),
        prefill_s=answer.get("timings.prompt_ms", Amount) / 1e3,
        decode_s=predicted_ms / 1e3,
        imported=counts_from_drafts(
            num_tokens, num_accepted, counted_tokens=next(iter(fitting_counts), None)
        ),
    )


FORMAT = Format(
    title="answers of llama-server with timings",
    tool="llama.cpp",
    arithmetic="predicted_per_second is predicted_n / predicted_ms, in newer versions "
    "(predicted_n - 1) / predicted_ms",
    matches=lambda first_value: first_value.has("timings"),
    read=_read,
    figures=draft_figures,
)
