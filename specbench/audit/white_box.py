"""The audit of logits, guesses, tokens and rules: every method at every temperature.

At temperature 0 the logits along the accepted paths are compared with a plain forward's. Above
it, tokens and guesses are also tested as draws, at the run's temperature and at a raised one,
and each acceptance rule on trees with known probabilities. Vanilla is the control.

The tested answers are recorded ones, completed again and watched, and newly drawn ones. A
recorded answer is completed again with its own seed, so that caches and memories are as in the
run. Its recorded tokens are tested even if other tokens come out now.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, count
from typing import TypeAlias

import numpy as np
from msgspec.structs import replace as replace_part

from specbench.analysis.records import BASELINE, RecordTable
from specbench.analysis.stats.significance import holm
from specbench.audit.evidence import Evidence, GuessNumbers, LogitNumbers, TokenNumbers
from specbench.audit.model import RunModel
from specbench.audit.results import ALPHA, EPSILON, deviation_limit
from specbench.audit.token_tests import (
    guess_tests,
    logit_tests,
    rule_tests,
    smallest_tv,
    token_tests,
)
from specbench.errors import MethodFault, NonFiniteError
from specbench.log.audit import AuditTest, MethodAudit
from specbench.log.header import RunHeader
from specbench.types import Record

LONGEST = 256
"""Most tokens of an answer that is drawn anew."""
CHAINS = (1, 8, 32)
"""Nodes of the chains whose rounding calibrates the limit of logits."""
NUM_CALIBRATED = 4
RAISED = 2.0
"""Raised temperature: residuals and bonus tokens are rare where the target is sure."""
TESTS_PER_CELL = 40
"""Number of tests that the size of a sample is planned for."""


@dataclass(slots=True)
class Answers:
    """The answers of one method at one temperature: their tokens, and what else was watched.

    `level` is the sampling temperature: the run's `temperature`, or a raised one.
    """

    method: str
    temperature: float
    level: float
    parts: list[TokenNumbers] = field(default_factory=list)
    watched: list[Evidence] = field(default_factory=list)
    num_replayed: int = 0
    num_same: int = 0
    fault: str = ""

    @property
    def tokens(self) -> TokenNumbers:
        """The numbers of all tokens."""
        return TokenNumbers.join(self.parts)


def spread(records: Sequence[Record]) -> list[Record]:
    """The records shuffled, so that the first few are spread evenly over the whole run.

    Record i gets the place i * 0.618 mod 1: each new place falls into one of the widest gaps.
    """
    places = np.arange(len(records)) * ((np.sqrt(5) - 1) / 2) % 1
    return [records[i] for i in np.argsort(np.argsort(places))]


Records: TypeAlias = Mapping[float, Mapping[str, Sequence[Record]]]


@dataclass(frozen=True, slots=True)
class Effort:
    """Size of an audit: tokens per method and temperature, or as many as find `power`.

    `power` is a total variation. Without tokens only recorded greedy answers are compared.
    `num_outcomes` are drawn of each acceptance rule.
    """

    num_tokens: int = 2000
    power: float | None = None
    num_outcomes: int = 20_000


def usable_records(table: RecordTable) -> Records:
    """Temperature -> method -> its measured records."""
    found: dict[float, dict[str, list[Record]]] = {}
    for record in compress(table.records, table.frame["is_measured"]):
        methods = found.setdefault(record.key.temperature, {})
        methods.setdefault(record.key.method, []).append(record)
    return dict(sorted(found.items()))


def audit_methods(
    records: Records, info: RunHeader, model: RunModel, effort: Effort, say: Callable[[str], None]
) -> list[MethodAudit]:
    """Test every method at every temperature; p-values are corrected for their number.

    Of servers, the recorded sampled tokens are tested: these cannot draw further ones for us.
    """
    tester = _Tester(records, info, model, effort, say)
    found = tester.of_servers(info) if info.servers else tester.results()
    return [_with_verdict(one, info) for one in corrected([*found])]


def corrected(results: Sequence[MethodAudit]) -> list[MethodAudit]:
    """The results with p-values corrected for the number of tests over all of them."""
    p_values = holm(dict(enumerate(test.p_value for one in results for test in one.tests)))
    after = iter(p_values.values())
    return [
        replace_part(one, tests=tuple(_judged(test, next(after)) for test in one.tests))
        for one in results
    ]


def _judged(test: AuditTest, p_value: float | None) -> AuditTest:
    is_failed = test.limit is not None and not test.effect <= test.limit
    if p_value is not None:
        is_failed = p_value < ALPHA
    return replace_part(test, p_value=p_value, is_failed=is_failed)


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
                    answers = Answers(method, temperature, level)
                    self._gather(answers, methods[method])
                    logits = LogitNumbers.join([one.logits for one in answers.watched])
                    tests = [*logit_tests(logits, self._dtype, limit, baseline)]
                    if level:
                        guesses = GuessNumbers.join([one.guesses for one in answers.watched])
                        tests += [*guess_tests(guesses), *token_tests(answers.tokens)]
                    if method == BASELINE:
                        baseline = logits
                    elif level == temperature > 0 and not answers.fault:
                        outcomes = self._model.rule_outcomes(method, self._effort.num_outcomes)
                        tests += rule_tests(outcomes)
                    yield self._result(answers, tests)

    def of_servers(self, info: RunHeader) -> Iterator[MethodAudit]:
        for temperature, methods in self._records.items():
            for method, own in methods.items() if temperature else ():
                server = info.servers.get(method)
                if server is None or not server.sends_token_ids:
                    self._say(
                        f"{method}: sampled answers are not audited, its server sends no token ids."
                    )
                    continue
                answers = Answers(method, temperature, temperature)
                answers.parts += map(self._model.token_numbers, own)
                yield self._result(answers, [*token_tests(answers.tokens)])

    def _gather(self, answers: Answers, records: Sequence[Record]) -> None:
        """Recorded answers and, above temperature 0, drawn ones; drawn ones alone if raised."""
        try:
            if answers.level == answers.temperature:
                self._replay(answers, records)
            if answers.level:
                self._draw(answers, records)
        except (MethodFault, NonFiniteError) as error:
            answers.fault = error.message

    def _is_enough(self, answers: Answers) -> bool:
        tokens, power = answers.tokens, self._effort.power
        if len(tokens) < self._effort.num_tokens:
            return False
        if not power or not answers.level or not answers.parts:
            return True
        return smallest_tv(tokens, self._error_rate) <= power

    def _replay(self, answers: Answers, records: Sequence[Record]) -> None:
        """Complete records again, spread over the run, until they are enough.

        Runs with one seed that were merged have an answer twice, which is one draw.
        """
        once = {(one.key.task, one.key.sample_id, one.key.turn, one.seed): one for one in records}
        for record in spread([*once.values()]):
            if self._is_enough(answers):
                return
            found = self._model.watch(answers.method, self._model.request(record))
            is_same = found.token_ids == record.token_ids
            answers.num_replayed += 1
            answers.num_same += is_same
            answers.parts.append(found.tokens if is_same else self._model.token_numbers(record))
            answers.watched.append(found)

    def _draw(self, answers: Answers, records: Sequence[Record]) -> None:
        """Draw new answers to the prompts of records, on new seeds, until they are enough.

        They do not end at an end token. The seeds of two methods differ.
        """
        order = spread(records)
        sampling = replace(self._model.sampling(answers.temperature), temperature=answers.level)
        for number in count():
            if self._is_enough(answers):
                return
            round_, place = divmod(number, len(order))
            asked = self._model.request(order[place])
            name = (answers.method, sampling, asked.prompt_ids, round_)
            digest = hashlib.sha256(repr(name).encode()).digest()
            request = replace(
                asked,
                sampling=sampling,
                max_new_tokens=min(asked.max_new_tokens, LONGEST),
                eos_ids=frozenset(),
                seed=int.from_bytes(digest[:8], "big") >> 1,
            )
            found = self._model.watch(answers.method, request)
            answers.parts.append(found.tokens)
            answers.watched.append(found)

    def _result(self, answers: Answers, tests: Sequence[AuditTest]) -> MethodAudit:
        """The result of tests, not corrected yet."""
        tokens = answers.tokens if answers.level and answers.parts else None
        return MethodAudit(
            method=answers.method,
            temperature=answers.temperature,
            level=answers.level,
            num_answers=len(answers.parts),
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
