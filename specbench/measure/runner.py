"""The samples of a run: every method on every turn, alternating, one record each.

The order of the methods at each request: balanced Williams designs, drawn with the run's seed.

In a design every method takes every place equally often, and follows every other method
equally often, so that neither a place nor what a method leaves behind (heat, caches) favours
one (Williams 1949). Each block of requests draws another design.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from specbench.data.prompts import Prompt
from specbench.errors import SpecbenchError, debug_traceback, describe_fault
from specbench.log.run import Load
from specbench.machine.pauses import PauseWatch
from specbench.measure.base import Plan, Progress, RequestBackend, Sample, Sink
from specbench.measure.requests import make_chat, make_request, token_ends
from specbench.types import Completion, Record, RecordKey, seed_of


def method_order(
    labels: Sequence[str], seed: int, number: int, temperature: float, load: Load
) -> tuple[str, ...]:
    """The methods' order at a request, by its number among those of its temperature and load."""
    rows = williams_rows(len(labels))
    block, row = divmod(number, len(rows))
    draw = random.Random(repr((seed, temperature, *load, block)))
    drawn = draw.sample(labels, len(labels))
    return tuple(drawn[place] for place in draw.sample(rows, len(rows))[row])


def williams_rows(number: int) -> Sequence[tuple[int, ...]]:
    """A Williams design of this many treatments: a row for each order [number or 2 * number]."""
    first = [(i + 1) // 2 if i % 2 else -(i // 2) for i in range(number)]
    rows = [tuple((step + shift) % number for step in first) for shift in range(number)]
    return rows if number % 2 == 0 else [*rows, *(row[::-1] for row in rows)]


@dataclass(frozen=True, slots=True)
class Runner:
    """Completes a plan's samples with a backend, except those that are done.

    A completion during which the machine paused is marked. `told` are the errors whose
    traceback --debug has shown.
    """

    plan: Plan
    backend: RequestBackend
    sink: Sink
    progress: Progress
    watch: PauseWatch = field(default_factory=PauseWatch)
    told: set[str] = field(default_factory=set)

    def run(self, done: Iterable[Record] = ()) -> Iterator[Record]:
        """Run all samples. Yields each new record after it is stored."""
        known = {record.key: record for record in done}
        repeat = -1
        with self.watch:
            for sample in self.plan.samples:
                if sample.repeat != repeat:
                    self.backend.forget()
                    repeat = sample.repeat
                yield from self.run_sample(sample, known)

    def run_sample(self, sample: Sample, known: Mapping[RecordKey, Record]) -> Iterator[Record]:
        """Run what is not known of a sample: its turns, and in each the methods in their order."""
        labels, spec = self.plan.setup.labels, self.plan.spec
        replies: dict[str, list[Record]] = {label: [] for label in labels}
        is_shared = spec.history == "shared"
        for turn in range(len(sample.prompt.turns)):
            number = sample.num_before + turn
            order = method_order(labels, spec.seed, number, sample.temperature, sample.load)
            for place, label in enumerate(order):
                key = RecordKey(label, *sample.key(turn))
                record = known.get(key)
                if record is None:
                    history = replies[labels[0] if is_shared else label][:turn]
                    self.progress.sample_started(label, key.task, key.sample_id)
                    record = self._complete(key, sample.prompt, history)
                    record = replace(record, place=place)
                    self.sink.append(record)
                    self.progress.sample_finished(record)
                    yield record
                replies[label].append(record)

    def _complete(self, key: RecordKey, prompt: Prompt, history: Sequence[Record]) -> Record:
        """One record. Whatever a method raises becomes an error record, and the run goes on."""
        codec, seed = self.plan.setup.codec, seed_of(self.plan.spec.seed, key.request)
        prompt_ids: tuple[int, ...] = ()
        try:
            prompt_ids = codec.render(make_chat(prompt.turns[: key.turn + 1], history))
            request = make_request(self.plan, prompt_ids, key.request)
            self.watch.take()
            done = self.backend.complete(key.method, request)
            is_paused = self.watch.take() > 0
            self.backend.remember(key.method)
        except Exception as error:  # any method, any plug-in, any model
            text = error.message if isinstance(error, SpecbenchError) else describe_fault(error)
            if text not in self.told and (traceback := debug_traceback(error)):
                self.told.add(text)
                self.progress.message(traceback)
            return Record(key, "error", len(prompt_ids), seed=seed, error=text)
        text = codec.text(done.token_ids)
        return Record(
            key,
            "ok",
            len(prompt_ids),
            text=text,
            token_ends=token_ends(codec, done.token_ids, text),
            seed=seed,
            is_paused=is_paused,
            **{name: getattr(done, name) for name in _MEASURED},
        )


_MEASURED = sorted({one.name for one in fields(Record)} & {*dir(Completion)})
"""Fields of a record that a completion has under the same name."""
