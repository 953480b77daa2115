"""Requests from prompts: their chats and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from specbench.errors import SpecbenchError
from specbench.measure.base import Message, Plan, loads_of_run
from specbench.measure.spec import RunSpec
from specbench.types import Record, RecordKey, Request, RequestKey, seed_of


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
    load = loads_of_run(spec)[0]
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
