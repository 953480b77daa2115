"""The audit of logits, drafts, tokens and rules: every method at every temperature.

At temperature 0 the logits along the accepted paths are compared with a plain forward's. Above
it, tokens and drafts are also tested as draws, at the run's temperature and at a raised one,
and each acceptance rule on trees with known probabilities. Vanilla is the control.

The tested answers are recorded ones, completed again and watched, and newly drawn ones. A
recorded answer is completed again with its own seed, so that caches and memories are as in the
run. Its recorded tokens are tested even if other tokens come out now.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, cycle
from typing import TypeAlias

import numpy as np

from specbench.analysis.records import BASELINE, RecordTable
from specbench.audit.evidence import Evidence
from specbench.audit.model import RunModel
from specbench.audit.numbers import DraftNumbers, LogitNumbers, TokenNumbers
from specbench.audit.results import ALPHA, EPSILON, allowed_deviation
from specbench.audit.token_tests import (
    draft_tests,
    logit_tests,
    rule_tests,
    smallest_tv,
    token_tests,
)
from specbench.audit.verdicts import corrected, with_verdict
from specbench.errors import MethodFault, NonFiniteError
from specbench.log.audit import AuditTest, MethodAudit
from specbench.log.header import RunHeader
from specbench.types import Record, RecordKey, Request

LONGEST = 256
"""Most tokens of an answer that is drawn anew."""
CHAINS = (1, 8, 32)
"""Nodes of the chains whose rounding calibrates the deviation of logits that is allowed."""
NUM_CALIBRATED = 4
"""Records whose chains do."""
RAISED = 2.0
"""Raised temperature: residuals and bonus tokens are rare where the target is sure."""
TESTS_PER_CELL = 40
"""Number of tests that the size of a sample is planned for."""
_GOLDEN = (np.sqrt(5) - 1) / 2
"""0.618...: multiples of it, mod 1, fill [0, 1) evenly however many there are."""


@dataclass(slots=True)
class Answers:
    """The answers of one method at one temperature: their tokens, and what else was watched."""

    method: str
    temperature: float
    """The run's."""
    level: float
    """The sampling temperature: the run's, or a raised one."""
    parts: list[TokenNumbers] = field(default_factory=list)
    """The numbers of the tokens of each answer."""
    watched: list[Evidence] = field(default_factory=list)
    num_replayed: int = 0
    """Recorded answers that were completed again."""
    num_same: int = 0
    """Those that came out the same."""
    fault: str = ""
    """The error that ended the method's answers."""

    @property
    def tokens(self) -> TokenNumbers:
        """The numbers of all tokens."""
        return TokenNumbers.join(self.parts)


def spread(records: Sequence[Record]) -> list[Record]:
    """The records shuffled, so that the first few are spread evenly over the whole run.

    Point k is k * 0.618 mod 1: each new point falls into one of the widest gaps between the
    points before. Its rank among all points is the number of the k-th record.
    """
    num_records = len(records)
    points = np.arange(num_records) * _GOLDEN % 1
    ranks = np.empty(num_records, dtype=np.intp)
    ranks[np.argsort(points)] = np.arange(num_records)  # the smallest point has rank 0
    return [records[rank] for rank in ranks.tolist()]


Records: TypeAlias = Mapping[float, Mapping[str, Sequence[Record]]]
"""Temperature -> method -> its measured records."""


@dataclass(frozen=True, slots=True)
class Effort:
    """Size of an audit."""

    num_tokens: int = 2000
    """Tokens per method and temperature; without any, only recorded greedy answers are compared."""
    power: float | None = None
    """A total variation to be found, with as many more tokens as that needs."""
    num_outcomes: int = 20_000
    """Outcomes that are drawn of each acceptance rule."""


def usable_records(table: RecordTable) -> Records:
    """The measured records of a run."""
    by_temperature: dict[float, dict[str, list[Record]]] = {}
    for record in compress(table.records, table.frame["is_measured"]):
        methods = by_temperature.setdefault(record.key.temperature, {})
        methods.setdefault(record.key.method, []).append(record)
    return dict(sorted(by_temperature.items()))


def audit_methods(
    records: Records, header: RunHeader, model: RunModel, effort: Effort, say: Callable[[str], None]
) -> list[MethodAudit]:
    """Test every method at every temperature; p-values are corrected for their number.

    Of servers, the recorded sampled tokens are tested: these cannot draw further ones for us.
    """
    tester = _Tester(records, header, model, effort, say)
    results = tester.of_servers(header) if header.servers else tester.results()
    return [with_verdict(method_audit, header) for method_audit in corrected([*results])]


class _Tester:
    """Gathers the answers of methods and tests them."""

    def __init__(
        self, records: Records, header: RunHeader, model: RunModel, effort: Effort,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._records = records
        self._model = model
        self._dtype = header.model.rounding(model.dtype)
        self._effort = effort
        self._say = say
        num_cells = 0
        for temperature, methods in records.items():
            num_cells += len(methods) * len(levels(temperature))
        self._error_rate = ALPHA / (TESTS_PER_CELL * max(num_cells, 1))

    def results(self) -> Iterator[MethodAudit]:
        """The results of every method at every level, vanilla's first."""
        allowed = self._allowed_deviation()
        for temperature, methods in self._records.items():
            for level in levels(temperature):
                baseline = None
                for method in sorted(methods, key=lambda name: name != BASELINE):
                    self._say(f"T={level:g}: {method} …")
                    answers = self._gathered(method, temperature, level)
                    logits = LogitNumbers.join([answer.logits for answer in answers.watched])
                    tests = [
                        *logit_tests(logits, self._dtype, allowed, baseline),
                        *self._sampling_tests(answers),
                    ]
                    if method == BASELINE:
                        baseline = logits
                    yield self._result(answers, tests)

    def _sampling_tests(self, answers: Answers) -> Iterator[AuditTest]:
        """The tests of drafts and tokens as draws and, at the run's temperature, of the rule."""
        if not answers.level:
            return
        yield from draft_tests(DraftNumbers.join([answer.drafts for answer in answers.watched]))
        yield from token_tests(answers.tokens)
        is_raised = answers.level != answers.temperature
        if answers.method != BASELINE and not is_raised and not answers.fault:
            num_outcomes = self._effort.num_outcomes
            yield from rule_tests(self._model.rule_outcomes(answers.method, num_outcomes))

    def of_servers(self, header: RunHeader) -> Iterator[MethodAudit]:
        """The results of servers' sampled answers that came as token ids."""
        for temperature, methods in self._records.items():
            if not temperature:
                continue
            for method, records in methods.items():
                server = header.servers.get(method)
                if server is None or not server.sends_token_ids:
                    self._say(
                        f"{method}: sampled answers are not audited, its server sends no token ids."
                    )
                    continue
                answers = Answers(method, temperature, temperature)
                answers.parts += map(self._model.token_numbers, records)
                yield self._result(answers, [*token_tests(answers.tokens)])

    def _gathered(self, method: str, temperature: float, level: float) -> Answers:
        """Recorded answers and, above temperature 0, drawn ones; drawn ones alone if raised."""
        answers = Answers(method, temperature, level)
        records = self._records[temperature][method]
        try:
            if level == temperature:
                self._replay(answers, records)
            if level:
                self._draw(answers, records)
        except (MethodFault, NonFiniteError) as error:
            answers.fault = error.message
        return answers

    def _is_enough(self, answers: Answers) -> bool:
        tokens = answers.tokens
        power = self._effort.power
        if len(tokens) < self._effort.num_tokens:
            return False
        if not power or not answers.level or not answers.parts:
            return True
        return smallest_tv(tokens, self._error_rate) <= power

    def _replay(self, answers: Answers, records: Sequence[Record]) -> None:
        """Complete records again, spread over the run, until they are enough.

        Runs with one seed that were merged have an answer twice, which is one draw.
        """
        distinct = {_draw_key(record.key, record.seed): record for record in records}
        for record in spread([*distinct.values()]):
            if self._is_enough(answers):
                return
            evidence = self._model.watch(answers.method, self._model.request(record))
            is_same = evidence.token_ids == record.token_ids
            answers.num_replayed += 1
            answers.num_same += is_same
            answers.parts.append(evidence.tokens if is_same else self._model.token_numbers(record))
            answers.watched.append(evidence)

    def _draw(self, answers: Answers, records: Sequence[Record]) -> None:
        """Draw new answers to the prompts of records, on new seeds, until they are enough.

        They do not end at an end token. The seeds of two methods differ.
        """
        run_sampling = self._model.sampling(answers.temperature)
        sampling = replace(run_sampling, temperature=answers.level)
        order = spread(records)
        for number, record in enumerate(cycle(order)):
            if self._is_enough(answers):
                return
            asked = self._model.request(record)
            request = replace(
                asked,
                sampling=sampling,
                max_new_tokens=min(asked.max_new_tokens, LONGEST),
                eos_ids=frozenset(),
            )
            round_number = number // len(order)
            seed = _new_seed(answers.method, request, round_number)
            evidence = self._model.watch(answers.method, replace(request, seed=seed))
            answers.parts.append(evidence.tokens)
            answers.watched.append(evidence)

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

    def _allowed_deviation(self) -> float:
        """The largest deviation of logits that rounding explains on this model."""
        methods = next(iter(self._records.values()))
        records = spread(methods.get(BASELINE) or next(iter(methods.values())))
        largest = 0.0
        for record in records[:NUM_CALIBRATED]:
            for num_rows in CHAINS:
                logits = self._model.chains(record, num_rows)
                epsilons = logits.deviation / (EPSILON[self._dtype] * logits.scale)
                largest = max([largest, *epsilons.tolist()])
        return allowed_deviation(self._dtype, largest)


def _draw_key(key: RecordKey, seed: int) -> tuple[str, str, int, int]:
    """What an answer is drawn from: its prompt and its seed."""
    return key.task, key.sample_id, key.turn, seed


def _new_seed(method: str, request: Request, round_number: int) -> int:
    """A seed of 63 bits of its own for each method, prompt, sampling and round."""
    name = (method, request.sampling, request.prompt_ids, round_number)
    digest = hashlib.sha256(repr(name).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def levels(temperature: float) -> tuple[float, ...]:
    """The temperature and, if tokens are sampled, the raised one that is tested too."""
    if not temperature:
        return (temperature,)
    return (temperature, max(RAISED, 1.5 * temperature))
