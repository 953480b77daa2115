"""The audit of logits, drafts, tokens and rules, for every method at every temperature.

At temperature 0 the logits along the accepted paths are compared with those of a plain forward.
Above temperature 0, tokens and drafts are also tested as draws, at the run's temperature and at a
raised one. Each acceptance rule is tested on trees with known probabilities. Vanilla is the
control.

Some of the tested answers are recorded ones, which are completed again with their seeds, so that
caches and memories are as in the run. Their recorded tokens are tested even if different tokens
come out now. The other answers are newly drawn.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle

from specbench.analysis.records import BASELINE
from specbench.audit.evidence import Evidence
from specbench.audit.levels import levels, num_cells
from specbench.audit.logit_tests import logit_tests
from specbench.audit.model import RunModel
from specbench.audit.numbers import DraftNumbers, LogitNumbers, TokenNumbers
from specbench.audit.parts import Parts
from specbench.audit.recorded import Records, one_per_draw, spread
from specbench.audit.results import ALPHA, EPSILON, allowed_deviation
from specbench.audit.token_tests import draft_tests, rule_tests, smallest_tv, token_tests
from specbench.audit.verdicts import corrected, with_verdict
from specbench.errors import MethodFault, NonFiniteError
from specbench.log.audit import AuditTest, MethodAudit
from specbench.log.header import RunHeader
from specbench.types import Record, Request

LONGEST = 256
"""Maximum number of tokens of a newly drawn answer."""
CHAINS = (1, 8, 32)
"""Sizes of the chains whose rounding sets the allowed deviation of logits."""
NUM_CALIBRATED = 4
"""Number of records from which these chains are taken."""
TESTS_PER_CELL = 40
"""Assumed number of tests per method and temperature, to plan the size of a sample."""


@dataclass(slots=True)
class Answers:
    """Numbers about the answers of one method at one temperature."""

    method: str
    temperature: float
    """The run's sampling temperature."""
    level: float
    """The sampling temperature of the answers: the run's, or a raised one."""
    token_numbers: list[TokenNumbers] = field(default_factory=list)
    """Numbers about the tokens of each answer."""
    watched: list[Evidence] = field(default_factory=list)
    """The evidence from each answer that the audit completed."""
    num_replayed: int = 0
    """Recorded answers that were completed again."""
    num_same: int = 0
    """Recorded answers that were reproduced exactly."""
    fault: str = ""
    """The error that ended the method's answers."""

    @property
    def tokens(self) -> TokenNumbers:
        """Numbers about the tokens of all answers."""
        return TokenNumbers.join(self.token_numbers)


@dataclass(frozen=True, slots=True)
class Effort:
    """Size of an audit."""

    num_tokens: int = 2000
    """Tokens per method and temperature. With 0, only recorded greedy answers are compared."""
    power: float | None = None
    """Total variation that the tests should find. If necessary, more tokens are drawn."""
    num_outcomes: int = 40_000
    """Number of times that each acceptance rule is run, over all small trees together."""


def audit_methods(
    records: Records, header: RunHeader, model: RunModel, effort: Effort, parts: Parts
) -> list[MethodAudit]:
    """Test every method at every temperature, with p-values corrected for the number of tests.

    For servers, only the recorded sampled tokens are tested, and no further answers are requested.
    """
    tester = _Tester(records, header, model, effort, parts)
    results = tester.of_servers(header) if header.servers else tester.results()
    return [with_verdict(method_audit, header) for method_audit in corrected([*results])]


class _Tester:
    """Gathers the answers of methods and tests them."""

    def __init__(
        self, records: Records, header: RunHeader, model: RunModel, effort: Effort, parts: Parts
    ) -> None:
        """Take the records, the model and the size of an audit.

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
        # The sample size is planned for a single test with this rate of false alarms. All tests of
        # the audit together have the rate ALPHA.
        self._error_rate = ALPHA / (TESTS_PER_CELL * max(num_cells(records, header), 1))

    def results(self) -> Iterator[MethodAudit]:
        """Test every method at every level. The p-values of the tests are not corrected yet.

        A level is a sampling temperature: the run's, or a raised one. At each level vanilla comes
        first, since the logits of the other methods are compared with vanilla's.
        """
        most_deviation = self._allowed_deviation()  # of a logit, in epsilons times its row's scale
        for temperature, records_by_method in self._records.items():
            for level in levels(temperature):
                baseline_logits = None  # vanilla's; None until there are any
                for method in sorted(records_by_method, key=lambda name: name != BASELINE):
                    self._parts.begin(f"T={level:g}: {method}")
                    answers = self._gathered(method, temperature, level)
                    logits = LogitNumbers.join([answer.logits for answer in answers.watched])
                    tests = [
                        *logit_tests(logits, self._dtype, most_deviation, baseline_logits),
                        *self._sampling_tests(answers),
                    ]
                    if method == BASELINE and len(logits):
                        baseline_logits = logits
                    yield self._result(answers, tests)

    def _sampling_tests(self, answers: Answers) -> Iterator[AuditTest]:
        """Test the drafts and tokens of a method's answers as draws, and its acceptance rule.

        Greedy answers get no tests. The rule does not depend on the level, so it is tested only at
        the run's temperature, and not if an error ended the answers.
        """
        if not answers.level:
            return
        yield from draft_tests(DraftNumbers.join([answer.drafts for answer in answers.watched]))
        yield from token_tests(answers.tokens)
        is_raised = answers.level != answers.temperature
        if answers.method != BASELINE and not is_raised and not answers.fault:
            num_outcomes = self._effort.num_outcomes
            yield from rule_tests(self._model.rule_outcomes(answers.method, num_outcomes))

    def of_servers(self, header: RunHeader) -> Iterator[MethodAudit]:
        """Test the recorded sampled tokens of servers. The p-values are not corrected yet.

        Greedy answers are not tested here. A line of progress names each method that is left out
        because its server sends no token ids, or is not in the header.
        """
        for temperature, records_by_method in self._records.items():
            if not temperature:  # greedy
                continue
            for method, records in records_by_method.items():
                server = header.servers.get(method)
                if server is None or not server.sends_token_ids:
                    reason = "not audited (its server sends no token ids)"
                    self._parts.begin(f"T={temperature:g}: {method}, {reason}")
                    continue
                self._parts.begin(f"T={temperature:g}: {method}")
                answers = Answers(method, temperature, level=temperature)
                # An answer of hidden reasoning alone has a count, but no tokens.
                with_tokens = [record for record in records if record.token_ids]
                answers.token_numbers += map(self._model.token_numbers, one_per_draw(with_tokens))
                yield self._result(answers, [*token_tests(answers.tokens)])

    def _gathered(self, method: str, temperature: float, level: float) -> Answers:
        """Collect a method's answers at one level, to be tested.

        At the run's temperature, recorded answers are completed again. If it is above 0 and they
        have too few tokens, further answers are drawn. At a raised level all answers are drawn. An
        error in the method's code, or a logit that is not finite, ends the collection and is kept
        as `fault`.

        Args:
            method: the method, as records spell it.
            temperature: the run's temperature, whose records are used.
            level: the sampling temperature of the answers: the run's, or a raised one.
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
        """True if the answers have the number of tokens and the power that the effort asks for."""
        tokens = answers.tokens
        power = self._effort.power
        if len(tokens) < self._effort.num_tokens:
            return False
        return not power or not answers.level or smallest_tv(tokens, self._error_rate) <= power

    def _replay(self, answers: Answers, records: Sequence[Record]) -> None:
        """Complete recorded answers again until there are enough, and add them to `answers`.

        The records are taken from all over the run.
        """
        for record in spread(one_per_draw(records)):
            if self._is_enough(answers):
                return
            evidence = self._model.watch(answers.method, self._model.request(record))
            is_same = evidence.token_ids == record.token_ids
            answers.num_replayed += 1
            answers.num_same += is_same
            # The recorded tokens are tested, even if different tokens came out now.
            answers.token_numbers.append(
                evidence.tokens if is_same else self._model.token_numbers(record)
            )
            answers.watched.append(evidence)

    def _draw(self, answers: Answers, records: Sequence[Record]) -> None:
        """Draw new answers to recorded prompts until there are enough, and add them to `answers`.

        The answers are drawn at `answers.level`, which replaces the run's temperature. Each has a
        seed of its own, also if the records of several passes share a prompt, and no other method
        uses this seed. The answers do not end at an end token, and have at most LONGEST tokens.
        """
        run_sampling = self._model.sampling(answers.temperature)
        sampling = replace(run_sampling, temperature=answers.level)
        for draw_number, record in enumerate(cycle(spread(records))):
            if self._is_enough(answers):
                return
            recorded_request = self._model.request(record)
            request = replace(
                recorded_request,
                sampling=sampling,
                max_new_tokens=min(recorded_request.max_new_tokens, LONGEST),  # to save time
                eos_ids=frozenset(),
            )
            seed = _new_seed(answers.method, request, draw_number)
            evidence = self._model.watch(answers.method, replace(request, seed=seed))
            answers.token_numbers.append(evidence.tokens)
            answers.watched.append(evidence)

    def _result(self, answers: Answers, tests: Sequence[AuditTest]) -> MethodAudit:
        """The result of a method from its answers and tests. P-values are not corrected yet."""
        tokens = answers.tokens
        is_sampled = answers.level > 0 and len(tokens) > 0
        return MethodAudit(
            method=answers.method,
            temperature=answers.temperature,
            level=answers.level,
            num_answers=len(answers.token_numbers),
            num_replayed=answers.num_replayed,
            num_same=answers.num_same,
            num_tokens=len(tokens) if is_sampled else 0,
            smallest_tv=smallest_tv(tokens, self._error_rate) if is_sampled else None,
            fault=answers.fault,
            tests=tuple(tests),
        )

    def _allowed_deviation(self) -> float:
        """The largest deviation of logits from a plain forward that rounding explains.

        The unit is an epsilon of the dtype times the scale of a row, which is the largest magnitude
        among its best logits. The deviation is measured in the model's own steps over chains of
        recorded tokens, which differ from a plain forward only by rounding.
        """
        # at the lowest temperature: vanilla's records, or another method's if vanilla has none
        records_by_method = next(iter(self._records.values()))
        records = spread(records_by_method.get(BASELINE) or next(iter(records_by_method.values())))
        measured_deviations: list[float] = []
        for record in records[:NUM_CALIBRATED]:
            for num_rows in CHAINS:
                logits = self._model.chains(record, num_rows)
                deviations = logits.deviation / (EPSILON[self._dtype] * logits.scale)  # [rows]
                measured_deviations += deviations.tolist()
        return allowed_deviation(self._dtype, max(measured_deviations, default=None))


def _new_seed(method: str, request: Request, draw_number: int) -> int:
    """Make a 63-bit seed that differs between methods, prompts, sampling settings and draws.

    It also depends on the recorded seed of `request`, so that audits of runs with different seeds
    draw different answers.
    """
    name = (method, request.sampling, request.prompt_ids, request.seed, draw_number)
    digest = hashlib.sha256(repr(name).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
