"""An explanation shows MAT by position, context and turn, where two runs accept differently."""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from statistics import mean

import numpy as np
import pytest

from specbench.analysis.records import make_table
from specbench.analysis.stats.bootstrap import Bootstrap, Draws
from specbench.analysis.step_bins import LEAST_PROMPTS, bin_steps
from specbench.judge.explanation import explain_runs
from specbench.judge.explanation_formats import (
    explained_document,
    explanation_frame,
    print_explanation,
    render_explanation,
)
from specbench.log.run import Run
from specbench.types import Record
from tests.analysis.run_factory import full_run
from tests.judge.changing import with_records
from tests.judge.explained import only
from tests.support.printing import printed

METHOD = "eagle2"
RUN = full_run(("vanilla", METHOD), ("gsm8k",), num_samples=30)
CHANGE_AT = 32
"""The position from which the changed run splits its longer steps."""


def starts(record: Record) -> Iterator[tuple[int, int]]:
    """The position and the number of tokens of each step."""
    position = 1
    for length in record.accept_lengths:
        yield position, length
        position += length


def less_later(record: Record) -> Record:
    """The answer. From `CHANGE_AT` on, steps of two or more tokens are split in two."""
    if record.key.method != METHOD:
        return record
    lengths: list[int] = []
    for position, length in starts(record):
        is_split = position >= CHANGE_AT and length > 1
        lengths += [length - 1, 1] if is_split else [length]
    return replace(record, accept_lengths=tuple(lengths), num_nodes=())


def walked(run: Run, low: int, high: int) -> dict[str, list[int]]:
    """For each prompt, the lengths of the steps that begin in a range of positions."""
    lengths = defaultdict(list)
    for record in run.records:
        if record.key.method == METHOD:
            for position, length in starts(record):
                if low <= position < high:
                    lengths[record.key.sample_id].append(length)
    return lengths


def test_the_ratio_by_position_equals_an_independent_walks() -> None:
    changed = with_records(RUN, less_later)
    document = explained_document([only(explain_runs(changed, RUN))])
    rows = {row["factor"]: row for row in document.explanations[0]["by_place"]}
    for low, high in ((0, 32), (32, 64), (64, 128)):
        sides = [walked(run, low, high) for run in (changed, RUN)]
        both = sides[0].keys() & sides[1].keys()
        mats = [
            mean(length for prompt in both for length in by_prompt[prompt]) for by_prompt in sides
        ]
        row = rows[f"answer {low}-{high - 1}"]
        assert (row["subject"], row["reference"]) == pytest.approx(mats, rel=1e-12)
        assert row["effect"] == pytest.approx(mats[0] / mats[1], rel=1e-12)
        assert row["is_claimed"] is (low >= CHANGE_AT)
    text = printed(partial(print_explanation, document))
    assert "· answer 32-63" in text
    assert "A range counts only prompts that have such steps on both sides" in " ".join(
        text.split()
    )
    assert max(map(len, text.splitlines())) <= 80


def test_lines_are_shown_only_for_differences() -> None:
    document = explained_document(explain_runs(RUN, RUN))
    assert {row["effect"] for row in document.explanations[0]["by_place"]} == {1.0}
    text = printed(partial(print_explanation, document))
    assert "· answer" not in text

    def of_one_prompt(record: Record) -> Record:
        return less_later(record) if record.key.sample_id == "gsm8k/0" else record

    document = explained_document(explain_runs(with_records(RUN, of_one_prompt), RUN))
    text = printed(partial(print_explanation, document))
    assert "· answer" not in text and {
        row["is_claimed"] for row in document.explanations[0]["by_place"]
    } == {False}


def test_fewer_than_five_prompts_of_both_sides_give_no_number() -> None:
    def few(record: Record) -> Record | None:
        return record if int(record.key.sample_id.partition("/")[2]) < LEAST_PROMPTS - 1 else None

    explanation = only(explain_runs(with_records(RUN, few), RUN))
    document = explained_document([explanation])
    (entry,) = json.loads(render_explanation(document, "json"))["explanations"]
    assert entry["by_place"] and all(row["effect"] is None for row in entry["by_place"])
    assert entry["by_place"][0]["effect_missing"] == "4 of 5 prompts"
    frame = explanation_frame([explanation])
    assert set(frame[frame["part_of"] == "MAT"]["factor"]) == {
        row["factor"] for row in entry["by_place"]
    }


def test_answers_without_the_tokens_of_prompts_have_no_context() -> None:
    records = [replace(record, prompt_tokens=0) for record in RUN.records]
    table = make_table(records)
    step_bins = bin_steps(table, np.arange(len(records)), Draws(Bootstrap(), "places"))
    assert {step_bin.axis for step_bin in step_bins} == {"position", "turn"}
