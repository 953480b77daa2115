"""The audit above temperature 0: a test of whether a method samples from vanilla's distribution.

Vanilla and the method draw from some contexts of the run, on many seeds. A context ends within a
recorded answer, so that there is text to draft from, one token before the target hesitates between
a few tokens. Draws hardly separate two distributions if the target is sure, or open to anything.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from specbench.analysis.records import BASELINE, IntArray, RecordTable
from specbench.analysis.stats.permutation import TwoSamples, permutation_test
from specbench.analysis.stats.significance import holm
from specbench.audit.model import RunModel
from specbench.audit.verdicts import SampledAudit
from specbench.log.header import RunHeader
from specbench.types import Record, Request, Sampling

NUM_CONTEXTS = 4
"""Contexts to draw from, spread over the records of the run."""
NUM_DRAWN = 3
"""Tokens of a draw: the prefill's, and the first two of the first step."""
ENTROPY = 1.2
"""Entropy, in nats, of the step's first token in a good context: three or four likely tokens."""


def sampled_records(table: RecordTable) -> dict[float, dict[str, list[Record]]]:
    """Temperature above 0 -> method -> its records, if a method except vanilla was sampled."""
    frame = table.frame
    found: dict[float, dict[str, list[Record]]] = {}
    sampled = frame[frame["is_measured"] & (frame["temperature"] > 0)]
    groups = sampled.groupby(["temperature", "method"], observed=True, sort=False)
    for (temperature, method), rows in groups:
        found.setdefault(temperature, {})[method] = [table.records[row] for row in rows.index]
    return {t: methods for t, methods in sorted(found.items()) if methods.keys() - {BASELINE}}


def audit_sampled(
    sampled: Mapping[float, Mapping[str, Sequence[Record]]],
    info: RunHeader,
    model: RunModel,
    *,
    num_seeds: int,
    say: Callable[[str], None],
) -> list[SampledAudit]:
    """Test every method at every temperature; the p-values are corrected for their number."""
    tests: list[SampledAudit] = []
    for temperature, methods in sampled.items():
        sampling = model.sampling(temperature)
        records = methods.get(BASELINE) or next(iter(methods.values()))
        contexts = [_context(record, model, sampling) for record in _spread(records)]
        say(f"T={temperature:g}: drawing {num_seeds} times from {len(contexts)} contexts …")
        sampler = _Sampler(model, sampling, num_seeds)
        expected = [sampler.draw(BASELINE, context) for context in contexts]
        for method in [name for name in methods if name != BASELINE]:
            say(f"T={temperature:g}: {method} …")
            drawn = [sampler.draw(method, context) for context in contexts]
            strata = [TwoSamples(*pair) for pair in zip(expected, drawn, strict=True)]
            tests.append(
                SampledAudit(
                    method=method,
                    temperature=temperature,
                    num_contexts=len(contexts),
                    num_draws=num_seeds,
                    p_value=permutation_test(strata),
                    is_lossless=info.method(method).is_lossless,
                )
            )
    corrected = holm([test.p_value for test in tests])
    return [replace(test, p_value=p) for test, p in zip(tests, corrected, strict=True)]


def _spread(records: Sequence[Record]) -> list[Record]:
    """Some of the first turns, from all over the run."""
    firsts = [record for record in records if record.key.turn == 0]
    places = np.linspace(0, len(firsts) - 1, min(NUM_CONTEXTS, len(firsts)))
    return [firsts[round(place)] for place in places]


def _context(record: Record, model: RunModel, sampling: Sampling) -> tuple[int, ...]:
    """The prompt and enough of the answer that the second token after it is an open one."""
    prompt = model.prompt_ids(record)
    entropies = model.entropies(prompt, record.token_ids, sampling)
    open_token = 1 + int(np.abs(entropies[1:] - ENTROPY).argmin()) if len(entropies) > 1 else 1
    return prompt + record.token_ids[: open_token - 1]


@dataclass(frozen=True, slots=True)
class _Sampler:
    """Draws a method's next tokens on many seeds, which differ by method.

    On the same seeds two samplers would agree more than by chance, and the test would see less.
    """

    model: RunModel
    sampling: Sampling
    num_seeds: int

    def draw(self, method: str, context: tuple[int, ...]) -> IntArray:
        """Tokens [seeds, NUM_DRAWN] after the context; -1 if the model's context is full."""
        drawn = np.full((self.num_seeds, NUM_DRAWN), -1, dtype=np.intp)
        for row in range(self.num_seeds):
            digest = hashlib.sha256(repr((method, context, row)).encode()).digest()
            seed = int.from_bytes(digest[:8], "big") >> 1
            request = Request(context, NUM_DRAWN, self.sampling, seed=seed)
            tokens = self.model.complete(method, request)
            drawn[row, : len(tokens)] = tokens
        return drawn
