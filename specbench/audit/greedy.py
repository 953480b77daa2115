"""The audit at temperature 0: each first difference from vanilla, looked at by the target.

The prompt and the shared tokens go through the target in one pass. Its logits tell how far
apart the two tokens are. In a re-check, vanilla and the method run the step itself again.
"""

from dataclasses import replace
from itertools import accumulate, zip_longest

import numpy as np

from specbench.analysis.divergence import Agreement, Divergence
from specbench.analysis.records import BASELINE, RecordTable
from specbench.analysis.stats.arrays import FloatArray
from specbench.audit.model import RunModel
from specbench.audit.results import Difference, near_tie
from specbench.log.header import RunHeader
from specbench.log.run import load_of, loads_of
from specbench.models.cards import DTYPES
from specbench.types import Record, Request

NUM_BEST = 100
"""Number of best logits whose largest magnitude is the scale of a position."""


def agreement_with_ours(table: RecordTable, info: RunHeader, model: RunModel) -> Agreement:
    """The greedy answers of a server without speculation against vanilla's in this process.

    A server that is wrong without speculation is not a reference for its methods. A prompt
    counts once. Ours has as many tokens as the server's, so an answer that ends too early is
    not noticed.
    """
    wanted = (BASELINE, 0.0, 0, loads_of(info.spec.values)[0])
    records, divergences = [], []
    for record in table.records:
        key = record.key
        if not record.is_ok or (key.method, key.temperature, key.repeat, load_of(key)) != wanted:
            continue
        records.append(record)
        ours = model.complete(BASELINE, Request(model.prompt_ids(record), len(record.token_ids)))
        for position, (expected, token) in enumerate(zip_longest(ours, record.token_ids)):
            if expected != token:
                divergences.append(Divergence(key, position, expected, token))
                break
    return Agreement(BASELINE, len(records), tuple(divergences))


class Examiner:
    """Examines single steps of greedy completions with the run's model."""

    def __init__(
        self, table: RecordTable, info: RunHeader, model: RunModel, *, is_recheck: bool
    ) -> None:
        self._records = {record.key: record for record in table.records}
        self._model, self._is_recheck = model, is_recheck
        known = info.model.dtype in DTYPES  # a server's may be unknown
        self._run_dtype = info.model.rounding(info.model.dtype if known else model.dtype)
        self._own_dtype = info.model.rounding(model.dtype)

    def examine(self, divergence: Divergence) -> Difference:
        """The status on one difference, from the logits at its position."""
        own = self._records[divergence.key]
        # The baseline's prompt: with a history of its own, the method's would be another text.
        prompt = self._model.prompt_ids(self._records[replace(own.key, method=BASELINE)])
        logits = self._model.logits(prompt + own.token_ids[: divergence.position])
        difference = Difference(divergence, near_tie(self._run_dtype, _scale(logits)))
        tokens = divergence.baseline_token, divergence.own_token
        if tokens[0] is None or tokens[1] is None:
            return difference
        gaps = _below_best(logits, tokens[0]), _below_best(logits, tokens[1])
        difference = replace(difference, baseline_gap=gaps[0], gap=gaps[1])
        if not self._is_recheck:
            return difference
        is_same, is_bug = self._run_again(own, prompt, divergence.position)
        return replace(difference, is_same_again=is_same, is_bug_again=is_bug)

    def _run_again(self, own: Record, prompt: tuple[int, ...], position: int) -> tuple[bool, bool]:
        """Run the step again: does it give vanilla's tokens now, and if not, is it a bug?

        The tokens before the step's root become the prompt, and the prefill gives the root.
        """
        starts = [1, *(1 + end for end in accumulate(own.accept_lengths))]
        start = max((start for start in starts if start <= position), default=1)
        context = prompt + own.token_ids[: start - 1]
        request = Request(context, len(prompt) + position + 1 - len(context))
        expected = self._model.complete(BASELINE, request)
        actual = self._model.complete(own.key.method, request)
        if actual == expected:
            return True, False
        pairs = enumerate(zip(expected, actual, strict=True))
        first, tokens = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
        logits = self._model.logits(context + expected[:first])
        gap = max(_below_best(logits, token) for token in tokens)
        return False, gap > near_tie(self._own_dtype, _scale(logits))


def _below_best(logits: FloatArray, token: int) -> float:
    return float(logits.max() - logits[token])


def _scale(logits: FloatArray) -> float:
    """The largest magnitude among the best logits. The others may be anything, such as masked."""
    best = np.partition(logits, -min(NUM_BEST, len(logits)))[-NUM_BEST:]
    return float(np.abs(best).max())
