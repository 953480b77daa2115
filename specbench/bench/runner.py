"""The run itself: every method on every turn, alternating, one record a line.

Knows requests, completions and records. What completes a request (the engine's loop on a loaded
target, or a whole serving engine) is a function to it, and so is what turns messages into tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from specbench.bench.prompts import Prompt
from specbench.bench.spec import RunSpec
from specbench.errors import SpecbenchError
from specbench.types import Completion, Record, Request, SampleKey

Completer = Callable[[Request], Completion]
Message = dict[str, str]


class Codec(Protocol):
    """Messages to prompt tokens, and tokens back to text, for one model and template."""

    @property
    def eos_ids(self) -> frozenset[int]: ...
    def render(self, messages: Sequence[Message]) -> tuple[int, ...]: ...
    def text(self, token_ids: Sequence[int]) -> str: ...


class Progress(Protocol):
    """Whoever watches a run."""

    def started(self, total: int) -> None: ...
    def sample_started(self, method: str, task: str, sample_id: str) -> None: ...
    def sample_finished(self, record: Record) -> None: ...
    def message(self, text: str) -> None: ...
    def finished(self) -> None: ...


class Sink(Protocol):
    """Where records go, one by one."""

    def append(self, record: Record) -> None: ...


@dataclass(frozen=True, slots=True)
class Work:
    """One sample of one task at one temperature in one repeat: all turns, all methods."""

    task: str
    prompt: Prompt
    temperature: float
    repeat: int


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs `completers` (label -> completer, in table order) over work, skipping what is done."""

    spec: RunSpec
    max_new_tokens: int
    completers: Mapping[str, Completer]
    codec: Codec
    sink: Sink
    progress: Progress

    def run(
        self, prompts: Mapping[str, Sequence[Prompt]], done: Iterable[Record] = ()
    ) -> Iterator[Record]:
        """Run all prompts (task -> prompts); yields each new record once it is stored."""
        known = {record.key: record for record in done}
        turn_count = 0
        for work in self.plan(prompts):
            yield from self._sample(work, known, turn_count)
            turn_count += len(work.prompt.turns)

    def plan(self, prompts: Mapping[str, Sequence[Prompt]]) -> Iterator[Work]:
        """The samples in the order they run: a repeat is a whole pass over all tasks."""
        for repeat in range(self.spec.repeats):
            for task, samples in prompts.items():
                for prompt in samples:
                    for temperature in self.spec.temperatures:
                        yield Work(task, prompt, temperature, repeat)

    def total(self, prompts: Mapping[str, Sequence[Prompt]]) -> int:
        """How many records the whole run has."""
        return sum(len(work.prompt.turns) for work in self.plan(prompts)) * len(self.completers)

    def _sample(
        self, work: Work, known: Mapping[SampleKey, Record], turn_count: int
    ) -> Iterator[Record]:
        """All turns of a sample; within a turn the methods alternate, the first one rotating."""
        labels = list(self.completers)
        said: dict[str, list[Record]] = {label: [] for label in labels}
        for turn in range(len(work.prompt.turns)):
            first = (turn_count + turn) % len(labels)
            for label in labels[first:] + labels[:first]:
                key = SampleKey(
                    label, work.temperature, work.task, work.prompt.sample_id, turn, work.repeat
                )
                record = known.get(key)
                if record is None:
                    heard = said[labels[0] if self.spec.history == "shared" else label][:turn]
                    self.progress.sample_started(label, work.task, work.prompt.sample_id)
                    record = self._complete(key, work.prompt, heard)
                    self.sink.append(record)
                    self.progress.sample_finished(record)
                    yield record
                said[label].append(record)

    def _complete(self, key: SampleKey, prompt: Prompt, heard: Sequence[Record]) -> Record:
        """One record; whatever a method raises becomes an error record and the run goes on."""
        seed = seed_of(self.spec.seed, key)
        prompt_ids: tuple[int, ...] = ()
        try:
            prompt_ids = self.codec.render(chat_until(prompt.turns[: key.turn + 1], heard))
            request = Request(
                prompt_ids,
                self.max_new_tokens,
                self.spec.sampling(key.temperature),
                self.codec.eos_ids,
                seed,
            )
            done = self.completers[key.method](request)
        except Exception as error:  # any method, any plug-in, any model
            if type(error).__name__ == "OutOfMemoryError":
                _free_device_memory()
            text = error.message if isinstance(error, SpecbenchError) else _describe(error)
            return Record(key, "error", len(prompt_ids), seed=seed, error=text)
        return Record(
            key,
            "ok",
            len(prompt_ids),
            done.token_ids,
            self.codec.text(done.token_ids),
            done.stop_reason,
            done.prefill_s,
            done.decode_s,
            done.accept_lengths,
            done.num_nodes,
            seed,
            phases=done.phases,
            peak_memory_bytes=done.peak_memory_bytes,
            energy_j=done.energy_j,
            trace=done.trace,
        )


def seed_of(run_seed: int, key: SampleKey) -> int:
    """The seed of a sample's draws: the same for every method and temperature."""
    parts = (run_seed, key.task, key.sample_id, key.turn, key.repeat)
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def chat_until(turns: Sequence[str], heard: Sequence[Record]) -> list[Message]:
    """The chat up to the last of these turns: the user's, with the answers heard in between.

    Raises:
        SpecbenchError: an answer in between is missing.
    """
    messages: list[Message] = []
    for turn, text in enumerate(turns):
        messages.append({"role": "user", "content": text})
        if turn < len(turns) - 1:
            if turn >= len(heard) or not heard[turn].is_ok:
                raise SpecbenchError(f"Turn {turn} that this one goes on from has failed.")
            messages.append({"role": "assistant", "content": heard[turn].text})
    return messages


def _describe(error: Exception) -> str:
    first = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def _free_device_memory() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
