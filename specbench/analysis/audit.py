"""Are a run's outputs lossless, and where not, why? Puts the run's model to the question.

At temperature 0 every first difference from vanilla is put before the target again: the prompt and
the tokens that both share go through it in one pass, and its logits say how far apart the two
tokens lie. With a re-check dtype the step itself is run again too, by vanilla and by the method.

Above temperature 0 vanilla and each method draw from some contexts of the run on many seeds, and a
test compares what they drew. A context ends within a recorded answer, where there is something to
draft from, and one token before the target is undecided between a few: where it is sure, or open to
anything, draws hardly tell two distributions apart.

Knows a model only as a `Bench`: logits behind tokens, and tokens that a method completes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Protocol

import numpy as np

from specbench.analysis.cells import BASELINE, is_measured
from specbench.analysis.columns import IntArray, completion
from specbench.analysis.divergence import Agreement, Divergence, agreements
from specbench.analysis.header import RunInfo, read_header
from specbench.analysis.homogeneity import TwoSamples, holm, p_value
from specbench.analysis.metrics import Run
from specbench.analysis.stats import FloatArray
from specbench.analysis.verdicts import (
    Audit,
    Finding,
    GreedyAudit,
    SampledAudit,
    greedy_audit,
    judge,
    near_tie,
    sampled_verdict,
)
from specbench.errors import UserError
from specbench.types import Record, Request, Sampling

NUM_CONTEXTS = 4
"""Contexts of the run that samples are drawn from, spread over its records."""
NUM_DRAWN = 3
"""Tokens a draw: the prefill's, and the first two of the first step."""
ENTROPY = 1.2
"""Nats of the step's first token in a good context: about three or four tokens to choose from."""
NUM_BEST = 100
"""Logits whose largest magnitude is the scale of a position."""


class Bench(Protocol):
    """A run's model, loaded."""

    @property
    def dtype(self) -> str: ...
    def prompt_ids(self, record: Record) -> tuple[int, ...]: ...
    def logits(self, token_ids: Sequence[int]) -> FloatArray: ...
    def entropies(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], sampling: Sampling
    ) -> FloatArray: ...
    def complete(self, method: str, request: Request) -> tuple[int, ...]: ...
    def sampling(self, temperature: float) -> Sampling: ...


OpenBench = Callable[[bool], Bench]
"""Loads the run's model: with its methods, or (False) with vanilla alone."""
Say = Callable[[str], None]


def audit(run: Run, open_bench: OpenBench, *, is_recheck: bool, num_seeds: int, say: Say) -> Audit:
    """The verdicts on a run. The model is loaded only if something has to be looked at; with
    `is_recheck` it is loaded in another dtype than the run's, and steps that differ are run again.

    Raises:
        UserError: there is nothing to compare, or the model or its prompts are not the run's.
    """
    info = read_header(run.header)
    found = agreements(run.records, str(info.spec.get("history")))
    sampled = _sampled(run.records) if num_seeds else {}
    if not found and not sampled:
        raise UserError(
            f"Run {info.id} has nothing to audit: no method beside vanilla finished a greedy "
            "sample that vanilla finished too, and none was sampled.",
            "Audit a run with vanilla and at least one other method.",
        )
    differ = any(agreement.divergences for agreement in found.values())
    bench = open_bench(is_recheck or bool(sampled)) if differ or sampled else None
    steps = _Steps(run.records, info.dtype, bench, is_recheck) if bench else None
    greedy = [_audit_greedy(agreement, steps, info, say) for agreement in found.values()]
    tests = _audit_sampled(info, sampled, bench, num_seeds, say) if bench else []
    dtype = bench.dtype if bench and is_recheck else None
    return Audit(info.id, info.dtype, dtype, tuple(greedy), tuple(tests))


def _audit_greedy(
    agreement: Agreement, steps: _Steps | None, info: RunInfo, say: Say
) -> GreedyAudit:
    findings: list[Finding] = []
    if agreement.divergences:
        assert steps is not None
        say(f"{agreement.method}: looking at {len(agreement.divergences)} differences …")
        findings = [steps.judge(divergence) for divergence in agreement.divergences]
    is_lossless = info.method(agreement.method).is_lossless
    return greedy_audit(agreement, findings, is_lossless=is_lossless)


class _Steps:
    """Looks at single steps of greedy completions again."""

    def __init__(
        self, records: Iterable[Record], run_dtype: str, bench: Bench, is_recheck: bool
    ) -> None:
        self._records = {record.key: record for record in records}
        self._baseline = {
            completion(record): record
            for record in self._records.values()
            if record.key.method == BASELINE and record.key.temperature == 0
        }
        self._bench, self._run_dtype, self._is_recheck = bench, run_dtype, is_recheck

    def judge(self, divergence: Divergence) -> Finding:
        """The verdict on one difference."""
        own = self._records[divergence.key]
        # The baseline's prompt: with a history of its own, the method's would be another text.
        prompt = self._bench.prompt_ids(self._baseline[completion(own)])
        shared = prompt + own.token_ids[: divergence.position]
        logits = self._bench.logits(shared)
        threshold = near_tie(self._run_dtype, _scale(logits))
        first, second = divergence.baseline_token, divergence.own_token
        if first is None or second is None:
            return judge(divergence, None, threshold)
        gaps = _below_best(logits, first), _below_best(logits, second)
        if not self._is_recheck:
            return judge(divergence, gaps, threshold)
        is_same, is_bug = self._run_again(own, prompt, divergence.position)
        return judge(divergence, gaps, threshold, is_same_again=is_same, is_bug_again=is_bug)

    def _run_again(self, own: Record, prompt: tuple[int, ...], position: int) -> tuple[bool, bool]:
        """Whether the step gives vanilla's tokens now, and if not, whether beyond a near-tie.

        The tokens before the step's root become the prompt, and the prefill gives the root.
        """
        begins = [1, *(1 + end for end in accumulate(own.accept_lengths))]
        begin = max((begin for begin in begins if begin <= position), default=1)
        before = prompt + own.token_ids[: begin - 1]
        request = Request(before, len(prompt) + position + 1 - len(before))
        expected = self._bench.complete(BASELINE, request)
        got = self._bench.complete(own.key.method, request)
        if got == expected:
            return True, False
        same = next(i for i, (a, b) in enumerate(zip(expected, got, strict=True)) if a != b)
        logits = self._bench.logits(before + expected[:same])
        gap = max(_below_best(logits, expected[same]), _below_best(logits, got[same]))
        return False, gap > near_tie(self._bench.dtype, _scale(logits))


def _below_best(logits: FloatArray, token: int) -> float:
    return float(logits.max() - logits[token])


def _scale(logits: FloatArray) -> float:
    """The largest magnitude among the best logits: the others may be anything, e.g. masked."""
    best = np.partition(logits, -min(NUM_BEST, len(logits)))[-NUM_BEST:]
    return float(np.abs(best).max())


def _sampled(records: Iterable[Record]) -> dict[float, dict[str, list[Record]]]:
    """Temperature above 0 -> method -> its records, where there is a method beside vanilla."""
    found: dict[float, dict[str, list[Record]]] = {}
    for record in records:
        if record.key.temperature > 0 and is_measured(record):
            methods = found.setdefault(record.key.temperature, {})
            methods.setdefault(record.key.method, []).append(record)
    return {t: methods for t, methods in sorted(found.items()) if methods.keys() - {BASELINE}}


def _audit_sampled(
    info: RunInfo,
    sampled: Mapping[float, Mapping[str, Sequence[Record]]],
    bench: Bench,
    num_seeds: int,
    say: Say,
) -> list[SampledAudit]:
    tests: list[tuple[str, float, int, float]] = []
    for temperature, methods in sampled.items():
        speaker = methods.get(BASELINE) or next(iter(methods.values()))
        sampling = bench.sampling(temperature)
        contexts = [_context(record, bench, sampling) for record in _spread(speaker)]
        say(f"T={temperature:g}: drawing {num_seeds} times from {len(contexts)} contexts …")
        draw = _Draw(bench, sampling, num_seeds)
        base = [draw(BASELINE, context) for context in contexts]
        for method in methods:
            if method != BASELINE:
                say(f"T={temperature:g}: {method} …")
                own = [draw(method, context) for context in contexts]
                pairs = [TwoSamples(a, b) for a, b in zip(base, own, strict=True)]
                tests.append((method, temperature, len(contexts), p_value(pairs)))
    corrected = holm([test[3] for test in tests])
    return [
        SampledAudit(
            method,
            temperature,
            num_contexts,
            num_seeds,
            p,
            sampled_verdict(p, is_lossless=info.method(method).is_lossless),
        )
        for (method, temperature, num_contexts, _), p in zip(tests, corrected, strict=True)
    ]


def _spread(records: Sequence[Record]) -> list[Record]:
    """Some of the first turns, from all over the run."""
    firsts = [record for record in records if record.key.turn == 0]
    places = np.linspace(0, len(firsts) - 1, min(NUM_CONTEXTS, len(firsts)))
    return [firsts[round(place)] for place in places]


def _context(record: Record, bench: Bench, sampling: Sampling) -> tuple[int, ...]:
    """The prompt and so much of the answer that the second token behind it is an open one."""
    prompt = bench.prompt_ids(record)
    entropies = bench.entropies(prompt, record.token_ids, sampling)
    open_token = 1 + int(np.abs(entropies[1:] - ENTROPY).argmin()) if len(entropies) > 1 else 1
    return prompt + record.token_ids[: open_token - 1]


class _Draw:
    """Draws a method's next tokens on many seeds, other ones for every method: on the same seeds
    two samplers would agree more than by chance, and the test would see less.
    """

    def __init__(self, bench: Bench, sampling: Sampling, num_seeds: int) -> None:
        self._bench, self._sampling, self._num_seeds = bench, sampling, num_seeds

    def __call__(self, method: str, context: tuple[int, ...]) -> IntArray:
        """[seeds, NUM_DRAWN] tokens behind the context; -1 where the model's context is full."""
        drawn = np.full((self._num_seeds, NUM_DRAWN), -1, dtype=np.intp)
        for row in range(self._num_seeds):
            digest = hashlib.sha256(repr((method, context, row)).encode()).digest()
            seed = int.from_bytes(digest[:8], "big") >> 1
            request = Request(context, NUM_DRAWN, self._sampling, seed=seed)
            tokens = self._bench.complete(method, request)
            drawn[row, : len(tokens)] = tokens
        return drawn
