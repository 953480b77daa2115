"""The audit of logits, drafts, tokens and rules: every method at every temperature.

At temperature 0 the logits along the accepted paths are compared with a plain forward's. Above
temperature 0, tokens and drafts are also tested as draws, at the run's temperature and at a raised
one, and each acceptance rule on trees with known probabilities. Vanilla is the control.

The tested answers are recorded ones, completed again and watched, and newly drawn ones. A
recorded answer is completed again with its own seed, so that caches and memories are as in the
run. Its recorded tokens are tested even if other tokens come out now.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle

from specbench.analysis.records import BASELINE
from specbench.audit.evidence import Evidence
from specbench.audit.levels import levels
from specbench.audit.logit_tests import logit_tests
from specbench.audit.model import RunModel
from specbench.audit.numbers import DraftNumbers, LogitNumbers, TokenNumbers
from specbench.audit.parts import Parts
from specbench.audit.recorded import Records, spread
from specbench.audit.results import ALPHA, EPSILON, allowed_deviation
from specbench.audit.token_tests import draft_tests, rule_tests, smallest_tv, token_tests
from specbench.audit.verdicts import corrected, with_verdict
from specbench.errors import MethodFault, NonFiniteError
from specbench.log.audit import AuditTest, MethodAudit
from specbench.log.header import RunHeader
from specbench.types import Record, RecordKey, Request

LONGEST = 256
"""Most tokens of an answer that is drawn anew."""
CHAINS = (1, 8, 32)
"""Sizes of the chains whose rounding calibrates the allowed deviation of logits."""
NUM_CALIBRATED = 4
"""Number of records whose chains calibrate it."""
TESTS_PER_CELL = 40
"""Number of tests that the size of a sample is planned for."""


@dataclass(slots=True)
class Answers:
    """The answers of one method at one temperature: their tokens, and everything else that was
    watched.
    """

    method: str
    temperature: float
    """The run's sampling temperature."""
    level: float
    """The sampling temperature: the run's, or a raised one."""
    parts: list[TokenNumbers] = field(default_factory=list)
    """The numbers of the tokens of each answer."""
    watched: list[Evidence] = field(default_factory=list)
    num_replayed: int = 0
    """Recorded answers that were completed again."""
    num_same: int = 0
    """Recorded answers that were reproduced exactly."""
    fault: str = ""
    """The error that ended the method's answers."""

    @property
    def tokens(self) -> TokenNumbers:
        """The numbers of all tokens."""
        return TokenNumbers.join(self.parts)


@dataclass(frozen=True, slots=True)
class Effort:
    """Size of an audit."""

    num_tokens: int = 2000
    """Tokens per method and temperature; with 0, only recorded greedy answers are compared."""
    power: float | None = None
    """Total variation that the tests should find; the number of tokens is raised for this."""
    num_outcomes: int = 40_000
    """Outcomes to draw of each acceptance rule."""


def audit_methods(
    records: Records, header: RunHeader, model: RunModel, effort: Effort, parts: Parts
) -> list[MethodAudit]:
    """Test every method at every temperature; p-values are corrected for their number.

    For servers, only the recorded sampled tokens are tested: no further answers are requested.
    """
    tester = _Tester(records, header, model, effort, parts)
    results = tester.of_servers(header) if header.servers else tester.results()
    return [with_verdict(method_audit, header) for method_audit in corrected([*results])]


class _Tester:
    """Gathers the answers of methods and tests them."""

    def __init__(
        self, records: Records, header: RunHeader, model: RunModel, effort: Effort, parts: Parts
    ) -> None:
        """Take a run's records by temperature and method, its header, and its model, loaded again.

        `effort` says how many tokens and outcomes to test, and `parts` tell the progress.
        """
        self._records = records
        self._model = model
        self._dtype = header.model.rounding(model.dtype)  # the dtype that rounds logits
        self._effort = effort
        self._parts = parts
        num_tested = 0  # pairs of a method and a sampling temperature
        for temperature, records_by_method in records.items():
            # `levels`: the run's temperature and, above 0, a raised one.
            num_tested += len(records_by_method) * len(levels(temperature))
        # The share of false alarms of a single test, for which the size of a sample is planned:
        # ALPHA for the whole audit, over the number of its tests.
        self._error_rate = ALPHA / (TESTS_PER_CELL * max(num_tested, 1))

    def results(self) -> Iterator[MethodAudit]:
        """The results of every method at every level, vanilla's first.

        A level is a sampling temperature: the run's own, or a raised one.
        """
        allowed_deviation = self._allowed_deviation()  # of a logit, in epsilons times its scale
        for temperature, records_by_method in self._records.items():
            for level in levels(temperature):
                baseline_logits = None  # vanilla itself has none to be compared with
                for method in sorted(records_by_method, key=lambda name: name != BASELINE):
                    self._parts.begin(f"T={level:g}: {method}")
                    # Answers completed again or drawn, `watched` with numbers about their logits.
                    answers = self._gathered(method, temperature, level)
                    logits = LogitNumbers.join([answer.logits for answer in answers.watched])
                    tests = [
                        *logit_tests(logits, self._dtype, allowed_deviation, baseline_logits),
                        *self._sampling_tests(answers),
                    ]
                    if method == BASELINE:
                        baseline_logits = logits
                    yield self._result(answers, tests)  # p-values not corrected yet

    def _sampling_tests(self, answers: Answers) -> Iterator[AuditTest]:
        """The tests of drafts and tokens as draws and, at the run's temperature, of the rule.

        `answers` are of one method at one level, its sampling temperature: that of the run, or a
        raised one. Nothing is drawn at 0. `watched` has numbers about each answer's draft tokens,
        `tokens` those of all tokens, `fault` the error that ended the answers, if any.
        """
        if not answers.level:
            return
        yield from draft_tests(DraftNumbers.join([answer.drafts for answer in answers.watched]))
        yield from token_tests(answers.tokens)
        is_raised = answers.level != answers.temperature
        if answers.method != BASELINE and not is_raised and not answers.fault:
            num_outcomes = self._effort.num_outcomes
            # Tokens that the acceptance rule emits on small trees, counted.
            yield from rule_tests(self._model.rule_outcomes(answers.method, num_outcomes))

    def of_servers(self, header: RunHeader) -> Iterator[MethodAudit]:
        """The results of servers' sampled answers that came as token ids.

        There are none at temperature 0, and none for a server that sends only text.
        """
        for temperature, records_by_method in self._records.items():
            if not temperature:
                continue
            for method, records in records_by_method.items():
                server = header.servers.get(method)
                if server is None or not server.sends_token_ids:
                    reason = "not audited, its server sends no token ids"
                    self._parts.begin(f"T={temperature:g}: {method}, {reason}")
                    continue
                self._parts.begin(f"T={temperature:g}: {method}")
                answers = Answers(method, temperature, level=temperature)
                answers.parts += map(self._model.token_numbers, records)  # about tokens, per answer
                yield self._result(answers, [*token_tests(answers.tokens)])

    def _gathered(self, method: str, temperature: float, level: float) -> Answers:
        """Recorded answers and, above temperature 0, drawn ones. A raised level: drawn ones only.

        `temperature` is the run's and `level` the sampling temperature: the same, or a raised one.
        An error of the method ends its answers.
        """
        answers = Answers(method, temperature, level)
        records = self._records[temperature][method]
        try:
            if level == temperature:
                self._replay(answers, records)  # adds recorded ones
            if level:
                self._draw(answers, records)  # adds drawn ones
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
        """Complete records again, spread over the run, and add the results to `answers`.

        It stops when they are enough. A merge of runs with one seed has an answer twice, which
        counts as one draw. `parts` are the numbers about the recorded tokens of each answer.
        """
        # Prompt and seed -> a record.
        record_by_draw = {_draw_key(record.key, record.seed): record for record in records}
        for record in spread([*record_by_draw.values()]):
            if self._is_enough(answers):
                return
            # The new answer, with numbers about its tokens and logits.
            evidence = self._model.watch(answers.method, self._model.request(record))
            is_same = evidence.token_ids == record.token_ids
            answers.num_replayed += 1
            answers.num_same += is_same
            # The recorded tokens are tested even if other ones came out now.
            answers.parts.append(evidence.tokens if is_same else self._model.token_numbers(record))
            answers.watched.append(evidence)

    def _draw(self, answers: Answers, records: Sequence[Record]) -> None:
        """Draw new answers to the prompts of records, on new seeds, and add them to `answers`.

        It stops when they are enough. The answers do not end at an end token. The seeds of two
        methods differ.
        """
        run_sampling = self._model.sampling(answers.temperature)
        sampling = replace(run_sampling, temperature=answers.level)  # the run's, or a raised one
        spread_records = spread(records)  # shuffled: the first few are from the whole run
        for draw_number, record in enumerate(cycle(spread_records)):
            if self._is_enough(answers):
                return
            recorded_request = self._model.request(record)
            request = replace(
                recorded_request,
                sampling=sampling,
                max_new_tokens=min(recorded_request.max_new_tokens, LONGEST),  # to save time
                eos_ids=frozenset(),
            )
            round_number = draw_number // len(spread_records)  # draws of each record so far
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
        """The largest deviation of logits that rounding explains on this model.

        In epsilons of the dtype times the logits' scale (their largest magnitude), measured on
        chains of recorded tokens against one plain forward over prompt and answer.
        """
        # At the lowest temperature; vanilla's if there are any.
        records_by_method = next(iter(self._records.values()))
        records = spread(records_by_method.get(BASELINE) or next(iter(records_by_method.values())))
        largest_epsilons = 0.0
        for record in records[:NUM_CALIBRATED]:  # a few are enough
            for num_rows in CHAINS:  # numbers of nodes, as steps of several shapes have
                logits = self._model.chains(record, num_rows)
                deviations = logits.deviation / (EPSILON[self._dtype] * logits.scale)  # [rows]
                largest_epsilons = max([largest_epsilons, *deviations.tolist()])
        return allowed_deviation(self._dtype, largest_epsilons)


def _draw_key(key: RecordKey, seed: int) -> tuple[str, str, int, int]:
    """The origin of an answer: its prompt and its seed."""
    return key.task, key.sample_id, key.turn, seed


def _new_seed(method: str, request: Request, round_number: int) -> int:
    """A seed of 63 bits of its own for each method, prompt, sampling and round."""
    name = (method, request.sampling, request.prompt_ids, round_number)
    digest = hashlib.sha256(repr(name).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
