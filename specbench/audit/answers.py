"""The answers that an audit tests: recorded ones, completed again and watched, and drawn ones.

A recorded answer is completed again with its own seed, so caches and memories are those of the
run. Its recorded tokens are tested, also if they come out differently now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from specbench.audit.model import RunModel
from specbench.types import Record, Request, Sampling

if TYPE_CHECKING:
    from specbench.audit.evidence import GuessNumbers, LogitNumbers, TokenNumbers

LONGEST = 256
"""Most tokens of an answer that is drawn anew."""


@dataclass(slots=True)
class Answers:
    """The answers of one method at one temperature, with the numbers of all of them."""

    parts: dict[str, list[Any]] = field(default_factory=dict)
    num: int = 0
    num_tokens: int = 0
    num_replayed: int = 0
    num_same: int = 0
    fault: str = ""

    def add(self, **parts: Any) -> None:
        """Add one answer's numbers by kind."""
        self.num += 1
        for kind, part in parts.items():
            self.parts.setdefault(kind, []).append(part)
        self.num_tokens += len(parts["tokens"])

    def _joined(self, kind: str) -> Any:
        parts = self.parts.get(kind)
        return type(parts[0]).join(parts) if parts else None

    @property
    def tokens(self) -> TokenNumbers | None:
        return self._joined("tokens")

    @property
    def logits(self) -> LogitNumbers | None:
        return self._joined("logits")

    @property
    def guesses(self) -> GuessNumbers | None:
        return self._joined("guesses")


def replay(
    answers: Answers, model: RunModel, records: Sequence[Record], is_enough: Callable[[], bool]
) -> None:
    """Complete records again, spread over the run, until they are enough."""
    for record in spread(records):
        if is_enough():
            return
        found = model.watch(record.key.method, model.request(record))
        tokens = found.tokens
        answers.num_replayed += 1
        if found.token_ids == record.token_ids:
            answers.num_same += 1
        else:
            tokens = model.token_numbers(record)
        answers.add(tokens=tokens, logits=found.logits, guesses=found.guesses)


def draw(
    answers: Answers,
    model: RunModel,
    records: Sequence[Record],
    sampling: Sampling,
    is_enough: Callable[[], bool],
) -> None:
    """Draw new answers to the prompts of records, on new seeds, until they are enough.

    They do not end at an end token.
    """
    requests = _new_requests(model, spread(records), sampling)
    while not is_enough():
        method, request = next(requests)
        found = model.watch(method, request)
        answers.add(tokens=found.tokens, logits=found.logits, guesses=found.guesses)


def recorded(answers: Answers, model: RunModel, records: Sequence[Record]) -> None:
    """Take the tokens of records as they are."""
    for record in records:
        answers.add(tokens=model.token_numbers(record))


def _new_requests(
    model: RunModel, records: Sequence[Record], sampling: Sampling
) -> Iterator[tuple[str, Request]]:
    """A method's requests without end. The seeds of two methods differ."""
    round_ = 0
    while True:
        for record in records:
            asked = model.request(record)
            name = (record.key.method, sampling, asked.prompt_ids, round_)
            digest = hashlib.sha256(repr(name).encode()).digest()
            yield (
                record.key.method,
                replace(
                    asked,
                    sampling=sampling,
                    max_new_tokens=min(asked.max_new_tokens, LONGEST),
                    eos_ids=frozenset(),
                    seed=int.from_bytes(digest[:8], "big") >> 1,
                ),
            )
        round_ += 1


def spread(records: Sequence[Record]) -> list[Record]:
    """The records shuffled, so that the first few are spread evenly over the whole run.

    Record i gets the place i * 0.618 mod 1: each new place falls into one of the widest gaps.
    """
    places = np.arange(len(records)) * ((np.sqrt(5) - 1) / 2) % 1
    return [records[i] for i in np.argsort(np.argsort(places))]
