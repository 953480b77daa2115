"""The model of a run as an audit needs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache

from specbench.analysis.stats.bootstrap import FloatArray
from specbench.audit.evidence import (
    Evidence,
    LogitNumbers,
    TokenNumbers,
    answer_evidence,
    chain_evidence,
    last_logits,
    watched_evidence,
)
from specbench.audit.rule_cases import Outcomes, rule_outcomes
from specbench.engine.drafter import Drafter
from specbench.engine.target import Target
from specbench.errors import containing
from specbench.types import Record, Request, Sampling

_outcomes = cache(rule_outcomes)  # methods share their rules


class RunModel(ABC):
    """A run's target with its methods, loaded."""

    dtype: str
    device: str
    target: Target

    @abstractmethod
    def drafter(self, method: str) -> Drafter:
        """The drafter of a method, as records spell it."""

    @abstractmethod
    def prompt_ids(self, record: Record) -> tuple[int, ...]:
        """The prompt tokens that a record answers."""

    @abstractmethod
    def request(self, record: Record) -> Request:
        """The request that a record answers, with its seed."""

    @abstractmethod
    def complete(self, method: str, request: Request) -> tuple[int, ...]:
        """The tokens with which a method completes a request."""

    @abstractmethod
    def sampling(self, temperature: float) -> Sampling:
        """The run's sampling at a temperature."""

    def logits(self, token_ids: Sequence[int]) -> FloatArray:
        """The target's logits [vocab] after these tokens, in one pass over all of them."""
        return last_logits(self.target, token_ids)

    def watch(self, method: str, request: Request) -> Evidence:
        """A method's answer to a request, watched, with its numbers.

        Raises:
            SpecbenchError: the method fails.
        """
        with containing(f"Method {method!r}"):
            return watched_evidence(self.target, self.drafter(method), request)

    def token_numbers(self, record: Record) -> TokenNumbers:
        """Numbers about the tokens of a record."""
        prompt_ids, sampling = self.prompt_ids(record), self.sampling(record.key.temperature)
        return answer_evidence(self.target, prompt_ids, record, sampling)

    def chains(self, record: Record, num_rows: int) -> LogitNumbers:
        """Logits of chains of `num_rows` of a record's tokens, each after a clean prefill."""
        return chain_evidence(self.target, self.prompt_ids(record), record.token_ids, num_rows)

    def rule_outcomes(self, method: str, num_draws: int) -> Sequence[Outcomes]:
        """Outcomes of a method's acceptance rule on small trees with known probabilities."""
        with containing(f"The acceptance rule of {method!r}"):
            return _outcomes(self.drafter(method).rule, num_draws)
