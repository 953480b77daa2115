"""Sum columns of answers over prompts: over the prompts as they are, and in each resample.

A side has the answers of a method in a run, and vanilla's (`AnswerPairs`). There are one or two
sides. Prompts are drawn within their task, separately for prompts that both sides have and prompts
that only one side has. A shared prompt is drawn for both sides at once. Of n prompts, n - 1 are
drawn and weighted by n / (n - 1), so that the variance of a sum is not too small for few prompts
(Rao and Wu 1988).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from specbench.analysis.answer_pairs import AnswerPairs
from specbench.analysis.grouping import group_by
from specbench.analysis.ratios import cluster_sums
from specbench.analysis.stats.arrays import FloatArray, IntArray
from specbench.analysis.stats.bootstrap import Bootstrap, effective_number

Sums = Mapping[str, FloatArray]
"""Name of a column -> its sums [tasks, 1 + resamples], or its sums over all tasks [1 + resamples].

The first sum is over the prompts as they are. The names of vanilla's columns begin with `base_`.
"""


class Prompt(NamedTuple):
    """A prompt, identified by its task and sample."""

    task: str
    sample_id: str


@dataclass(frozen=True, slots=True, eq=False)
class DrawnPrompts:
    """The weights of prompts in each resample."""

    index_of: Mapping[Prompt, int]
    """Prompt of any side -> number of its column in `weights`."""
    weights: FloatArray
    """The weights of the prompts [1 + resamples, prompts]. The first row is all ones, for the
    prompts as they are.
    """
    stratum_of: IntArray
    """The number of the group (stratum) within which each prompt is drawn [prompts]."""

    def sums(self, pairs: AnswerPairs) -> Sums:
        """Compute weighted sums of each column of one side: name -> [tasks, 1 + resamples].

        sum of a task in a resample = sum over its prompts of weight * sum over the prompt's rows

        The first sum of a task is over its prompts as they are (all weights are 1). `pairs` has the
        answers of the side, one per row.
        """
        row_prompts = prompts_of(pairs)  # [rows]
        # the number of each row's prompt, which is its column in `self.weights` [rows]
        prompt_of_row = np.array([self.index_of[prompt] for prompt in row_prompts], dtype=np.intp)
        columns = _columns(pairs, prompt_of_row)  # name -> [rows]
        side_prompts = np.unique(prompt_of_row)  # numbers of this side's prompts, ascending
        by_prompt = cluster_sums(prompt_of_row, [*columns.values()])  # [side's prompts, columns]
        all_prompts = [*self.index_of]  # in the order of their numbers
        # task -> positions of its prompts in `side_prompts`, and so in the rows of `by_prompt`
        positions_of_task = group_by(
            range(len(side_prompts)), key=lambda position: all_prompts[side_prompts[position]].task
        )
        by_task = np.stack(  # [tasks, 1 + resamples, columns]
            [
                self.weights[:, side_prompts[positions]] @ by_prompt[positions]
                for positions in positions_of_task.values()
            ]
        )
        return {name: by_task[:, :, column] for column, name in enumerate(columns)}

    def degrees(self, sides: Sequence[AnswerPairs]) -> float:
        """Compute the degrees of freedom: effective number of prompts - number of strata.

        `sides` has only the answers that count on each side: to turns that both sides have, or all
        answers if there are no such turns. The weight of a prompt is the seconds of the method's
        answers to it. If the seconds are unknown (NaN), it is their tokens by our counting rule.
        """
        # `effective_number` turns each side's column into shares and averages the sides' shares, so
        # one side may have seconds and the other tokens.
        amount_of_prompt = np.zeros((len(self.index_of), len(sides)))  # [prompts, sides]
        for side, pairs in enumerate(sides):
            prompt_of_row = [self.index_of[prompt] for prompt in prompts_of(pairs)]
            answers = pairs.method
            amounts = np.where(np.isnan(answers.wall_s), answers.tokens, answers.wall_s)  # [rows]
            # sums over each prompt's rows
            np.add.at(amount_of_prompt[:, side], prompt_of_row, amounts)
        is_counted = amount_of_prompt.any(axis=1)  # True for prompts with answers [prompts]
        num_strata = len(np.unique(self.stratum_of[is_counted]))
        return max(0.0, effective_number(amount_of_prompt[is_counted]) - num_strata)


def prompts_of(pairs: AnswerPairs) -> list[Prompt]:
    """List the prompt of each row."""
    return [Prompt(request.task, request.sample_id) for request in pairs.requests]


def draw_prompts(sides: Sequence[AnswerPairs], bootstrap: Bootstrap) -> DrawnPrompts:
    """Draw the weights that the prompts of one or two sides have in each resample.

    Prompts are drawn with replacement within strata. A stratum has the prompts of a task that both
    sides have, or those that only one of the sides has. Of its n prompts, n - 1 are drawn:
    weight = times drawn * n / (n - 1).
    """
    prompts_of_sides = [{*prompts_of(pairs)} for pairs in sides]  # a set per side
    all_prompts = sorted(set().union(*prompts_of_sides))
    index_of = {prompt: index for index, prompt in enumerate(all_prompts)}

    def stratum_key(index: int) -> tuple[str, tuple[bool, ...]]:
        """Return a prompt's task, and a flag per side: True if the side has the prompt."""
        prompt = all_prompts[index]
        is_on_side = tuple(prompt in side_prompts for side_prompts in prompts_of_sides)
        return prompt.task, is_on_side

    strata = group_by(range(len(all_prompts)), key=stratum_key)  # indices of prompts
    generator = np.random.default_rng(bootstrap.seed)
    # weights [1 + resamples, prompts]; row 0 is not a resample, so each prompt counts once
    weights = np.ones((1 + bootstrap.num_resamples, len(index_of)))
    stratum_of = np.zeros(len(index_of), dtype=np.intp)  # number of each prompt's stratum
    for stratum, indices in enumerate(strata.values()):
        stratum_of[indices] = stratum
        num_prompts = len(indices)
        if num_prompts > 1:  # a single prompt has weight 1 in each resample
            probabilities = np.full(num_prompts, 1 / num_prompts)
            # times that each prompt of the stratum is drawn [resamples, num_prompts]
            times = generator.multinomial(num_prompts - 1, probabilities, bootstrap.num_resamples)
            weights[1:, indices] = times * (num_prompts / (num_prompts - 1))
    return DrawnPrompts(index_of, weights, stratum_of)


def undrawn(pairs: AnswerPairs) -> DrawnPrompts:
    """Give all prompts of a side equal weights, without resamples."""
    return draw_prompts([pairs], Bootstrap(num_resamples=0))


def _columns(pairs: AnswerPairs, prompt_of_row: IntArray) -> dict[str, FloatArray]:
    """Make the columns to sum over answers: name -> [rows].

    A row is the method's answer and vanilla's answer to the same request. Columns of answers are
    named like the fields of `Answers`; vanilla's begin with "base_". "counted_tokens" are tokens by
    the counting rule of the source, "emitted" are those that steps emitted. Four columns are about
    questions. A question is a prompt in a pass, with all its turns. Its first row has a 1 (to count
    questions), the tokens/s of the method and of vanilla, and the ratio of these two; its other
    rows have zeros. `prompt_of_row` has the number of each row's prompt [rows].
    """
    columns: dict[str, FloatArray] = {}
    for prefix, answers in (("", pairs.method), ("base_", pairs.vanilla)):
        columns |= {f"{prefix}{name}": column for name, column in answers._asdict().items()}
        columns[f"{prefix}counted_tokens"] = answers.counted_tokens
        columns[f"{prefix}emitted"] = answers.emitted
    repeats = np.array([request.repeat for request in pairs.requests])  # numbers of passes [rows]
    # A question as a single integer: prompt * number of passes + pass.
    questions = prompt_of_row * (1 + repeats.max()) + repeats
    _, first_rows, question_of_row = np.unique(questions, return_index=True, return_inverse=True)
    names = ("counted_tokens", "wall_s", "base_counted_tokens", "base_wall_s")
    # sums over the rows of each question [questions]
    tokens, wall_s, base_tokens, base_wall_s = (
        np.bincount(question_of_row, columns[name]) for name in names
    )
    question_columns = {
        "questions": np.ones(len(first_rows)),
        "rate": tokens / wall_s,
        "base_rate": base_tokens / base_wall_s,
        "rate_ratio": tokens / wall_s * base_wall_s / base_tokens,
    }
    for name, question_column in question_columns.items():
        columns[name] = np.zeros(len(prompt_of_row))
        columns[name][first_rows] = question_column
    return columns
