"""Steps by their place: position in the answer, length of the context, turn."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from specbench.analysis.frames import step_bins_frame
from specbench.analysis.metrics import measure
from specbench.analysis.records import make_table
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.analysis.step_bins import LEAST_PROMPTS, Axis, StepBin, bin_steps, locate_steps
from specbench.types import Record
from tests.analysis.run_factory import make_run, record

DRAWS = Draws(Bootstrap(), "places")


def bins(records: Sequence[Record], axis: Axis) -> list[StepBin]:
    table = make_table(records)
    step_bins = bin_steps(table, np.arange(len(records)), DRAWS)
    return [step_bin for step_bin in step_bins if step_bin.axis == axis]


def test_a_step_counts_where_it_begins() -> None:
    """After the prefill's token and 3 * 10 more, position 31; the next step is at 34."""
    answers = [record("pld", f"p{n}", accept_lengths=[3] * 12) for n in range(LEAST_PROMPTS)]
    first, second = bins(answers, "position")
    assert (first.low, first.high, first.num_steps) == (0, 32, 11 * LEAST_PROMPTS)
    assert (second.low, second.high, second.num_steps) == (32, 64, LEAST_PROMPTS)
    (context,) = bins(answers, "context")  # prompts of 10 tokens
    assert (context.range_text, context.num_steps) == ("0-127", 12 * LEAST_PROMPTS)


def test_bins_have_the_numbers_of_their_own_steps() -> None:
    """Steps of 1 and 2 tokens up to position 32, then of 4."""
    answers = [
        record("pld", f"p{number}", accept_lengths=[1] * 15 + [2] * 8 + [4] * (3 + number))
        for number in range(LEAST_PROMPTS)
    ]
    early, late = bins(answers, "position")
    assert isinstance(early.mat, Estimate)
    assert early.mat.value == pytest.approx((15 + 16) / 23)
    assert isinstance(early.acceptance, Estimate)
    assert early.acceptance.value == pytest.approx(8 / 23)
    assert isinstance(late.mat, Estimate)
    assert late.mat.value == 4
    assert isinstance(late.acceptance, Estimate)
    assert late.acceptance.value == 1
    assert sum(step_bin.num_steps for step_bin in (early, late)) == sum(
        len(answer.accept_lengths) for answer in answers
    )


def test_few_prompts_give_no_number() -> None:
    answers = [
        record("pld", f"p{number}", accept_lengths=[2] * (20 if number else 5))
        for number in range(LEAST_PROMPTS)
    ]
    early, late = bins(answers, "position")
    assert isinstance(early.mat, Estimate)
    assert late.mat == Missing(f"{LEAST_PROMPTS - 1} of {LEAST_PROMPTS} prompts")
    assert late.num_prompts == LEAST_PROMPTS - 1


def test_turns_and_passes_of_a_prompt_are_one_prompt() -> None:
    answers = [
        record("pld", f"p{number}", turn=turn, repeat=repeat, accept_lengths=[2 + turn] * 4)
        for number in range(LEAST_PROMPTS)
        for turn in (0, 1)
        for repeat in (0, 1)
    ]
    first, second = bins(answers, "turn")
    assert [step_bin.range_text for step_bin in (first, second)] == ["1", "2"]
    assert first.num_prompts == second.num_prompts == LEAST_PROMPTS
    assert isinstance(first.mat, Estimate)
    assert isinstance(second.mat, Estimate)
    assert (first.mat.value, second.mat.value) == (2, 3)


def test_the_frame_has_a_row_per_bin_and_none_of_vanilla() -> None:
    answers = [
        record(method, f"p{number}", accept_lengths=[length] * (24 // length))
        for method, length in (("vanilla", 1), ("pld", 2))
        for number in range(LEAST_PROMPTS)
    ]
    frame = step_bins_frame(measure(make_run(answers)))
    assert set(frame["method"]) == {"pld"}
    assert list(frame["axis"]) == ["position", "context", "turn"]
    assert frame["mat"].tolist() == [2.0, 2.0, 2.0]
    assert (frame["num_steps"] == 12 * LEAST_PROMPTS).all()


def test_answers_without_steps_have_no_bins() -> None:
    answers = [record("pld", f"p{number}", accept_lengths=[]) for number in range(3)]
    assert bin_steps(make_table(answers), np.arange(3), DRAWS) == ()


def test_a_failed_answer_leaves_the_contexts_of_the_others() -> None:
    answers = [record("pld", f"p{number}", accept_lengths=[2] * 5) for number in range(3)]
    failed = replace(answers[0], key=replace(answers[0].key, turn=1), status="error", error="lost")
    failed = replace(failed, prompt_tokens=0, accept_lengths=())
    with_failure = make_table([*answers, failed])
    assert "context" in locate_steps(with_failure, np.arange(4)).places
    without_prompt = replace(answers[0], prompt_tokens=0)
    assert "context" not in locate_steps(make_table([without_prompt]), np.arange(1)).places
