"""Steps grouped by where they begin: position in the answer, length of the context, turn."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from specbench.analysis.frames import step_bins_frame
from specbench.analysis.metrics import measure
from specbench.analysis.records import make_table
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.stats.estimates import Missing
from specbench.analysis.step_bins import LEAST_PROMPTS, Axis, StepBin, bin_steps, locate_steps
from specbench.types import Record
from tests.analysis.run_factory import make_run, number, record

DRAWS = Draws(Bootstrap(), "places")


def bins(records: Sequence[Record], axis: Axis) -> list[StepBin]:
    """The bins of an axis, for all steps of these answers."""
    step_bins = bin_steps(make_table(records), np.arange(len(records)), DRAWS)
    return [step_bin for step_bin in step_bins if step_bin.axis == axis]


def test_a_step_counts_where_it_begins() -> None:
    """An answer is the prefill's token at position 0, then 12 steps of 3 tokens.

    The steps begin at positions 1, 4, ..., 31 and 34, so 11 of them begin before position 32. The
    whole context is shorter than 128 tokens: 10 of the prompt and 37 of the answer.
    """
    answers = [record("pld", f"p{n}", accept_lengths=[3] * 12) for n in range(LEAST_PROMPTS)]
    first, second = bins(answers, "position")
    assert (first.low, first.high) == (0, 32)
    assert first.num_steps == 11 * LEAST_PROMPTS
    assert (second.low, second.high) == (32, 64)
    assert second.num_steps == LEAST_PROMPTS
    (context,) = bins(answers, "context")
    assert context.range_text == "0-127"
    assert context.num_steps == 12 * LEAST_PROMPTS


def test_bins_have_the_numbers_of_their_own_steps() -> None:
    """Up to position 32, each answer has 15 steps of 1 token and 8 of 2, then steps of 4."""
    early_lengths = [1] * 15 + [2] * 8
    answers = [
        record("pld", f"p{n}", accept_lengths=[*early_lengths, *[4] * (3 + n)])
        for n in range(LEAST_PROMPTS)
    ]
    early, late = bins(answers, "position")
    assert number(early.mat) == pytest.approx(sum(early_lengths) / len(early_lengths))
    assert number(early.acceptance) == pytest.approx(8 / 23)  # a step of 2 accepts a draft token
    assert number(late.mat) == 4
    assert number(late.acceptance) == 1
    num_steps = sum(len(answer.accept_lengths) for answer in answers)
    assert early.num_steps + late.num_steps == num_steps


def test_few_prompts_give_no_number() -> None:
    """One answer ends before position 32, so late steps come from one prompt too few."""
    short, long = [2] * 5, [2] * 20
    answers = [
        record("pld", f"p{n}", accept_lengths=long if n else short) for n in range(LEAST_PROMPTS)
    ]
    early, late = bins(answers, "position")
    assert number(early.mat) == 2
    assert late.mat == Missing(f"{LEAST_PROMPTS - 1} of {LEAST_PROMPTS} prompts")
    assert late.num_prompts == LEAST_PROMPTS - 1


def test_turns_and_passes_of_a_prompt_are_one_prompt() -> None:
    """Steps have 2 tokens in first turns and 3 in second ones."""
    answers = [
        record("pld", f"p{n}", turn=turn, repeat=repeat, accept_lengths=[2 + turn] * 4)
        for n in range(LEAST_PROMPTS)
        for turn in (0, 1)
        for repeat in (0, 1)
    ]
    first, second = bins(answers, "turn")
    assert [first.range_text, second.range_text] == ["1", "2"]
    assert first.num_prompts == second.num_prompts == LEAST_PROMPTS
    assert [number(first.mat), number(second.mat)] == [2, 3]


def test_the_frame_has_a_row_per_bin_and_none_of_vanilla() -> None:
    """Each answer has 24 tokens after the prefill's, so one bin of each axis holds all of its
    steps.
    """
    answers = [
        record(method, f"p{n}", accept_lengths=[length] * (24 // length))
        for method, length in (("vanilla", 1), ("pld", 2))
        for n in range(LEAST_PROMPTS)
    ]
    frame = step_bins_frame(measure(make_run(answers)))
    assert set(frame["method"]) == {"pld"}
    assert list(frame["axis"]) == ["position", "context", "turn"]
    assert frame["mat"].tolist() == [2.0, 2.0, 2.0]
    assert (frame["num_steps"] == 12 * LEAST_PROMPTS).all()


def test_answers_without_steps_have_no_bins() -> None:
    answers = [record("pld", f"p{n}", accept_lengths=[]) for n in range(3)]
    assert bin_steps(make_table(answers), np.arange(3), DRAWS) == ()


def test_a_failed_answer_leaves_the_contexts_of_the_others() -> None:
    answers = [record("pld", f"p{n}", accept_lengths=[2] * 5) for n in range(3)]
    second_turn = replace(answers[0].key, turn=1)
    failed = replace(
        answers[0],
        key=second_turn,
        status="error",
        error="lost",
        prompt_tokens=0,
        accept_lengths=(),
    )
    with_failure = make_table([*answers, failed])
    assert "context" in locate_steps(with_failure, np.arange(4)).places


def test_an_answer_to_a_prompt_of_unknown_length_has_no_context() -> None:
    answer = replace(record("pld", accept_lengths=[2] * 5), prompt_tokens=0)
    assert "context" not in locate_steps(make_table([answer]), np.arange(1)).places
