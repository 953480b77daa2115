"""Warm up the engine: let every method decode a little, and capture graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from specbench.errors import SpecbenchError, containing
from specbench.types import Completion, Request, Sampling

if TYPE_CHECKING:
    from specbench.engine.drafter import Drafter
    from specbench.engine.target import Target

WARM_UP_TOKENS = 32
"""The new tokens of a completion in the warm-up."""
Complete = Callable[[str, Request], Completion]
"""Completes a request with the method of a label."""


def warm_up(
    target: Target,
    drafters: Mapping[str, Drafter],
    complete: Complete,
    requests: Sequence[Request],
) -> tuple[dict[str, str | None], dict[str, str]]:
    """Let every method decode a little at every temperature, so that first uses slow no sample.

    If steps are CUDA graphs, capture the graphs for every size of the cache that the requests can
    reach, and for every size that the drafters' trees can have.

    Args:
        target: the loaded model.
        drafters: the methods' drafters, by label.
        complete: completes a request with the method of a label.
        requests: requests of the run's sizes and temperatures. A usual request is the first.

    Returns:
        Two mappings by label: the reason why a method's steps cannot be graphs, or None; and a
        warning for each method whose graphs could not all be captured.
    """
    execution = target.execution
    usual = requests[0]
    run_samplings = [*dict.fromkeys(request.sampling for request in requests)]  # per temperature
    prompts = [usual.prompt_ids]  # the token ids of each prompt to complete
    num_tokens = min(WARM_UP_TOKENS, usual.max_new_tokens)  # new tokens of each completion here

    def decode_a_little(
        label: str, prompt_ids: tuple[int, ...], samplings: Iterable[Sampling]
    ) -> None:
        """Complete the start of a prompt's answer with a method, once per sampling."""
        for sampling in samplings:
            with suppress(Exception):  # the method's samples will fail too, and say why
                complete(label, Request(prompt_ids, num_tokens, sampling))

    warnings: dict[str, str] = {}
    if execution.is_static:  # steps are graphs, each for one size of the cache
        longest = max(len(request.prompt_ids) + request.max_new_tokens for request in requests)
        max_tokens = min(longest, target.context)  # most tokens of a prompt with its answer
        prompts += prompts_to(max_tokens, usual.prompt_ids, num_tokens)  # the longest is the last
        with execution.paused():  # first without graphs, which would be lost as the cache grows
            _capture(target, drafters, max_tokens, usual.max_new_tokens, run_samplings)
            for label in drafters:
                decode_a_little(label, prompts[-1], run_samplings[:1])  # any sampling will do
        warnings = _capture(target, drafters, max_tokens, usual.max_new_tokens, run_samplings)
    eager_reasons: dict[str, str | None] = {}
    for label in drafters:
        execution.failures.clear()
        for prompt_ids in prompts:
            decode_a_little(label, prompt_ids, run_samplings)
        # One of the functions that ran eagerly, with the reason; else the target's reason, or None.
        eager_reasons[label] = min(execution.failures, default=target.eager_reason)
    execution.close()  # graphs captured from now on count as late, since they delay a sample
    return eager_reasons, warnings


def _capture(
    target: Target,
    drafters: Mapping[str, Drafter],
    max_tokens: int,
    num_new: int,
    samplings: Sequence[Sampling],
) -> dict[str, str]:
    """Run the steps of all drafters in sequences of up to `max_tokens` tokens.

    At most `num_new` of these tokens are generated. `samplings` has one entry per temperature of
    the run. Returns a warning by label for each drafter that fails. The method's samples may pass
    nevertheless.
    """
    from specbench.engine.graphs.capture import capture_graphs

    warnings = {}
    for label, drafter in drafters.items():
        try:
            with containing("The error"):  # plug-ins may raise, or even exit
                capture_graphs(target, drafter, max_tokens, num_new, samplings)
        except SpecbenchError as fault:
            warnings[label] = f"{label}: the warm-up captured only some graphs. {fault.message}"
    return warnings


def prompts_to(longest: int, first: tuple[int, ...], num_new: int) -> list[tuple[int, ...]]:
    """A prompt for each size of the cache that a sequence of up to `longest` tokens reaches.

    Prompts repeat the tokens of the `first` prompt. The last prompt and `num_new` new tokens have
    the full length, at which draft trees may need the largest size.
    """
    from specbench.engine.buckets import BUCKET, buckets

    longest_prompt = longest - num_new
    lengths = [BUCKET, *buckets(longest)[:-1], longest_prompt]
    return [
        (first * (length // len(first) + 1))[:length]
        for length in lengths
        if 0 < length <= longest_prompt
    ]
