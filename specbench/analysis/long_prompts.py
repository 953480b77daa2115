"""The warning about prompts beyond the positions that a method's weights were made for."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from specbench.analysis.warnings import RunWarning
from specbench.log.header import RunHeader
from specbench.types import Record


def find_long_prompts(records: Iterable[Record], header: RunHeader) -> Iterable[RunWarning]:
    """Methods that drafted after prompts of more tokens than their weights have positions.

    A warning has the number of these requests, and MAT over the steps on either side.
    """
    answers: dict[tuple[str, float], list[Record]] = defaultdict(list)  # by method, temperature
    for record in records:
        if record.is_ok:
            answers[record.key.method, record.key.temperature].append(record)
    for (method, temperature), completions in answers.items():
        execution = header.execution.get(method)
        positions = execution.num_positions if execution else 0  # 0: unknown
        beyond = [record for record in completions if record.prompt_tokens > positions > 0]
        if beyond:
            within = [record for record in completions if record.prompt_tokens <= positions]
            warning_numbers = {
                "method": method,
                "temperature": temperature,
                "beyond": _num_requests(beyond),
                "requests": _num_requests(completions),
                "positions": positions,
                "mat_beyond": _mat(beyond),
                "mat_within": _mat(within),
            }
            yield RunWarning("long_prompts", warning_numbers)


def _num_requests(records: Sequence[Record]) -> int:
    """The number of requests, however many passes and loads answered them."""
    return len({(record.key.task, record.key.sample_id, record.key.turn) for record in records})


def _mat(records: Sequence[Record]) -> float | None:
    """Tokens emitted / steps; None without steps."""
    num_steps = sum(len(record.accept_lengths) for record in records)
    num_emitted = sum(sum(record.accept_lengths) for record in records)
    return num_emitted / num_steps if num_steps else None
