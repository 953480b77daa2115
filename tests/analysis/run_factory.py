"""Hand-made runs: records with given times and accept lengths, and a plausible header."""

import random
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from specbench.analysis.metrics import RunMetrics
from specbench.analysis.stats.estimates import Estimate, Interval, Missing, Value
from specbench.analysis.warnings import RunWarning
from specbench.log.header import RunHeader
from specbench.log.run import Run
from specbench.registry import get, parse_choices
from specbench.types import Record, RecordKey
from tests.support.headers import make_header

TASKS = {
    "mt_bench": "MT-bench",
    "humaneval": "HumanEval",
    "gsm8k": "GSM8K",
    "alpaca": "Alpaca",
    "cnn_dm": "CNN/DM",
    "natural_questions": "Natural Ques.",
}
TITLES = {
    "vanilla": "Vanilla",
    "pld": "PLD",
    "sps": "SpS",
    "lookahead": "Lookahead",
    "medusa": "Medusa",
    "hydra": "Hydra",
    "eagle": "EAGLE",
    "eagle2": "EAGLE-2",
    "eagle3": "EAGLE-3",
}
SPEEDS = dict(zip(TITLES, (1.0, 1.38, 1.55, 1.41, 1.9, 2.2, 2.4, 3.1, 3.9), strict=True))


def make_run(
    records: Sequence[Record] = (), header: RunHeader | Mapping[str, Any] | None = None
) -> Run:
    """A run from records and a header, typed or as plain values."""
    typed = header if isinstance(header, RunHeader) else make_header(header)
    return Run(typed, tuple(records))


def record(
    method: str = "vanilla",
    sample: str = "a",
    *,
    task: str = "gsm8k",
    temperature: float = 0.0,
    turn: int = 0,
    repeat: int = 0,
    prefill_s: float = 0.0,
    decode_s: float = 1.0,
    accept_lengths: Sequence[int] = (1, 1, 1),
    token_ids: Sequence[int] | None = None,
) -> Record:
    """A finished record. Without `token_ids`, its accept lengths give the number of tokens."""
    return Record(
        key=RecordKey(method, temperature, task, f"{task}/{sample}", turn, repeat),
        status="ok",
        prompt_tokens=10,
        token_ids=tuple(range(1 + sum(accept_lengths)) if token_ids is None else token_ids),
        text="",
        stop_reason="budget",
        prefill_s=prefill_s,
        decode_s=decode_s,
        accept_lengths=tuple(accept_lengths),
    )


def estimate(metric: Value | None) -> Estimate:
    """The metric, which must not be missing."""
    assert isinstance(metric, Estimate), metric
    return metric


def number(metric: Value | None) -> float:
    """The number of a metric, which must not be missing."""
    return estimate(metric).value


def interval(metric: Value | None) -> Interval:
    """The interval of a metric, which must have one."""
    bounds = estimate(metric).interval
    assert bounds is not None
    return bounds


def missing(metric: Value | None) -> str:
    """The reason that a metric is missing. Fails if it is present."""
    assert isinstance(metric, Missing), metric
    return metric.reason


def warnings_of(metrics: RunMetrics, key: str) -> list[RunWarning]:
    return [warning for warning in metrics.warnings if warning.key == key]


def failed(method: str, sample: str = "a", *, task: str = "gsm8k", error: str = "boom") -> Record:
    key = RecordKey(method, 0.0, task, f"{task}/{sample}", 0, 0)
    return Record(key=key, status="error", prompt_tokens=10, error=error)


def header(
    methods: Sequence[str],
    tasks: Sequence[str] = tuple(TASKS),
    temperatures: Sequence[float] = (0.0,),
    **changes: Any,
) -> dict[str, Any]:
    values = {
        "model": "tiny", "methods": list(methods), "tasks": list(tasks),
        "temperatures": list(temperatures), "prompts": "bundled",
    }  # fmt: skip
    return {
        "id": "20261120-120000-tiny",
        "finished": "2026-11-20T12:02:00+00:00",
        "spec": {"values": values, "given": ["model"]},
        "environment": {},
        "model": {"label": "tiny (embedded, trained by specbench)"},
        "methods": {method: _described(method) for method in methods},
        "columns": {task: TASKS[task] for task in tasks},
    } | changes


def full_run(
    methods: Sequence[str] = ("vanilla", "pld", "sps", "lookahead"),
    tasks: Sequence[str] = tuple(TASKS),
    temperatures: Sequence[float] = (0.0,),
    num_samples: int = 8,
    **changes: Any,
) -> Run:
    """A plausible run: every cell filled, from a fixed seed."""
    generator = random.Random(7)
    records = []
    cells = product(temperatures, enumerate(tasks), range(num_samples))
    for temperature, (number, task), sample in cells:
        num_tokens = generator.randint(30, 120)
        for method in methods:
            is_vanilla = method == "vanilla"
            speed = SPEEDS[method.partition(":")[0]] ** (1 - temperature * 0.2 - 0.08 * number)
            lengths: list[int] = []
            while (left := num_tokens - sum(lengths)) > 0:
                mean = 1.2 * speed
                length = 1 if is_vanilla else int(mean) + (generator.random() < mean % 1)
                lengths.append(min(left, max(1, length)))
            noise = 1.0 if is_vanilla else generator.lognormvariate(0, 0.12)
            records.append(
                record(method, str(sample), task=task, temperature=temperature, prefill_s=0.004,
                       decode_s=0.0025 * num_tokens * noise / speed, accept_lengths=lengths)
            )  # fmt: skip
    return make_run(records, header(methods, tasks, temperatures, **changes))


def _described(method: str) -> dict[str, Any]:
    """The header of a method. Options that are whole numbers become ints."""
    choice = parse_choices([method])[0]
    given = choice.given.items()
    options = {name: int(text) if text.isdigit() else text for name, text in given}
    title = TITLES.get(choice.name) or get(choice.name).title
    return {"name": choice.name, "title": title, "options": options, "is_lossless": True}
