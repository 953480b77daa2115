"""The audit at temperature 0: the target examines each first difference from vanilla.

The prompt and the shared tokens go through the target in one pass. Its logits show how far apart
the two tokens are. In a re-check, vanilla and the method run the step itself again.
"""

from dataclasses import replace
from itertools import accumulate, zip_longest
from typing import NamedTuple

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


def agreement_with_ours(
    method: str, table: RecordTable, header: RunHeader, model: RunModel
) -> Agreement:
    """The greedy answers of a server against vanilla's in this process.

    A server that is wrong without speculation is not a reference for its methods. A prompt counts
    once. Our answer gets as many tokens as the server's, so an answer that ends too early is not
    noticed. `method` is the server's label: vanilla, or any of a run without it. `table` holds the
    records of the run that `header` describes; `model` is the run's model in this process. Returns
    the number compared and the first differences.
    """
    first_load = loads_of(header.spec.values)[0]
    # The method's greedy records of the first pass, at the first number of requests in flight.
    server_records = [
        record
        for record in table.records
        if record.is_ok
        and (record.key.method, record.key.temperature, record.key.repeat) == (method, 0.0, 0)
        and load_of(record.key) == first_load
    ]
    divergences = []
    for record in server_records:
        request = Request(model.prompt_ids(record), len(record.token_ids))
        expected_ids = model.complete(BASELINE, request)
        # The position in the answer of the first token that differs; None after an answer's end.
        for position, (expected_id, server_id) in enumerate(
            zip_longest(expected_ids, record.token_ids)
        ):
            if expected_id != server_id:
                divergences.append(
                    Divergence(
                        record.key, position, baseline_token=expected_id, own_token=server_id
                    )
                )
                break
    return Agreement(method, len(server_records), tuple(divergences))


class _Again(NamedTuple):
    """A step that was run again."""

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

        With `is_recheck`, steps that differ are run again with the model.
        """
        self._records = {record.key: record for record in table.records}
        self._model = model
        self._is_recheck = is_recheck
        run_dtype = header.model.dtype
        if run_dtype not in DTYPES:  # names of known dtypes; a server's may be unknown
            run_dtype = model.dtype
        # The names of the dtypes by which logits were rounded in the run, and are in this audit:
        # weights in a format of their own may be computed in another dtype than the model's.
        self._run_dtype = header.model.rounding(run_dtype)
        self._audit_dtype = header.model.rounding(model.dtype)

    def examine(self, divergence: Divergence) -> Difference:
        """One difference from vanilla, with the gap of each token to the target's best one.

        Its status follows from these gaps of logits and the largest gap that rounding explains. In
        a re-check the step is run again. A divergence is the first position in a record's answer
        that differs, with both tokens there; a token is None if that answer had ended.
        """
        record = self._records[divergence.key]
        # The baseline's prompt: with a history of its own, the method's would be another text.
        baseline_record = self._records.get(replace(record.key, method=BASELINE), record)
        prompt_ids = self._model.prompt_ids(baseline_record)
        # The target's logits [vocab] after the tokens that both answers share.
        logits = self._model.logits(prompt_ids + record.token_ids[: divergence.position])
        # The gap that rounding explains; the scale is the largest magnitude of the best logits.
        largest_tie = near_tie(self._run_dtype, _scale(logits))
        difference = Difference(divergence, threshold=largest_tie)
        if divergence.baseline_token is None or divergence.own_token is None:
            return difference
        difference = replace(
            difference,
            baseline_gap=_below_best(logits, divergence.baseline_token),
            gap=_below_best(logits, divergence.own_token),
        )
        if not self._is_recheck:
            return difference
        # If the method gave vanilla's tokens, or others that rounding does not explain.
        again = self._run_again(record, prompt_ids, divergence.position)
        return replace(difference, is_same_again=again.is_same, is_bug_again=again.is_bug)

    def _run_again(self, record: Record, prompt: tuple[int, ...], position: int) -> _Again:
        """Repeat the step that contains the token at a position of a record's answer.

        `prompt` holds token ids, `accept_lengths` of the record the tokens that each step emitted.
        Vanilla and the method both run the step: the tokens before its root become their prompt,
        and the prefill gives the root.
        """
        # Index in the answer of each step's first token. Index 0 is the prefill's token.
        ends_of_steps = accumulate(record.accept_lengths)
        first_indices = [1, *(1 + end for end in ends_of_steps)]
        first_index = max(  # of the step that has the position
            (first_index for first_index in first_indices if first_index <= position), default=1
        )
        # The root is the token before the step's first one. Position 0 is the prefill's own token,
        # for which the prompt is the context.
        context = prompt + record.token_ids[: first_index - 1]
        num_left = len(prompt) + position + 1 - len(context)  # up to the position, with its token
        request = Request(context, max_new_tokens=num_left)
        vanilla_ids = self._model.complete(BASELINE, request)
        method_ids = self._model.complete(record.key.method, request)
        # Answers end at the position. The first token that differs is looked at.
        for index, token_pair in enumerate(zip(vanilla_ids, method_ids, strict=True)):
            if token_pair[0] != token_pair[1]:
                logits = self._model.logits(context + vanilla_ids[:index])
                # The gap between the worse of the two tokens and the best one.
                gap = max(_below_best(logits, token) for token in token_pair)
                largest_tie = near_tie(self._audit_dtype, _scale(logits))
                return _Again(is_same=False, is_bug=gap > largest_tie)
        return _Again(is_same=True, is_bug=False)


def _below_best(logits: FloatArray, token: int) -> float:
    """The best logit - the logit of a token, from logits [vocab]."""
    return float(logits.max() - logits[token])


def _scale(logits: FloatArray) -> float:
    """The largest magnitude among the best logits. The others may be anything, such as masked."""
    best = np.partition(logits, -min(NUM_BEST, len(logits)))[-NUM_BEST:]
    return float(np.abs(best).max())
