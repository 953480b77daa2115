"""Pick the answers to the first samples of each task, which a page shows and replays.

`export.html` embeds their texts and steps.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

from specbench.data.prompts import prompts_of_run
from specbench.errors import visible
from specbench.log.run import Run
from specbench.types import Record, RequestKey

SAMPLES_PER_TASK = 2
"""The number of samples per task on a page. It is small to keep the page small."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of all methods to one request."""

    title: str
    """The request in words, such as "MT-bench, 81, turn 2"."""
    prompt: str
    """The text of the request's turn, or "" if this machine does not have the run's prompts."""
    done: Mapping[str, Record]
    """The records of the answers that did not fail, by the method's label in tables."""
    failed: Mapping[str, str]
    """The error messages of the methods that failed, by the method's label."""

    @property
    def by_text(self) -> Mapping[str, Sequence[str]]:
        """Return the distinct texts, each with the labels of the methods that answered with it."""
        labels_by_text = defaultdict(list)
        for label, record in self.done.items():
            labels_by_text[record.text].append(label)
        return labels_by_text

    def in_order(self, labels: Sequence[str]) -> "Answers":
        """Return the answers in the order of `labels`, without methods that are not in `labels`."""
        done = {label: self.done[label] for label in labels if label in self.done}
        failed = {label: self.failed[label] for label in labels if label in self.failed}
        return replace(self, done=done, failed=failed)

    def replay(self, prefix: str = "") -> dict[str, Any]:
        """Return the texts and steps as JSON types, for the script of the page.

        The title begins with `prefix`.
        """
        texts = list(self.by_text)
        answers = [
            {"method": label, "text": texts.index(record.text), **_timed_steps(record)}
            for label, record in self.done.items()
        ]
        return {
            "title": prefix + self.title,
            "prompt": self.prompt,
            "texts": texts,
            "answers": answers,
        }


def _timed_steps(record: Record) -> dict[str, Any]:
    """Return the steps of an answer, and its times in seconds.

    `counted` is True if the steps are known, and `exact` is True if the ends of the tokens are
    known. An imported answer may have only its total time, which then counts as decode time.
    """
    lengths = _lengths(record)
    is_split = record.prefill_s is not None and record.decode_s is not None
    return {
        "prefill_s": record.prefill_s if is_split else 0.0,
        "decode_s": record.decode_s if is_split else record.wall_s,
        "tokens": record.num_tokens,
        "steps": step_ends(_token_ends(record), lengths),
        "counted": lengths == record.accept_lengths,
        "exact": len(record.token_ends or ()) == record.num_tokens,
    }


def step_ends(token_ends: Sequence[int], accept_lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Return two positions in the text for the prefill and each step.

    The first is the end of the accepted draft tokens, and the second is the end of all tokens.
    `token_ends` has the number of characters up to the end of each token [tokens]. `accept_lengths`
    has the number of tokens that each step emitted [steps].
    """
    bounds = (0, *token_ends)
    return [(bounds[end - 1], bounds[end]) for end in accumulate((1, *accept_lengths))]


def _lengths(record: Record) -> Sequence[int]:
    """Return the number of tokens of each step.

    It is 1 for all steps if a server does not list them, or if the listed steps do not add up to
    all tokens after the first, as in some imported answers.
    """
    is_listed = 1 + sum(record.accept_lengths) == record.num_tokens
    return record.accept_lengths if is_listed else (1,) * (record.num_tokens - 1)


def _token_ends(record: Record) -> Sequence[int]:
    """Return where each token ends in the text.

    The ends are evenly spaced for a record of an older version, and if a server counted more tokens
    than the text has.
    """
    count = record.num_tokens
    if record.token_ends and len(record.token_ends) == count:
        return record.token_ends
    return [len(record.text) * (i + 1) // count for i in range(count)]


def pick_answers(run: Run) -> tuple[Answers, ...]:
    """Return the answers to the first samples of each task, with an `Answers` for each request.

    The requests are those of the first pass, in the order in which they ran. There are up to
    `SAMPLES_PER_TASK` samples per task.
    """
    # request -> method with its options -> record
    records_by_request: dict[RequestKey, dict[str, Record]] = defaultdict(dict)
    shown_ids_by_task: dict[str, set[str]] = defaultdict(set)  # the samples chosen so far, by task
    for record in run.records:
        key = record.key  # the request, its pass (`repeat`, from 0) and the method
        shown_ids = shown_ids_by_task[key.task]
        is_sample_shown = key.sample_id in shown_ids or len(shown_ids) < SAMPLES_PER_TASK
        if record.imported and not (record.text and record.wall_s):
            continue  # the file of another tool lacks the text or the time of this answer
        if key.repeat == 0 and is_sample_shown:
            shown_ids.add(key.sample_id)
            # `visible` shows control characters as signs.
            printable_record = replace(record, text=visible(record.text))
            records_by_request[key.request][key.method] = printable_record
    turns_by_sample = _turns(run)  # id of a sample -> texts of its turns
    answers = []  # an `Answers` per request
    for request, records in records_by_request.items():  # `records` are by method
        turns = turns_by_sample.get(request.sample_id, ())  # empty if the prompts are not here
        # The text of the request's turn (from 0), or "" if the sample does not have it.
        prompt = "".join(turns[request.turn : request.turn + 1])
        answers.append(_answers(run, request, visible(prompt), records))
    return tuple(answers)


def _turns(run: Run) -> dict[str, Sequence[str]]:
    """Return the texts of each sample's turns by the sample's id, if the prompts are here."""
    turns_by_sample: dict[str, Sequence[str]] = {}
    for header in run.header.prompts:  # a header for each task's prompts
        prompt_set = prompts_of_run(run.header, header)  # None if this machine lacks the texts
        if prompt_set is not None:
            turns_by_sample |= {prompt.sample_id: prompt.turns for prompt in prompt_set.prompts}
    return turns_by_sample


def _answers(run: Run, request: RequestKey, prompt: str, records: Mapping[str, Record]) -> Answers:
    """Return the answers of a run's methods to a request, in the order of the run's header.

    A request is a turn of a sample at a temperature, and `prompt` is the text of this turn or "".
    `records` are the answers to the request by the method's spelling, such as "pld:ngram=2".
    Methods that did not answer are left out.
    """
    records_by_label = {
        method.label: records[method.spelling]
        for method in run.header.method_labels
        if method.spelling in records
    }
    return Answers(
        _title(run, request),  # "MT-bench, 81, turn 2"
        prompt,
        done={label: record for label, record in records_by_label.items() if record.is_ok},
        failed={
            label: record.error or "no reason given"
            for label, record in records_by_label.items()
            if not record.is_ok
        },
    )


def _title(run: Run, key: RequestKey) -> str:
    """Return a request in words, such as "MT-bench, 81, turn 2, T=1".

    The first turn is not named, nor is the temperature if the run has only one.
    """
    words = [run.header.task_title(key.task), key.sample_id.removeprefix(f"{key.task}/")]
    if key.turn:
        words.append(f"turn {key.turn + 1}")
    if len(run.header.spec.values.temperatures) > 1:
        words.append(f"T={key.temperature:g}")
    return ", ".join(words)
