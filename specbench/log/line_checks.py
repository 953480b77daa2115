"""Check single lines of `samples.jsonl` against the run's header.

A value that no run can have written is refused, and the message has the path of its field.
`RecordLine` checks the types and ranges of single fields. `log.faults` finds faults that show only
in several lines.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from itertools import chain
from operator import gt
from typing import Any

from specbench.log.amounts import MOST_AMOUNT
from specbench.log.header import RunHeader
from specbench.log.record import ImportedLine, RecordLine
from specbench.types import BASELINE, RecordKey


class ImpossibleRecord(ValueError):
    """A line that no run can have written. The message begins with the path of the field."""


class RecordCheck:
    """Checks the lines of a run in the order of the file."""

    def __init__(self, header: RunHeader) -> None:
        """Read from the header which values lines can have.

        A line has a key: method, task, temperature, load and so on. A load is a number of requests
        at once (`concurrency`) or per second (`request_rate`), and the other number is 0. Without a
        server, both are 0.
        """
        spec_values = header.spec.values  # the run's options
        self._budget = spec_values.max_new_tokens  # maximum tokens of an answer; None if unknown
        self._repeats = spec_values.repeats or 1  # passes over all prompts
        # All loads of the run: numbers of requests at once, and rates per second.
        concurrency, request_rates = spec_values.concurrency, spec_values.request_rates
        # Field of a key -> the values that it can have; without values, it can have any.
        # In a run with both kinds of load, either field may be 0.
        self._values_of_run: dict[str, Collection[Any]] = {
            "method": header.methods,  # by their names in lines
            "task": header.columns,  # task -> title of its column in tables
            "temperature": spec_values.temperatures,
            "concurrency": (*concurrency, 0) if concurrency else (),
            "request_rate": (*request_rates, 0.0) if request_rates else (),
        }
        self._num_prompts = {prompts.task: prompts.num_prompts for prompts in header.prompts}
        self._least_step_s = _least_step_s(header)  # no step takes fewer seconds
        # The next four are about the lines so far.
        self._sample_ids: dict[str, set[str]] = {}  # by task
        self._turns: set[tuple[str, str, int]] = set()  # task, sample id and turn
        self._line_numbers: dict[RecordKey, int] = {}  # of the first line with the key
        self._failed: set[RecordKey] = set()  # the last line with the key is of a failed request

    def check(self, line: RecordLine | ImportedLine, key: RecordKey, line_number: int) -> None:
        """Check the next line of the file, whose number counts from 1, and remember its key.

        Raises:
            ImpossibleRecord: the run cannot have this key, or an earlier line has it, or the line
                contradicts itself. The message is about the first such problem.
        """
        if isinstance(line, ImportedLine):
            problems_of_line = _imported_problems(line)
        else:
            problems_of_line = chain(
                _problems(line, self._budget), _time_problems(line, self._least_step_s)
            )
        problem = next(chain(self._key_problems(key, line_number), problems_of_line), None)
        if problem is not None:
            raise ImpossibleRecord(f"$.{problem}")  # "$." and the path of a field
        if line.status == "error":
            # A later line may have the same key: a continued run may send failed requests again.
            self._failed.add(key)
        else:
            self._failed.discard(key)

    def _key_problems(self, key: RecordKey, line_number: int) -> Iterator[str]:
        """Yield a sentence for each reason why a key is wrong: the run cannot have it, or an
        earlier line has it. Each sentence begins with the name of the wrong field.

        A key names a method's answer: the sample and its task, the turn of the chat and the pass
        over the prompts (`repeat`), both from 0, and so on. The key is added to the keys of the
        lines so far. `line_number` counts from 1.
        """
        for field, values_of_run in self._values_of_run.items():  # none: any value is right
            value_of_key = getattr(key, field)
            if values_of_run and value_of_key not in values_of_run:
                listed = ", ".join(map(str, values_of_run))
                yield f"{field}: {value_of_key!r} is not one of the run's: {listed}"
        if key.repeat >= self._repeats:  # the run's number of passes
            yield f"repeat: {key.repeat}, but the run has {self._repeats} (from 0)"
        self._turns.add((key.task, key.sample_id, key.turn))
        if key.turn and (key.task, key.sample_id, key.turn - 1) not in self._turns:
            yield (
                f"turn: {key.turn} of {key.sample_id!r}, but turn {key.turn - 1} is missing "
                "(from 0)"
            )
        sample_ids = self._sample_ids.setdefault(key.task, set())  # of this task
        sample_ids.add(key.sample_id)
        num_prompts = self._num_prompts.get(key.task)  # None if the header does not say
        if num_prompts is not None and len(sample_ids) > num_prompts:
            yield f"sample_id: {key.sample_id!r} is beyond the {num_prompts} prompts of {key.task}"
        first_line_number = self._line_numbers.setdefault(key, line_number)  # with this key
        if first_line_number != line_number and key not in self._failed:
            yield (
                f"sample_id: {key.sample_id!r} of {key.method} is in line {first_line_number} "
                "already"
            )


def _problems(line: RecordLine, budget: int | None) -> Iterator[str]:
    """Yield a sentence, beginning with a field's name, for each contradiction in an answer's line.

    `budget` is the maximum number of tokens of an answer, None if unknown. `accept_lengths` has the
    tokens that each step emitted [steps]. `num_nodes` has the nodes of each step's tree, root
    included [steps], and `token_ends` the ends of the tokens in the text [tokens]. Both may be
    empty. `serving` has a server's numbers, and is None for the engine in this process.
    """
    num_tokens = len(line.token_ids)
    # A server that sends only text counts its tokens; `token_ids` is then the text tokenised by us.
    if line.serving and line.serving.reported_tokens is not None:
        num_tokens = line.serving.reported_tokens
    if line.num_tokens != num_tokens:
        yield f"num_tokens: {line.num_tokens}, but the answer has {num_tokens}"
    if line.status == "error":
        if num_tokens or line.accept_lengths or {line.prefill_s, line.decode_s} != {None}:
            yield "status: 'error', but the line has tokens or times"
        return
    if line.prefill_s is None or line.decode_s is None:
        absent_time = "prefill_s" if line.prefill_s is None else "decode_s"
        yield f"{absent_time}: null in a line that is ok"
    if line.phases:  # seconds of the steps by phase
        yield from _amount_problems("phases", asdict(line.phases))
    if line.serving:
        yield from _amount_problems("serving", asdict(line.serving))
    num_emitted = 1 + sum(line.accept_lengths)  # tokens: the prefill's, then those of the steps
    are_steps_known = bool(line.accept_lengths) or line.serving is None  # a server may hide them
    if are_steps_known and num_emitted != num_tokens:
        yield f"accept_lengths: 1 + their sum is {num_emitted}, but num_tokens is {num_tokens}"
    if budget is not None and num_tokens > budget:
        yield f"num_tokens: {num_tokens} is more than the run's budget of {budget}"
    if line.token_ends and len(line.token_ends) != len(line.token_ids):
        yield f"token_ends: {len(line.token_ends)} ends, but token_ids has {len(line.token_ids)}"
    if line.num_nodes and len(line.num_nodes) != len(line.accept_lengths):
        num_steps = len(line.accept_lengths)
        yield f"num_nodes: {len(line.num_nodes)} steps, but accept_lengths has {num_steps}"
    # Per step, True if more tokens were emitted than the tree has nodes.
    is_longer_than_tree = list(map(gt, line.accept_lengths, line.num_nodes))
    if any(is_longer_than_tree):
        step = is_longer_than_tree.index(True)
        length, num_nodes = line.accept_lengths[step], line.num_nodes[step]
        yield f"accept_lengths[{step}]: {length} tokens from a tree of {num_nodes} nodes"
    # A method is "name" or "name:options"; vanilla's steps emit one token each.
    if line.method.partition(":")[0] == BASELINE and set(line.accept_lengths) - {1}:
        yield f"accept_lengths: {max(line.accept_lengths)} in a line of vanilla, which drafts none"


def _amount_problems(part_name: str, amounts: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each number that is out of range in a part of a line, such as "phases".
    `amounts` maps the fields of the part to numbers, tuples of numbers, or other values, which are
    not checked.
    """
    for field, amount in amounts.items():
        numbers = amount if isinstance(amount, tuple) else (amount,)
        for number in numbers:
            if isinstance(number, int | float) and not 0 <= number <= MOST_AMOUNT:
                yield f"{part_name}.{field}: {number:g} is not between 0 and {MOST_AMOUNT:g}"


def _imported_problems(line: ImportedLine) -> Iterator[str]:
    """Yield a sentence, beginning with a field's name, for each contradiction in the line of an
    imported answer. Fields that the other tool's file lacks are empty, 0 or None.
    """
    if line.status == "error":
        if line.num_tokens or line.accept_lengths or line.num_steps is not None:
            yield "status: 'error', but the line has tokens or steps"
        return
    if not line.num_tokens:
        yield "num_tokens: 0 in a line that is ok"
    if line.token_ids and len(line.token_ids) != line.num_tokens:
        yield f"num_tokens: {line.num_tokens}, but token_ids has {len(line.token_ids)}"
    if line.accept_lengths and len(line.accept_lengths) != line.num_steps:
        yield f"num_steps: {line.num_steps}, but accept_lengths has {len(line.accept_lengths)}"
    if line.accept_lengths and sum(line.accept_lengths) != line.num_emitted:
        yield f"num_emitted: {line.num_emitted}, but accept_lengths emit {sum(line.accept_lengths)}"
    if (line.num_emitted is None) != (line.num_steps is None):
        yield "num_steps and num_emitted: only one of them is given"


def _least_step_s(header: RunHeader) -> float:
    """The shortest possible time of a step in seconds. A step reads the target's weights, at most
    at the nominal bandwidth.

    Bytes that the device's last-level cache may hold do not count. The result is 0 if the bandwidth
    or the bytes are unknown or not measured, or if other machines may have computed some answers.
    """
    roofline = header.roofline  # of the machine on which the run began; None if not measured
    # The run was merged, resumed on another machine or with other versions, or done by a cluster or
    # by servers.
    is_elsewhere = header.origins or header.segments or header.workers or header.servers
    if roofline is None or is_elsewhere or not roofline.nominal_bytes_per_s:
        return 0.0
    if roofline.is_mixture_of_experts and not roofline.unread_bytes:
        return 0.0  # the bytes of the experts that a step does not read are unknown
    num_bytes = roofline.target_bytes - roofline.unread_bytes - roofline.cache_bytes
    return max(0, num_bytes) / roofline.nominal_bytes_per_s


def _time_problems(line: RecordLine, least_step_s: float) -> Iterator[str]:
    """Yield a sentence if an answer's steps took less than `least_step_s` seconds on average."""
    least_s = least_step_s * len(line.accept_lengths)
    if line.decode_s is not None and line.decode_s < least_s:
        yield (
            f"decode_s: {line.decode_s:g} for {len(line.accept_lengths)} steps, which take at "
            f"least {least_s:.3g} s to read the weights at the nominal bandwidth"
        )
