"""The audit of logits, drafts, tokens and rules: every method at every temperature.

At temperature 0 the logits along the accepted paths are compared with a plain forward's. Above
temperature 0, tokens and drafts are also tested as draws, at the run's temperature and at a raised
one, and each acceptance rule is tested on trees with known probabilities. Vanilla is the control.

Some of the tested answers are recorded ones, which are completed again and watched; others are
newly drawn. A recorded answer is completed again with its seed, so that caches and memories are as
in the run. Its recorded tokens are tested even if other tokens come out now.
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
"""Assumed number of tests per method and temperature, to plan the size of a sample."""


@dataclass(slots=True)
class Answers:
    """Numbers about the answers of one method at one temperature."""

    method: str
    temperature: float
    """The run's sampling temperature."""
    level: float
    """The sampling temperature: the run's, or a raised one."""
    token_numbers: list[TokenNumbers] = field(default_factory=list)
    """The numbers of the tokens of each answer."""
    watched: list[Evidence] = field(default_factory=list)  # of each answer completed here
    num_replayed: int = 0
    """Recorded answers that were completed again."""
    num_same: int = 0
    """Recorded answers that were reproduced exactly."""
    fault: str = ""
    """The error that ended the method's answers."""

    @property
    def tokens(self) -> TokenNumbers:
        """The numbers of all tokens."""
        return TokenNumbers.join(self.token_numbers)


@dataclass(frozen=True, slots=True)
class Effort:
    """Size of an audit."""

    num_tokens: int = 2000
    """Tokens per method and temperature; with 0, only recorded greedy answers are compared."""
    power: float | None = None
    """Total variation that the tests should find; more tokens are drawn if this needs them."""
    num_outcomes: int = 40_000
    """Number of times that each acceptance rule is run, over all small trees together."""


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
        """Take what an audit tests, and how much of it.

        Args:
            records: the run's measured records, by temperature and then by method.
            header: the run's header.
            model: the run's model, loaded again.
            effort: how many tokens and outcomes to test.
            parts: reports the progress.
        """
        self._records = records
        self._model = model
        self._dtype = header.model.rounding(model.dtype)  # name of the dtype that rounds logits
        self._effort = effort
        self._parts = parts
        num_cells = 0  # pairs of a method and a sampling temperature, raised ones included
        for temperature, records_by_method in records.items():
            num_cells += len(records_by_method) * len(levels(temperature))
        # Rate of false alarms of a single test, for which the size of a sample is planned: all
        # tests of the audit together have the rate ALPHA.
        self._error_rate = ALPHA / (TESTS_PER_CELL * max(num_cells, 1))

    def results(self) -> Iterator[MethodAudit]:
        """Test every method at every level; yields the tests of each, not corrected yet.

        A level is a sampling temperature: the run's own, or a raised one. At each level vanilla
        comes first, since the logits of the other methods are compared with vanilla's.
        """
        most_deviation = self._allowed_deviation()  # of a logit, in epsilons times the scale
        for temperature, records_by_method in self._records.items():
            for level in levels(temperature):
                baseline_logits = None  # vanilla's, once they are known; None if it was not run
                for method in sorted(records_by_method, key=lambda name: name != BASELINE):
                    self._parts.begin(f"T={level:g}: {method}")
                    answers = self._gathered(method, temperature, level)
                    # numbers about the logits of all answers
                    logits = LogitNumbers.join([answer.logits for answer in answers.watched])
                    tests = [
                        *logit_tests(logits, self._dtype, most_deviation, baseline_logits),
                        *self._sampling_tests(answers),
                    ]
                    if method == BASELINE:
                        baseline_logits = logits
                    yield self._result(answers, tests)

    def _sampling_tests(self, answers: Answers) -> Iterator[AuditTest]:
        """Test the drafts and tokens of a method's answers as draws, and its acceptance rule.

        Yields no test of greedy answers. The rule does not depend on the level, so it is tested
        only at the run's own temperature, and not if an error ended the answers (`fault`).
        """
        if not answers.level:  # the sampling temperature
            return
        yield from draft_tests(DraftNumbers.join([answer.drafts for answer in answers.watched]))
        yield from token_tests(answers.tokens)
        is_raised = answers.level != answers.temperature
        if answers.method != BASELINE and not is_raised and not answers.fault:
            num_outcomes = self._effort.num_outcomes  # over all small trees together
            # how often the rule emits each token on small trees
            yield from rule_tests(self._model.rule_outcomes(answers.method, num_outcomes))

    def of_servers(self, header: RunHeader) -> Iterator[MethodAudit]:
        """Test the recorded sampled tokens of servers; yields the tests of each, not corrected yet.

        Greedy answers are not tested here. A method whose server sends no token ids, or is not in
        `header` (the servers by method), is left out with a line of progress.
        """
        for temperature, records_by_method in self._records.items():
            if not temperature:  # greedy
                continue
            for method, records in records_by_method.items():
                server = header.servers.get(method)
                if server is None or not server.sends_token_ids:
                    reason = "not audited, its server sends no token ids"
                    self._parts.begin(f"T={temperature:g}: {method}, {reason}")
                    continue
                self._parts.begin(f"T={temperature:g}: {method}")
                answers = Answers(method, temperature, level=temperature)
                answers.token_numbers += map(self._model.token_numbers, records)
                yield self._result(answers, [*token_tests(answers.tokens)])

    def _gathered(self, method: str, temperature: float, level: float) -> Answers:
        """Collect a method's answers at one level, to be tested.

        At the run's temperature, recorded answers are completed again; if it is above 0, missing
        answers are drawn anew. At a raised level all answers are drawn. An error in the method's
        code, or a logit that is not finite, ends the collection and is kept as `fault`.

        Args:
            method: the method, as records spell it.
            temperature: the run's temperature, whose records are used.
            level: the sampling temperature: the run's, or a raised one.
        """
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
        """True if there are enough tokens for the number and the power that the effort asks for."""
        tokens = answers.tokens
        power = self._effort.power
        if len(tokens) < self._effort.num_tokens:
            return False
        if not power or not answers.level or not answers.token_numbers:
            return True
        return smallest_tv(tokens, self._error_rate) <= power

    def _replay(self, answers: Answers, records: Sequence[Record]) -> None:
        """Complete recorded answers again until there are enough, and add them to `answers`.

        The records are taken from all over the run. If several have the same prompt and seed, as in
        a merge of runs with one seed, only one is taken, since they are one draw.
        """
        record_by_draw = {_draw_key(record.key, record.seed): record for record in records}
        for record in spread([*record_by_draw.values()]):
            if self._is_enough(answers):
                return
            # the new answer, with numbers about its tokens, logits and drafts
            evidence = self._model.watch(answers.method, self._model.request(record))
            is_same = evidence.token_ids == record.token_ids
            answers.num_replayed += 1
            answers.num_same += is_same
            # The recorded tokens are tested, even if other tokens came out now.
            answers.token_numbers.append(
                evidence.tokens if is_same else self._model.token_numbers(record)
            )
            answers.watched.append(evidence)

    def _draw(self, answers: Answers, records: Sequence[Record]) -> None:
        """Draw new answers to recorded prompts until there are enough, and add them to `answers`.

        Each answer has a new seed, which no other method uses. The answers do not end at an end
        token, and have at most LONGEST tokens.
        """
        run_sampling = self._model.sampling(answers.temperature)
        sampling = replace(run_sampling, temperature=answers.level)
        spread_records = spread(records)  # in an order in which the first few span the run
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
            round_number = draw_number // len(spread_records)  # earlier draws for this record
            seed = _new_seed(answers.method, request, round_number)
            evidence = self._model.watch(answers.method, replace(request, seed=seed))
            answers.token_numbers.append(evidence.tokens)
            answers.watched.append(evidence)

    def _result(self, answers: Answers, tests: Sequence[AuditTest]) -> MethodAudit:
        """A method's result from its answers and tests, whose p-values are not corrected yet."""
        tokens = answers.tokens if answers.level and answers.token_numbers else None
        return MethodAudit(
            method=answers.method,
            temperature=answers.temperature,
            level=answers.level,
            num_answers=len(answers.token_numbers),
            num_replayed=answers.num_replayed,
            num_same=answers.num_same,
            num_tokens=0 if tokens is None else len(tokens),
            smallest_tv=None if tokens is None else smallest_tv(tokens, self._error_rate),
            fault=answers.fault,
            tests=tuple(tests),
        )

    def _allowed_deviation(self) -> float:
        """The largest deviation of logits from a plain forward that rounding explains.

        In epsilons of the dtype times the scale of a row, the largest magnitude of its best logits.
        It follows from the model's own steps over chains of recorded tokens, which only round.
        """
        # vanilla's records at the lowest temperature, or another method's if vanilla has none
        records_by_method = next(iter(self._records.values()))
        records = spread(records_by_method.get(BASELINE) or next(iter(records_by_method.values())))
        largest_deviation = 0.0
        for record in records[:NUM_CALIBRATED]:
            for num_rows in CHAINS:  # tokens of a chain
                logits = self._model.chains(record, num_rows)  # numbers about each row
                deviations = logits.deviation / (EPSILON[self._dtype] * logits.scale)  # [rows]
                largest_deviation = max([largest_deviation, *deviations.tolist()])
        return allowed_deviation(self._dtype, largest_deviation)


def _draw_key(key: RecordKey, seed: int) -> tuple[str, str, int, int]:
    """What identifies a draw: the prompt and the seed."""
    return key.task, key.sample_id, key.turn, seed


def _new_seed(method: str, request: Request, round_number: int) -> int:
    """A 63-bit seed that differs between methods, prompts, sampling settings and rounds."""
    name = (method, request.sampling, request.prompt_ids, round_number)
    digest = hashlib.sha256(repr(name).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
