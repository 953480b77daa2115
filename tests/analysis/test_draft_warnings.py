"""Warnings about drafts that nothing accepts, and facts about draft weights."""

from dataclasses import replace
from typing import Any

import pytest

from specbench.analysis.metrics import measure
from specbench.analysis.warnings import RunWarning
from specbench.report.fact_notes import fact_notes
from specbench.report.texts import make_note
from specbench.types import Record
from tests.analysis.run_factory import header, make_run, record, warnings_of

TASKS = ("gsm8k", "alpaca")


@pytest.mark.parametrize(
    ("accepting", "drafts", "is_told"),
    [(1, 2516, True), (1, 200, True), (1, 199, False), (2, 200, False), (0, 199, False)],
)
def test_drafts_that_are_almost_never_accepted_are_named(
    accepting: int, drafts: int, is_told: bool
) -> None:
    """The 500 steps without a draft do not count."""
    rejecting = drafts - accepting
    lengths = [2] * accepting + [1] * rejecting + [1] * 500
    num_nodes = (4,) * drafts + (1,) * 500
    drafted = replace(record("pld", accept_lengths=lengths), num_nodes=num_nodes)
    metrics = measure(make_run([record("vanilla"), drafted], header(("vanilla", "pld"), TASKS)))
    warnings = warnings_of(metrics, "idle_drafts")
    assert len(warnings) == is_told
    for warning in warnings:
        assert warning.numbers["accepting"] == accepting
        assert warning.numbers["drafts"] == drafts


def weighted(*methods: str, **options: Any) -> dict[str, Any]:
    """A header whose methods draft with weights, except vanilla."""
    about = header(("vanilla", *methods), TASKS)
    weights: dict[str, Any] = {"revision": None, "files": {}}
    for method in methods:
        about["methods"][method] |= {"weights": weights, "options": options}
    return about


def drafting(method: str, sample: str, lengths: list[int], repeat: int = 0) -> Record:
    answer = record(method, sample, accept_lengths=lengths, repeat=repeat)
    return replace(answer, num_nodes=(5,) * len(lengths))


def idle_warnings(records: list[Record], **options: Any) -> list[RunWarning]:
    """The warnings about EAGLE's drafts, given its records and options."""
    return warnings_of(measure(make_run(records, weighted("eagle", **options))), "idle_drafts")


@pytest.mark.parametrize(
    ("drafts", "options", "is_told"),
    [
        ([19, 13], {}, True),
        ([19, 12], {}, False),
        ([90], {}, False),
        ([19, 13], {"datastore": "a.store"}, False),  # drafts are looked up in texts
        ([150, 50], {"other": "eagle2"}, True),
        ([150, 49], {"other": "eagle2"}, False),  # some drafts are looked up
    ],
)
def test_trained_drafts_that_always_fail_are_named_after_few_steps(
    drafts: list[int], options: dict[str, str], is_told: bool
) -> None:
    records = [drafting("eagle", str(i), [1] * steps) for i, steps in enumerate(drafts)]
    warnings = idle_warnings([record("vanilla"), *records], **options)
    assert len(warnings) == is_told
    for warning in warnings:
        assert warning.numbers["drafts"] == sum(drafts)


def test_a_head_is_not_idle_after_one_accepted_draft() -> None:
    few = [
        drafting("eagle", sample, [1] * steps, repeat)
        for sample, steps in (("a", 19), ("b", 12))
        for repeat in range(3)
    ]
    assert not idle_warnings(few)
    many = [drafting("eagle", str(i), [1] * 19) for i in range(5)]
    assert idle_warnings(many)
    assert not idle_warnings([*many, drafting("eagle", "z", [1, 2])])


def test_steps_beyond_the_positions_of_weights_are_reported() -> None:
    about = header(("vanilla", "eagle", "sps"), TASKS)
    steps = {"mode": "eager", "reason": None}
    about["execution"] = {"eagle": steps | {"num_positions": 60}, "sps": steps}
    prompt_tokens = {"a": 55, "b": 61}  # steps of `a` begin after 56, 59 and 63 tokens
    lengths = {"a": [3, 4, 4], "b": [1, 2]}
    records = [
        replace(drafting(method, sample, lengths[sample], repeat), prompt_tokens=num)
        for sample, num in prompt_tokens.items()
        for method in ("vanilla", "eagle", "sps")
        for repeat in range(2)
    ]
    metrics = measure(make_run(records, about))
    (warning,) = warnings_of(metrics, "long_prompts")
    assert make_note(warning.key, metrics.info, **warning.numbers).text == (
        "60.0 % of the steps of EAGLE lie beyond the 60 positions that its weights were made for. "
        "There, MAT is 2.33; before, it is 3.50."
    )
    beyond = [answer for answer in records if answer.prompt_tokens > 60]
    (warning,) = warnings_of(measure(make_run(beyond, about)), "long_prompts")
    assert make_note(warning.key, **warning.numbers).text.endswith("There, MAT is 1.50.")
    within = [answer for answer in records if answer.prompt_tokens < 56]
    about["execution"]["eagle"]["num_positions"] = 63
    assert not warnings_of(measure(make_run(within, about)), "long_prompts")


def test_facts_about_checkpoints_are_not_warnings() -> None:
    about = header(("vanilla", "eagle"), TASKS)
    facts = ["output layer: the target's", "rope_theta 700.0, the target's 10000.0"]
    about["execution"] = {"eagle": {"mode": "eager", "reason": None, "weights_facts": facts}}
    notes = fact_notes(measure(make_run([], about)))
    (note,) = (note for note in notes if note.label == "Draft weights")
    assert not note.is_warning
    assert note.text == f"EAGLE: {facts[0]}, {facts[1]}."
