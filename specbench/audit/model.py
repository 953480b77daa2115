"""The model of a run as an audit needs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from specbench.analysis.stats.bootstrap import FloatArray
from specbench.audit.evidence import (
    Evidence,
    LogitNumbers,
    TokenNumbers,
    logit_numbers,
    places,
    plain_logits,
    token_numbers,
    watched_evidence,
)
from specbench.audit.rule_cases import Outcomes, rule_outcomes
from specbench.engine.drafter import Drafter
from specbench.engine.layers.torch_attention import without_cudnn_attention
from specbench.engine.target import Target
from specbench.engine.tree import DraftTree
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

    @torch.inference_mode()
    @without_cudnn_attention()
    def logits(self, token_ids: Sequence[int]) -> FloatArray:
        """The target's logits [vocab] after these tokens, in one pass over all of them."""
        return self.target.prefill(token_ids).logits[0].double().cpu().numpy().copy()

    def watch(self, method: str, request: Request) -> Evidence:
        """A method's answer to a request, watched, with its numbers.

        Raises:
            SpecbenchError: the method fails.
        """
        with containing(f"Method {method!r}"):
            return watched_evidence(self.target, self.drafter(method), request)

    @torch.inference_mode()
    @without_cudnn_attention()
    def token_numbers(self, record: Record) -> TokenNumbers:
        """Numbers about the tokens of a record. Unknown steps are empty."""
        ids, sampling = record.token_ids, self.sampling(record.key.temperature)
        logits = plain_logits(self.target, self.prompt_ids(record), ids)
        numbers = token_numbers(logits, ids, sampling)
        if 1 + sum(record.accept_lengths) != len(ids):
            return numbers
        return replace(numbers, depth=places(record.accept_lengths, ids, [])[0])

    @torch.inference_mode()
    @without_cudnn_attention()
    def chains(self, record: Record, num_rows: int) -> LogitNumbers:
        """Logits of chains of `num_rows` of a record's tokens, each after a clean prefill: off by
        rounding alone.
        """
        target, prompt_ids, ids = self.target, self.prompt_ids(record), record.token_ids
        reference, parts = plain_logits(target, prompt_ids, ids), []
        for start in range(0, len(ids) - num_rows, max(num_rows, len(ids) // 4)):
            target.prefill([*prompt_ids, *ids[:start]], num_new=num_rows)
            chain = torch.tensor(ids[start : start + num_rows], device=target.device)
            found = target.forward(DraftTree.chain(chain)).logits
            parts.append(logit_numbers(found, reference[start + 1 : start + 1 + num_rows]))
        target.cache.reset()
        return LogitNumbers.join(parts)

    def rule_outcomes(self, method: str, num_draws: int) -> Sequence[Outcomes]:
        """Outcomes of a method's acceptance rule on small trees with known probabilities."""
        with containing(f"The acceptance rule of {method!r}"):
            rule: Any = self.drafter(method).rule
            return _outcomes(rule, num_draws)
