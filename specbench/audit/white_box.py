"""The audit of logits, guesses, tokens and rules: every method at every temperature.

At temperature 0 the logits along the accepted paths are compared with a plain forward's. Above
it, tokens and guesses are also tested as draws, at the run's temperature and at a raised one,
and each acceptance rule on trees with known probabilities. Vanilla is the control.

The tested answers are recorded ones, completed again and watched, and newly drawn ones. A
recorded answer is completed again with its own seed, so that caches and memories are as in the
run. Its recorded tokens are tested even if other tokens come out now.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from msgspec.structs import replace as replace_part

from specbench.analysis.records import BASELINE, RecordTable
from specbench.analysis.stats.significance import holm
from specbench.audit.model import RunModel
from specbench.audit.results import ALPHA, EPSILON, deviation_limit
from specbench.audit.token_tests import (
    guess_tests,
    logit_tests,
    rule_tests,
    smallest_tv,
    token_tests,
)
from specbench.errors import MethodFault, NonFiniteError, UserError
from specbench.log.audit import AuditTest, MethodAudit
from specbench.log.header import RunHeader
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
    """Complete records again, spread over the run, until they are enough.

    Runs with one seed that were merged have an answer twice, which is one draw.
    """
    once = {(one.key.task, one.key.sample_id, one.key.turn, one.seed): one for one in records}
    for record in spread([*once.values()]):
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


Records: TypeAlias = Mapping[float, Mapping[str, Sequence[Record]]]

CHAINS = (1, 8, 32)
"""Nodes of the chains whose rounding calibrates the limit of logits."""
NUM_CALIBRATED = 4
RAISED = 2.0
"""Raised temperature: residuals and bonus tokens are rare where the target is sure."""
MIN_POWER = 0.001
"""Smallest total variation to plan for; it takes a million tokens."""
TESTS_PER_CELL = 40
"""Number of tests that the size of a sample is planned for."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Size of an audit: tokens per method and temperature, or as many as find `power`.

    `power` is a total variation. Without tokens only recorded greedy answers are compared.
    `num_outcomes` are drawn of each acceptance rule.
    """

    num_tokens: int = 2000
    power: float | None = None
    num_outcomes: int = 20_000


def make_effort(num_tokens: int, power: float | None) -> Effort:
    """The effort that the command line asks for.

    Raises:
        UserError: no total variation of this size can be found.
    """
    if power is not None and not MIN_POWER <= power < 1:
        raise UserError(
            f"--power {power:g} is not a total variation that can be found.",
            f"Give one from {MIN_POWER:g} up to 1, such as --power 0.02.",
        )
    return Effort(num_tokens, power)


def usable_records(table: RecordTable) -> Records:
    """Temperature -> method -> its measured records."""
    frame = table.frame
    found: dict[float, dict[str, list[Record]]] = {}
    groups = frame[frame["is_measured"]].groupby(
        ["temperature", "method"], observed=True, sort=False
    )
    for (temperature, method), rows in groups:
        found.setdefault(temperature, {})[method] = [table.records[row] for row in rows.index]
    return dict(sorted(found.items()))


def audit_methods(
    records: Records, info: RunHeader, model: RunModel, effort: Effort, say: Callable[[str], None]
) -> list[MethodAudit]:
    """Test every method at every temperature; p-values are corrected for their number."""
    found = list(_Tester(records, info, model, effort, say).results())
    return [_with_verdict(one, info) for one in corrected(found)]


def audit_servers(
    records: Records, info: RunHeader, model: RunModel, say: Callable[[str], None]
) -> list[MethodAudit]:
    """Test the recorded sampled tokens of servers: these cannot draw further ones for us."""
    tester, found = _Tester(records, info, model, Effort(), say), []
    for temperature, methods in records.items():
        for method, own in methods.items():
            if not temperature:
                continue
            server = info.servers.get(method)
            if server is None or not server.sends_token_ids:
                say(f"{method}: sampled answers are not audited, its server sends no token ids.")
                continue
            answers = Answers()
            recorded(answers, model, own)
            tokens = answers.tokens
            tests = [] if tokens is None else [*token_tests(tokens)]
            found.append(tester.result(method, (temperature, temperature), answers, tests))
    return [_with_verdict(one, info) for one in corrected(found)]


def corrected(results: Sequence[MethodAudit]) -> list[MethodAudit]:
    """The results with p-values corrected for the number of tests over all of them."""
    p_values = [t.p_value for one in results for t in one.tests if t.p_value is not None]
    after = iter([p for p in holm(dict(enumerate(p_values))).values() if p is not None])
    return [
        replace_part(one, tests=tuple(_judged(test, after) for test in one.tests))
        for one in results
    ]


def _judged(test: AuditTest, p_values: Iterator[float]) -> AuditTest:
    if test.p_value is None:
        is_failed = test.limit is not None and not test.effect <= test.limit
        return replace_part(test, is_failed=is_failed)
    p_value = next(p_values)
    return replace_part(test, p_value=p_value, is_failed=p_value < ALPHA)


def _with_verdict(result: MethodAudit, info: RunHeader) -> MethodAudit:
    if not result.failures and not result.fault:
        return result
    is_bug = bool(result.fault) or info.method(result.method).is_lossless
    return replace_part(result, status="bug" if is_bug else "lossy")


class _Tester:
    """Gathers the answers of methods and tests them."""

    def __init__(
        self, records: Records, info: RunHeader, model: RunModel, effort: Effort,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._records, self._model = records, model
        self._dtype = info.model.rounding(model.dtype)
        self._effort, self._say = effort, say
        num_cells = sum(2 if temperature else 1 for temperature, m in records.items() for _ in m)
        self._error_rate = ALPHA / (TESTS_PER_CELL * max(num_cells, 1))

    def results(self) -> Iterator[MethodAudit]:
        limit = self._limit()
        for temperature, methods in self._records.items():
            for level in levels(temperature):
                baseline = None
                for method in sorted(methods, key=lambda name: name != BASELINE):
                    self._say(f"T={level:g}: {method} …")
                    answers = self._answers(methods[method], (temperature, level))
                    tests = [*self._tests(answers, baseline, limit, is_sampled=level > 0)]
                    if method == BASELINE:
                        baseline = answers.logits
                    elif level == temperature > 0 and not answers.fault:
                        outcomes = self._model.rule_outcomes(method, self._effort.num_outcomes)
                        tests += rule_tests(outcomes)
                    yield self.result(method, (temperature, level), answers, tests)

    def _answers(self, records: Sequence[Record], at: tuple[float, float]) -> Answers:
        """Recorded answers and, above temperature 0, drawn ones; drawn ones alone if raised."""
        answers, (temperature, level) = Answers(), at
        sampling = replace(self._model.sampling(temperature), temperature=level)

        def is_enough() -> bool:
            if answers.num_tokens < self._effort.num_tokens:
                return False
            power, tokens = self._effort.power, answers.tokens
            if not power or not level or tokens is None:
                return True
            return smallest_tv(tokens, self._error_rate) <= power

        try:
            if level == temperature:
                replay(answers, self._model, records, is_enough)
            if level:
                draw(answers, self._model, records, sampling, is_enough)
        except (MethodFault, NonFiniteError) as error:
            answers.fault = error.message
        return answers

    def _tests(
        self, answers: Answers, baseline: LogitNumbers | None, limit: float, *, is_sampled: bool
    ) -> Iterator[AuditTest]:
        if (logits := answers.logits) is not None:
            epsilon = EPSILON[self._dtype]
            yield from logit_tests(logits, baseline, epsilon=epsilon, limit=limit)
        if is_sampled and (guesses := answers.guesses) is not None:
            yield from guess_tests(guesses)
        if is_sampled and (tokens := answers.tokens) is not None:
            yield from token_tests(tokens)

    def result(
        self, method: str, at: tuple[float, float], answers: Answers, tests: Sequence[AuditTest]
    ) -> MethodAudit:
        """The result of tests, not corrected yet."""
        temperature, level = at
        tokens = answers.tokens if level else None
        return MethodAudit(
            method=method,
            temperature=temperature,
            level=level,
            num_answers=answers.num,
            num_replayed=answers.num_replayed,
            num_same=answers.num_same,
            num_tokens=0 if tokens is None else len(tokens),
            smallest_tv=None if tokens is None else smallest_tv(tokens, self._error_rate),
            fault=answers.fault,
            tests=tuple(tests),
        )

    def _limit(self) -> float:
        """The largest deviation of logits that rounding explains on this model."""
        methods = next(iter(self._records.values()))
        records = spread(methods.get(BASELINE) or next(iter(methods.values())))
        epsilon, largest = EPSILON[self._dtype], 0.0
        for record in records[:NUM_CALIBRATED]:
            for num_rows in CHAINS:
                found = self._model.chains(record, num_rows)
                units = found.deviation / (epsilon * found.scale)
                largest = max([largest, *units.tolist()])
        return deviation_limit(self._dtype, largest)


def levels(temperature: float) -> tuple[float, ...]:
    """The temperature and, if tokens are sampled, the raised one that is tested too."""
    return (temperature, max(RAISED, 1.5 * temperature)) if temperature else (temperature,)
