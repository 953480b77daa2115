"""The model of a run as an audit needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from specbench.analysis.stats.bootstrap import FloatArray
from specbench.types import Record, Request, Sampling

if TYPE_CHECKING:
    from specbench.audit.evidence import Evidence, LogitNumbers, TokenNumbers
    from specbench.audit.rule_cases import Outcomes


class RunModel(Protocol):
    """A run's target with its methods, loaded."""

    @property
    def dtype(self) -> str: ...

    @property
    def device(self) -> str: ...

    def prompt_ids(self, record: Record) -> tuple[int, ...]:
        """The prompt tokens that a record answers."""

    def request(self, record: Record) -> Request:
        """The request that a record answers, with its seed."""

    def logits(self, token_ids: Sequence[int]) -> FloatArray:
        """The logits [vocab] after these tokens."""

    def complete(self, method: str, request: Request) -> tuple[int, ...]:
        """The tokens with which a method completes a request."""

    def sampling(self, temperature: float) -> Sampling:
        """The run's sampling at a temperature."""

    def watch(self, method: str, request: Request) -> Evidence:
        """A method's answer to a request, watched, with its numbers.

        Raises:
            SpecbenchError: the method fails.
        """

    def token_numbers(self, record: Record) -> TokenNumbers:
        """Numbers about the tokens of a record."""

    def chains(self, record: Record, num_rows: int) -> LogitNumbers:
        """Logits of chains of `num_rows` of a record's tokens, each after a clean prefill."""

    def rule_outcomes(self, method: str, num_draws: int) -> Sequence[Outcomes]:
        """Outcomes of a method's acceptance rule on small trees with known probabilities."""
