"""Make the request for one turn of a sample, with the replies to its earlier turns."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from specbench.errors import SpecbenchError
from specbench.measure.base import Plan, Sample
from specbench.measure.requests import make_chat, make_request, reply_key
from specbench.measure.server.servers import OpenServer
from specbench.measure.server.stream import ChatRequest, RequestFailed
from specbench.types import Record, RecordKey


def chat_request(
    plan: Plan, records: Mapping[RecordKey, Record], key: RecordKey, sample: Sample
) -> ChatRequest:
    """The request for a turn, with the user's turns up to it and the replies to the earlier turns.

    The replies are taken from `records`. `key` names the method, prompt and turn; `key.request` is
    the same without the method.

    Raises:
        SpecbenchError: a reply to an earlier turn is missing, or is an error, or the prompt has a
            token that the model cannot read.
    """
    codec = plan.setup.codec
    # With a shared history, the replies are those of the first method, pass and load.
    key_of_reply = reply_key(plan.spec, plan.setup.labels[0], key)
    reply_keys = [replace(key_of_reply, turn=turn) for turn in range(key.turn)]
    replies = [records[turn_key] for turn_key in reply_keys if turn_key in records]
    chat = make_chat(sample.prompt.turns[: key.turn + 1], replies, codec.reply)
    return ChatRequest(make_request(plan.work, codec.render(chat), key.request), chat)


@dataclass(slots=True)
class Repeats:
    """Sends requests that already have records again, only to keep a server at its load."""

    plan: Plan
    """The run."""
    records: Mapping[RecordKey, Record]
    """The records so far."""
    method: str
    """The label of the method."""
    server: OpenServer
    """The method's server."""
    num_sent: int = field(default=0, init=False)
    """Requests sent so far."""

    async def send(self, sample: Sample) -> bool:
        """Send the turns of a sample again in order, and drop the answers. Returns False if one
        fails.

        If a turn has no request, it and the turns after it are left out. This is not a failure: an
        earlier turn of the run has no answer, or the model cannot read a token of the prompt.
        Errors of `complete` other than RequestFailed are not caught.
        """
        for key in sample.keys(self.method):
            try:
                ask = chat_request(self.plan, self.records, key, sample)
            except SpecbenchError:  # of any kind: the turn has no request
                break
            self.num_sent += 1
            try:
                await self.server.complete(ask)
            except RequestFailed:
                return False
        return True
