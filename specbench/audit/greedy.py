"""The audit at temperature 0: examine where each answer first differs from vanilla's.

The prompt and the shared tokens go through the target in one pass. Its logits show how far apart
the two tokens are. In a re-check, vanilla and the method run the step itself again.
"""

from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from specbench.analysis.divergence import Agreement, Divergence, first_divergence
from specbench.analysis.records import BASELINE, RecordTable
from specbench.analysis.stats.arrays import FloatArray
from specbench.audit.model import RunModel
from specbench.audit.reference import NUM_BEST
from specbench.audit.results import Difference, near_tie
from specbench.log.header import RunHeader
from specbench.log.run import load_of, loads_of
from specbench.models.cards import DTYPES
from specbench.types import Record, Request


def agreement_with_ours(
    method: str, table: RecordTable, header: RunHeader, model: RunModel
) -> Agreement:
    """Compare the greedy answers of a server with vanilla's answers in this process.

    Every request (a turn of a sample) that did not fail is compared once. The model here generates
    as many tokens as the server sent, so answers that a server ends too early go unnoticed. If a
    server sent only text, the tokens of its text are compared. An answer without known tokens, such
    as one that is all hidden reasoning, is left out.

    Args:
        method: the method that the server runs, as records spell it.
        table: the records of the run.
        header: the header of the run.
        model: the run's model, loaded in this process.
    """
    first_load = loads_of(header.spec.values)[0]  # a number of requests in flight, or a rate
    # the method's greedy records of the first pass (0) over the prompts, at the first load
    server_records = [
        record
        for record in table.records
        if record.is_ok
        and record.token_ids
        and (record.key.method, record.key.temperature, record.key.repeat) == (method, 0.0, 0)
        and load_of(record.key) == first_load
    ]
    divergences = []
    for record in server_records:
        request = Request(model.prompt_ids(record), len(record.token_ids))
        expected_ids = model.complete(BASELINE, request)
        if expected_ids != record.token_ids:
            divergences.append(first_divergence(record, expected_ids))
    return Agreement(method, len(server_records), tuple(divergences))


class _Rerun(NamedTuple):
    """The result of repeating a step, or the prefill in the case of an answer's first token."""

    is_same: bool
    """The method gave vanilla's tokens."""
    is_bug: bool
    """The method gave other tokens, which rounding does not explain."""


class Examiner:
    """Examines single steps of greedy completions with the run's model."""

    def __init__(
        self, table: RecordTable, header: RunHeader, model: RunModel, *, is_recheck: bool
    ) -> None:
        """Take a run's records and header, and its model, loaded again.

        With `is_recheck`, `examine` runs each differing step again.
        """
        self._records = {record.key: record for record in table.records}
        self._model = model
        self._is_recheck = is_recheck
        run_dtype = header.model.dtype
        if run_dtype not in DTYPES:  # a server may use a dtype that has no known name
            run_dtype = model.dtype
        # Names of the dtypes that logits are rounded to, in the run and in this audit. They are not
        # the model's if its quantised weights are computed in another dtype.
        self._run_dtype = header.model.rounding(run_dtype)
        self._audit_dtype = header.model.rounding(model.dtype)

    def examine(self, divergence: Divergence) -> Difference:
        """Measure how far the logits of both tokens of a divergence lie below the best logit.

        In a re-check the step is also run again. If one of the two answers had ended, both gaps are
        None and no step is run.

        Args:
            divergence: the first position at which a record's answer differs from vanilla's.
        """
        record = self._records[divergence.key]
        # The prompt is taken from vanilla's record, if there is one: a later turn of the method's
        # record may follow the method's own replies.
        baseline_record = self._records.get(replace(record.key, method=BASELINE), record)
        prompt_ids = self._model.prompt_ids(baseline_record)
        # the target's logits after the tokens that both answers share [vocab]
        logits = self._model.logits(prompt_ids + record.token_ids[: divergence.position])
        largest_tie = near_tie(self._run_dtype, _scale(logits))  # the gap that rounding explains
        difference = Difference(divergence, threshold=largest_tie)
        if divergence.baseline_token is None or divergence.own_token is None:  # one answer ended
            return difference
        difference = replace(
            difference,
            baseline_gap=_below_best(logits, divergence.baseline_token),
            gap=_below_best(logits, divergence.own_token),
        )
        if not self._is_recheck:
            return difference
        again = self._run_again(record, prompt_ids, divergence.position)
        return replace(difference, is_same_again=again.is_same, is_bug_again=again.is_bug)

    def _run_again(self, record: Record, prompt_ids: tuple[int, ...], position: int) -> _Rerun:
        """Repeat the step that emitted the token at this position of a record's answer.

        Vanilla and the method both start from the tokens before the step's root: the prefill gives
        the root, and the step follows. For position 0 only the prefill is run, since no step
        emitted that token.
        """
        # Indices in the answer at which steps begin. Index 0 is the prefill's token, so the first
        # step begins at 1. `accept_lengths` has the number of tokens that each step emitted.
        first_indices = accumulate(record.accept_lengths, initial=1)
        # The position belongs to the last step that begins at or before it. Position 0 belongs to
        # no step: the prefill of the first step's context emits its token.
        first_index = max([1, *(index for index in first_indices if index <= position)])
        # The step's root is the token before its first token.
        context_ids = prompt_ids + record.token_ids[: first_index - 1]
        # up to the token at the position, root included
        num_new_tokens = len(prompt_ids) + position + 1 - len(context_ids)
        request = Request(context_ids, max_new_tokens=num_new_tokens)
        vanilla_ids = self._model.complete(BASELINE, request)
        method_ids = self._model.complete(record.key.method, request)
        for index, (vanilla_id, method_id) in enumerate(zip(vanilla_ids, method_ids, strict=True)):
            if vanilla_id != method_id:
                logits = self._model.logits(context_ids + vanilla_ids[:index])
                gap = max(_below_best(logits, vanilla_id), _below_best(logits, method_id))
                largest_tie = near_tie(self._audit_dtype, _scale(logits))
                return _Rerun(is_same=False, is_bug=gap > largest_tie)
        return _Rerun(is_same=True, is_bug=False)


def _below_best(logits: FloatArray, token: int) -> float:
    """The best of the logits [vocab] minus the logit of a token."""
    return float(logits.max() - logits[token])


def _scale(logits: FloatArray) -> float:
    """The largest magnitude among the best logits of a position [vocab]."""
    best = np.partition(logits, -min(NUM_BEST, len(logits)))[-NUM_BEST:]
    return float(np.abs(best).max())
