"""Requests from prompts: their order, chats and seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from specbench.data.prompts import Prompt
from specbench.errors import SpecbenchError
from specbench.log.loads import NO_LOAD, Load, loads_of
from specbench.measure.base import Message
from specbench.measure.plan import Plan
from specbench.measure.spec import RunSpec
from specbench.types import Record, RecordKey, Request, RequestKey, seed_of


@dataclass(frozen=True, slots=True)
class Sample:
    """A prompt at one temperature in one repeat at one load: all its turns, for all methods."""

    task: str
    prompt: Prompt
    temperature: float
    repeat: int
    load: Load = NO_LOAD

    def key(self, turn: int) -> RequestKey:
        """The key of one turn's request."""
        return RequestKey(
            self.temperature, self.task, self.prompt.sample_id, turn, self.repeat, *self.load
        )  # fmt: skip


def samples(plan: Plan) -> Iterator[Sample]:
    """The samples of a run in order: a repeat is a pass over all tasks."""
    for repeat in range(plan.repeats):
        for task, prompts in plan.prompts.items():
            for prompt in prompts:
                for temperature in plan.spec.temperatures:
                    for load in loads(plan.spec):
                        yield Sample(task, prompt, temperature, repeat, load)


def numbered_samples(plan: Plan) -> Iterator[tuple[Sample, int]]:
    """The samples of a run in order, each with the turns before it at its temperature and load."""
    num_turns = Counter[tuple[float, Load]]()
    for sample in samples(plan):
        at = sample.temperature, sample.load
        yield sample, num_turns[at]
        num_turns[at] += len(sample.prompt.turns)


def loads(spec: RunSpec) -> tuple[Load, ...]:
    """The loads of a run in order; a server without any answers one request at a time."""
    default = Load(concurrency=1) if spec.backend == "server" else NO_LOAD
    return loads_of(spec) or (default,)


def planned_keys(plan: Plan) -> Iterator[RecordKey]:
    """The keys of all records of a run."""
    for sample in samples(plan):
        for turn in range(len(sample.prompt.turns)):
            for label in plan.setup.labels:
                yield RecordKey(label, *sample.key(turn))


def count_records(plan: Plan) -> int:
    """The number of records of the whole run."""
    num_turns = sum(len(sample.prompt.turns) for sample in samples(plan))
    return num_turns * len(plan.setup.labels)


def make_request(plan: Plan, prompt_ids: tuple[int, ...], key: RequestKey) -> Request:
    """The request of a rendered chat."""
    return Request(
        prompt_ids,
        plan.max_new_tokens,
        sampling=plan.spec.sampling(key.temperature),
        eos_ids=plan.setup.codec.eos_ids,
        seed=seed_of(plan.spec.seed, key),
    )


def warm_up_requests(plan: Plan) -> list[Request]:
    """At each temperature the first prompt, and the longest chat that a prompt can lead to."""
    render = plan.setup.codec.render
    prompts = [prompt for one in plan.prompt_sets for prompt in one.prompts]
    longest = [
        (render([user(" ".join(prompt.turns))]), plan.max_new_tokens * len(prompt.turns))
        for prompt in prompts
    ]
    usual = render([user(prompts[0].turns[0])]), plan.max_new_tokens
    most = max(longest, key=lambda one: len(one[0]) + one[1])
    return [
        Request(prompt_ids, max_new_tokens, plan.spec.sampling(temperature))
        for temperature in plan.spec.temperatures
        for prompt_ids, max_new_tokens in (usual, most)
    ]


def reply_key(spec: RunSpec, first: str, key: RecordKey) -> RecordKey:
    """The key of the answer that follows a request as history, at the same turn.

    With `history` "shared" it is that of the first method. Servers answer one method after the
    other: there it is of the first repeat at the first load, which all others come after.
    """
    if spec.history == "own":
        return key
    if spec.backend != "server":
        return replace(key, method=first)
    load = loads(spec)[0]
    return replace(
        key, method=first, repeat=0, concurrency=load.concurrency, request_rate=load.request_rate
    )


def make_chat(turns: Sequence[str], replies: Sequence[Record]) -> list[Message]:
    """The chat up to the last of these turns, with a reply after each earlier one.

    Raises:
        SpecbenchError: a reply is missing.
    """
    messages: list[Message] = []
    for turn, text in enumerate(turns):
        messages.append(user(text))
        if turn < len(turns) - 1:
            if turn >= len(replies) or not replies[turn].is_ok:
                raise SpecbenchError(f"Turn {turn}, which this turn follows, has failed.")
            messages.append({"role": "assistant", "content": replies[turn].text})
    return messages


def user(text: str) -> Message:
    """A message of the user."""
    return {"role": "user", "content": text}
