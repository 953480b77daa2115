"""Sums of answers over prompts: once as they are, and in each resample of the prompts.

Prompts are drawn within their task, separately for prompts that both sides have and prompts that
only one side has. A shared prompt is drawn for both sides at once. Of n prompts n - 1 are drawn and
weighted by n / (n - 1), so that the variance of a sum is not too small for few prompts (Rao and Wu
1988).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specbench.analysis.answer_pairs import AnswerPairs
from specbench.analysis.ratios import cluster_sums
from specbench.analysis.stats.arrays import FloatArray, IntArray
from specbench.analysis.stats.bootstrap import Bootstrap, effective_number

Sums = Mapping[str, FloatArray]
"""Sums of columns by name: [tasks, 1 + resamples], or over all tasks [1 + resamples].

The first sum is over the prompts as they are. Names of vanilla's columns begin with `base_`.
"""


class Prompt(NamedTuple):
    """A prompt."""

    task: str
    sample_id: str


@dataclass(frozen=True, slots=True, eq=False)
class DrawnPrompts:
    """The weights of prompts in each resample."""

    index_of: Mapping[Prompt, int]
    """Prompts of both sides, each with the number of its column in `weights`."""
    weights: FloatArray
    """Weights of the prompts [1 + resamples, prompts]. The first row, all ones, is the prompts as
    they are.
    """
    stratum_of: IntArray
    """The number of the group that each prompt is drawn in [prompts]."""

    def sums(self, pairs: AnswerPairs) -> Sums:
        """The columns of one side's answers, summed by task and resample.

        sum of a task in a resample = sum over its prompts of weight * sum over the prompt's rows

        `self.index_of` has the number of each prompt of both sides, `self.weights` [1 + resamples,
        prompts] how often each resample has it; the first row counts each prompt once.
        """
        row_prompts = prompts_of(pairs)  # a row is an answer
        prompt_of_row = np.array([self.index_of[prompt] for prompt in row_prompts], dtype=np.intp)
        columns = _columns(pairs, prompt_of_row)  # name -> [rows]
        side_prompts = np.unique(prompt_of_row)  # numbers of this side's prompts
        by_prompt = cluster_sums(prompt_of_row, [*columns.values()])  # [side's prompts, columns]
        all_prompts = [*self.index_of]
        # Positions in `side_prompts`, and so in the rows of `by_prompt`, of each task's prompts.
        positions_of_task: dict[str, list[int]] = defaultdict(list)
        for position, prompt_index in enumerate(side_prompts.tolist()):
            positions_of_task[all_prompts[prompt_index].task].append(position)
        by_task = np.stack(  # [tasks, 1 + resamples, columns]
            [
                self.weights[:, side_prompts[positions]] @ by_prompt[positions]
                for positions in positions_of_task.values()
            ]
        )
        return {name: by_task[:, :, column] for column, name in enumerate(columns)}

    def degrees(self, sides: Sequence[AnswerPairs]) -> float:
        """Degrees of freedom of the resamples: effective number of prompts - number of strata."""
        weights = np.zeros((len(self.index_of), len(sides)))  # [prompts, sides]: seconds
        for number, pairs in enumerate(sides):
            rows = [self.index_of[prompt] for prompt in prompts_of(pairs)]
            tokens, wall_s, *_ = pairs.method
            np.add.at(weights[:, number], rows, np.where(np.isnan(wall_s), tokens, wall_s))
        is_counted = weights.any(axis=1)
        num_strata = len(np.unique(self.stratum_of[is_counted]))
        return max(0.0, effective_number(weights[is_counted]) - num_strata)


def prompts_of(pairs: AnswerPairs) -> list[Prompt]:
    """The prompt of each row."""
    return [Prompt(request.task, request.sample_id) for request in pairs.requests]


def draw_prompts(sides: Sequence[AnswerPairs], bootstrap: Bootstrap) -> DrawnPrompts:
    """Draw the prompts of one or two sides.

    Prompts are drawn within strata: the prompts of one task that are on the same sides, on both or
    on one. Of the n prompts of a stratum, n - 1 are drawn: weight = times drawn * n / (n - 1).
    """
    prompts_of_sides = [{*prompts_of(pairs)} for pairs in sides]
    all_prompts = sorted(set().union(*prompts_of_sides))
    index_of = {prompt: index for index, prompt in enumerate(all_prompts)}
    # (task, for each side whether it has the prompt) -> indices of prompts
    strata: dict[tuple[str, tuple[bool, ...]], list[int]] = defaultdict(list)
    for prompt, index in index_of.items():
        is_on_side = tuple(prompt in side_prompts for side_prompts in prompts_of_sides)
        strata[prompt.task, is_on_side].append(index)
    generator = np.random.default_rng(bootstrap.seed)
    # [1 + resamples, prompts]; row 0 has the measured prompts, each once
    weights = np.ones((1 + bootstrap.num_resamples, len(index_of)))
    stratum_of = np.zeros(len(index_of), dtype=np.intp)
    for stratum, indices in enumerate(strata.values()):
        stratum_of[indices] = stratum
        num_prompts = len(indices)
        if num_prompts > 1:  # a single prompt stays as it is
            shares = np.full(num_prompts, 1 / num_prompts)
            counts = generator.multinomial(num_prompts - 1, shares, bootstrap.num_resamples)
            weights[1:, indices] = counts * (num_prompts / (num_prompts - 1))
    return DrawnPrompts(index_of, weights, stratum_of)


def undrawn(pairs: AnswerPairs) -> DrawnPrompts:
    """The prompts as they are, without resamples."""
    return draw_prompts([pairs], Bootstrap(num_resamples=0))


def _columns(pairs: AnswerPairs, prompt_of_row: IntArray) -> dict[str, FloatArray]:
    """The columns that are summed: [requests] each.

    A question is a prompt in a pass, with all its turns. The first row of a question has its rate
    (tokens/s) and the 1 that counts it; its other rows have 0 in these columns.
    """
    columns: dict[str, FloatArray] = {}
    for prefix, answers in (("", pairs.method), ("base_", pairs.vanilla)):
        columns |= {f"{prefix}{name}": column for name, column in answers._asdict().items()}
        columns[f"{prefix}counted_tokens"] = answers.counted_tokens
        columns[f"{prefix}emitted"] = answers.emitted
    repeats = np.array([request.repeat for request in pairs.requests])
    # A question as one integer: prompt * passes + pass.
    questions = prompt_of_row * (1 + repeats.max()) + repeats
    _, first_rows, question_of_row = np.unique(questions, return_index=True, return_inverse=True)
    names = ("counted_tokens", "wall_s", "base_counted_tokens", "base_wall_s")
    # [questions] each
    tokens, wall_s, base_tokens, base_wall_s = (
        np.bincount(question_of_row, columns[name]) for name in names
    )
    rates = {
        "questions": np.ones(len(first_rows)),
        "rate": tokens / wall_s,
        "base_rate": base_tokens / base_wall_s,
        "rate_ratio": tokens / wall_s * base_wall_s / base_tokens,
    }
    for name, question_rates in rates.items():
        columns[name] = np.zeros(len(prompt_of_row))
        columns[name][first_rows] = question_rates
    return columns
