"""Run the samples. At every turn, the methods answer one after the other, and each answer becomes a
record.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from specbench.data.prompts import Prompt
from specbench.errors import SpecbenchError, checked_seconds, debug_traceback, describe_fault
from specbench.machine.pauses import PauseWatch
from specbench.measure.base import Plan, Progress, RequestBackend, Sample, Sink, Work
from specbench.measure.order import method_order
from specbench.measure.requests import make_chat, make_request, token_ends
from specbench.types import Completion, Record, RecordKey, seed_of

_MEASURED_FIELDS = sorted({field.name for field in fields(Record)} & {*dir(Completion)})
"""Names of the fields that records and completions share."""


@dataclass(frozen=True, slots=True)
class SampleRunner:
    """Completes samples one by one, and marks the completions during which the machine paused."""

    work: Work
    backend: RequestBackend
    sink: Sink
    progress: Progress
    watch: PauseWatch
    shown_errors: set[str] = field(default_factory=set)
    """The messages of errors whose traceback was shown (with --debug)."""

    def run_sample(self, sample: Sample, stored: Mapping[RecordKey, Record]) -> Iterator[Record]:
        """Answer all turns of a sample with all methods, and yield each new record.

        At each turn the methods run one after the other, in an order drawn for the turn. A record's
        `place` is the method's position in this order, from 0. `stored` has the records of earlier
        parts of the run, whose requests are not run again.
        """
        labels = self.work.labels  # labels of all methods, in the order of tables
        spec = self.work.spec
        # The records of each method's answers so far [turns], by label.
        replies: dict[str, list[Record]] = {label: [] for label in labels}
        for turn in range(len(sample.prompt.turns)):
            # The number of earlier turns of the run at the sample's temperature and load.
            turn_number = sample.num_before + turn
            order = method_order(labels, spec.seed, turn_number, sample.temperature, sample.load)
            for place, label in enumerate(order):
                key = RecordKey(label, *sample.key(turn))  # the method, and the request's key
                record = stored.get(key)
                if record is None:
                    # With a shared history, all methods continue the chat of the first method,
                    # which may have answered this turn already.
                    history_label = labels[0] if spec.history == "shared" else label
                    history = replies[history_label][:turn]
                    self.progress.sample_started(label, key.task, key.sample_id)
                    record = self._complete(key, sample.prompt, history)
                    record = replace(record, place=place)
                    self.sink.append(record)  # stores it in the run's folder
                    self.progress.sample_finished(record)
                    yield record
                replies[label].append(record)

    def _complete(self, key: RecordKey, prompt: Prompt, history: Sequence[Record]) -> Record:
        """Complete one request with a method, and return its record.

        An exception raised by the chat, request or method becomes an error record. The key names
        the method, prompt, turn, pass, temperature and load; `key.request` is the same without the
        method. `history` has the records of the answers to the prompt's earlier turns.
        """
        codec = self.work.codec
        seed = seed_of(self.work.spec.seed, key.request)
        prompt_ids: tuple[int, ...] = ()
        try:
            # `codec.reply` makes a record of the history into a message of the chat.
            chat = make_chat(prompt.turns[: key.turn + 1], history, codec.reply)
            prompt_ids = codec.render(chat)
            request = make_request(self.work, prompt_ids, key.request)
            # `take` returns the seconds for which the machine paused since the last call.
            self.watch.take()
            completion = self.backend.complete(key.method, request)
            is_paused = self.watch.take() > 0
            # Raises if a clock of this machine went back (`least_s`, the smallest of the
            # completion's times, is negative) or stood still (0).
            checked_seconds(completion.least_s, "the answer")
            self.backend.remember(key.method)  # a method of scope "run" may keep this answer
        except Exception as error:  # any method, any plug-in, any model
            reason = error.message if isinstance(error, SpecbenchError) else describe_fault(error)
            self._show_traceback(error, reason)
            return Record(key, "error", prompt_tokens=len(prompt_ids), seed=seed, error=reason)
        answer_text = codec.text(completion.token_ids)
        return Record(
            key,
            "ok",
            prompt_tokens=len(prompt_ids),
            text=answer_text,
            # The position in the text at which each token ends.
            token_ends=token_ends(codec, completion.token_ids, answer_text),
            seed=seed,
            is_paused=is_paused,
            # Tokens, times and counts: all fields that a record shares with a completion.
            **{name: getattr(completion, name) for name in _MEASURED_FIELDS},
        )

    def _show_traceback(self, error: Exception, reason: str) -> None:
        """With --debug, show an error's traceback, but only once per `reason`."""
        if reason not in self.shown_errors and (traceback := debug_traceback(error)):
            self.shown_errors.add(reason)
            self.progress.message(traceback)


@dataclass(frozen=True, slots=True)
class Runner:
    """Completes a plan's samples with a backend, except those that are done."""

    plan: Plan
    backend: RequestBackend
    sink: Sink
    progress: Progress
    watch: PauseWatch = field(default_factory=PauseWatch)

    def run(self, done: Iterable[Record] = ()) -> Iterator[Record]:
        """Run all samples. Yields each new record after it is stored.

        `done` has the records of earlier parts of the run, whose requests are not run again. When a
        pass over the prompts begins, methods forget what they remember of earlier prompts.
        """
        runner = SampleRunner(self.plan.work, self.backend, self.sink, self.progress, self.watch)
        stored = {record.key: record for record in done}
        latest_pass = -1  # the pass of the sample before; passes (`repeat`) count from 0
        with self.watch:  # notes when the machine pauses
            for sample in self.plan.samples:
                if sample.repeat != latest_pass:
                    self.backend.forget()
                    latest_pass = sample.repeat
                yield from runner.run_sample(sample, stored)
