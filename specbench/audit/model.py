"""The model of a run as an audit needs it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from specbench.analysis.stats.bootstrap import FloatArray
from specbench.types import Record, Request, Sampling


class RunModel(Protocol):
    """A run's target with its methods, loaded."""

    @property
    def dtype(self) -> str: ...

    def prompt_ids(self, record: Record) -> tuple[int, ...]:
        """The prompt tokens that a record answers."""

    def logits(self, token_ids: Sequence[int]) -> FloatArray:
        """The logits [vocab] after these tokens."""

    def entropies(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling
    ) -> FloatArray:
        """The entropy [tokens] of each token's distribution, in nats."""

    def complete(self, method: str, request: Request) -> tuple[int, ...]:
        """The tokens with which a method completes a request."""

    def sampling(self, temperature: float) -> Sampling:
        """The run's sampling at a temperature."""
