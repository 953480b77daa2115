"""The answers that a page shows and replays, of the first samples of each task.

Turns records into texts and steps, which `export.html` embeds.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from specbench.data.prompts import known_prompts
from specbench.errors import visible
from specbench.log.run import Run
from specbench.types import Record, RequestKey

SAMPLES_PER_TASK = 2
"""Samples of each task on a page, in their first repeat: the page has to stay small."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The records of all methods for one request, or their errors, by the method's label in tables.

    `prompt` is the text of its turn; empty if this machine does not have the run's prompts.
    """

    title: str
    prompt: str
    done: Mapping[str, Record]
    failed: Mapping[str, str]

    @property
    def by_text(self) -> Mapping[str, Sequence[str]]:
        """The distinct texts, each with the methods that wrote it."""
        methods = defaultdict(list)
        for label, record in self.done.items():
            methods[record.text].append(label)
        return methods

    def replay(self, prefix: str = "") -> dict[str, Any]:
        """The texts and the steps of the methods, as plain values for a script."""
        texts = list(self.by_text)
        return {
            "title": prefix + self.title,
            "prompt": self.prompt,
            "texts": texts,
            "answers": [
                {
                    "method": label,
                    "text": texts.index(record.text),
                    "prefill_s": record.prefill_s,
                    "decode_s": record.decode_s,
                    "tokens": record.num_tokens,
                    "steps": step_ends(_token_ends(record), _lengths(record)),
                    "counted": _lengths(record) == record.accept_lengths,
                    "exact": len(record.token_ends or ()) == record.num_tokens,
                }
                for label, record in self.done.items()
            ],
        }


def step_ends(token_ends: Sequence[int], accept_lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Ends of the accepted draft and of the text, for the prefill and each step."""
    bounds = (0, *token_ends)
    return [(bounds[end - 1], bounds[end]) for end in accumulate((1, *accept_lengths))]


def _lengths(record: Record) -> Sequence[int]:
    """The tokens of each step; one a step where a server does not list them."""
    return record.accept_lengths or (1,) * (record.num_tokens - 1)


def _token_ends(record: Record) -> Sequence[int]:
    """Ends of a record's tokens in its text; evenly spaced for a record of an older version.

    A server may count more tokens than its text has, and then they are evenly spaced, too.
    """
    count = record.num_tokens
    if record.token_ends and len(record.token_ends) == count:
        return record.token_ends
    return [len(record.text) * (i + 1) // count for i in range(count)]


def pick_answers(run: Run) -> tuple[Answers, ...]:
    """The answers of a run's first samples of each task, in the order in which they ran."""
    requests: dict[RequestKey, dict[str, Record]] = defaultdict(dict)
    samples: dict[str, dict[str, None]] = defaultdict(dict)
    for record in run.records:
        key = record.key
        own = samples[key.task]
        if key.repeat or (key.sample_id not in own and len(own) == SAMPLES_PER_TASK):
            continue
        own[key.sample_id] = None
        requests[key.request][key.method] = replace(record, text=visible(record.text))
    sets = (known_prompts(run.header, one) for one in run.header.prompts)
    turns = {each.sample_id: each.turns for one in sets if one for each in one.prompts}
    order = run.header.method_labels
    answers = []
    for request, found in requests.items():
        shown = {one.label: found[one.spelling] for one in order if one.spelling in found}
        answers.append(
            Answers(
                _title(run, request),
                visible("".join(turns.get(request.sample_id, ())[request.turn : request.turn + 1])),
                done={label: one for label, one in shown.items() if one.is_ok},
                failed={
                    label: one.error or "no reason given"
                    for label, one in shown.items()
                    if not one.is_ok
                },
            )
        )
    return tuple(answers)


def _title(run: Run, key: RequestKey) -> str:
    """The sample in words: MT-bench, 81, turn 2, T=1."""
    parts = [run.header.task_title(key.task), key.sample_id.removeprefix(f"{key.task}/")]
    parts += [f"turn {key.turn + 1}"] if key.turn else []
    parts += [f"T={key.temperature:g}"] if len(run.header.spec.values.temperatures) > 1 else []
    return ", ".join(parts)
