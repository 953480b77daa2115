"""A report's notes and numbers if drafting is off, stops, or is not counted."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specbench.analysis.server_counters import drafting_share
from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.analysis.tables import tabled
from specbench.judge.sources import check_sources_alone
from specbench.log.run import Load, Run
from specbench.report.build import make_report
from tests.analysis.run_factory import number
from tests.analysis.test_serving import FOUR, ONE, answer, block, measured, run
from tests.judge.changing import with_header
from tests.support.headers import values_of
from tests.support.texts import assert_in

DRAFTING = {"num_drafts": 4, "num_accepted": 6}
SILENT = {"num_drafts": 0, "num_accepted": 0}
SERVERS = {
    label: {"url": "http://127.0.0.1:1", "software": "", "model": "tiny", "protocol": "openai"}
    for label in ("vanilla", "ngram")
}


def of_answers(
    method: str,
    counts: Sequence[dict[str, Any]],
    load: Load = ONE,
    counters: Sequence[dict[str, float]] = ({},),
) -> Run:
    """A run of vanilla and a method, with these counts for its answers.

    Each dict of counters is a pass.
    """
    num_passes = len(counters)
    records, blocks = [], []
    for repeat, counters_of_pass in enumerate(counters):
        blocks.append(block("vanilla", load, duration_s=2.0, repeat=repeat, counters={}))
        blocks.append(block(method, load, duration_s=2.0, repeat=repeat, counters=counters_of_pass))
    for i, counts_of_answer in enumerate(counts):
        repeat = i % num_passes
        plain = answer("vanilla", i, load, wall_s=1.0, repeat=repeat)
        records.append(replace(plain, accept_lengths=(1,) * 10))
        records.append(answer(method, i, load, wall_s=0.5, repeat=repeat, **counts_of_answer))
    records.sort(key=lambda record: record.key.repeat)
    return run(records, blocks, [load])


def by_states(method: str, states: str) -> Run:
    """A run with an answer per digit of `states`. 1 is an answer with drafts, 0 one without."""
    return of_answers(method, [DRAFTING if state == "1" else SILENT for state in states])


def sentences_of(served_run: Run, key: str = "") -> list[str]:
    """The sentences of the report's notes. A `key` selects some of them."""
    notes = make_report(served_run, Bootstrap(50)).notes
    return [note.text for note in notes if key in ("", note.key)]


@pytest.mark.parametrize("method", ["medusa", "draft_model:k=3", "glm-mtp", "eagle"])
@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ("0000", "the server drafted nothing"),
        ("1110", "no drafts after request 3"),
        ("1000", "no drafts after request 1"),
        ("1011", "no drafts in 1 of 4 answers"),
        ("0001", "no drafts in 3 of 4 answers"),
    ],
)
def test_answers_with_and_without_drafts_have_no_mean(
    method: str, states: str, reason: str
) -> None:
    served_run = by_states(method, states)
    metrics = measured(served_run)
    cell = metrics.cell(method, 0.0, "gsm8k")
    overall = metrics.overall[method, 0.0]
    figures = [
        cell.mat,
        cell.mat_macro,
        cell.speedup,
        cell.decode_speedup,
        metrics.serving[method, 0.0].throughput_ratio,
        overall.speedup,
        overall.mat,
        metrics.cost(method, 0.0).mat,
    ]
    assert set(figures) == {Missing(reason)}
    assert number(cell.tokens_per_s) == 22.0, "the measured speed stays"
    assert any(reason in sentence.lower() for sentence in sentences_of(served_run))


@pytest.mark.parametrize("states", ["0000", "1100", "1111"])
def test_a_lookup_method_may_skip_drafts(states: str) -> None:
    served_run = by_states("suffix", states)
    metrics = measured(served_run)
    # 4 steps of an answer with drafts, 10 of one without
    num_drafting_steps = 4 * states.count("1")
    num_steps = num_drafting_steps + 10 * states.count("0")
    assert number(metrics.pooled("suffix", 0.0).mat) == pytest.approx(40 / num_steps)
    assert number(metrics.overall["suffix", 0.0].speedup) == 2.0
    share = metrics.serving["suffix", 0.0].drafting_share
    assert share is not None and share == pytest.approx(num_drafting_steps / num_steps)
    (sentence,) = sentences_of(served_run, "drafting")
    assert f": suffix {100 * share:.1f} %." in sentence


def test_the_share_of_drafting_steps_needs_counts_of_both() -> None:
    answers = of_answers("suffix", [DRAFTING, SILENT]).records
    done = [record for record in answers if record.key.method == "suffix"]
    assert drafting_share((), done, np.array([8.0, 8.0])) == 0.25
    assert drafting_share((), done, np.array([8.0, 0.0])) == 0.5, (
        "answers without steps do not count"
    )
    counters = {"num_accepted": 6.0}
    steps_only = block("suffix", ONE, duration_s=2.0, repeat=0, counters=counters)
    drafts_too = block(
        "suffix", ONE, duration_s=2.0, repeat=1, counters={**counters, "num_drafts": 3}
    )
    no_answers = np.empty(0)
    assert drafting_share([steps_only], (), no_answers) is None
    share = drafting_share([drafts_too], (), no_answers)
    assert share is not None and 0 < share < 1
    assert drafting_share([steps_only, drafts_too], (), no_answers) == share


@pytest.mark.parametrize("method", ["fast", "team-b:k=2"])
def test_an_unknown_method_that_never_drafted_has_no_mean(method: str) -> None:
    metrics = measured(of_answers(method, [SILENT] * 4))
    assert metrics.cell(method, 0.0, "gsm8k").mat == Missing("the server drafted nothing")
    assert metrics.overall[method, 0.0].speedup == Missing("the server drafted nothing")
    metrics = measured(of_answers(method, [DRAFTING, SILENT]))
    assert number(metrics.overall[method, 0.0].mat) == pytest.approx(20 / 14)


def test_an_unknown_method_that_stopped_drafting_has_no_mean() -> None:
    metrics = measured(by_states("team-b", "11100"))
    assert metrics.overall["team-b", 0.0].mat == Missing("no drafts after request 3")
    looked_up = [{"num_drafts": 2, "num_accepted": 6}] * 3  # in four steps
    metrics = measured(of_answers("team-b", [*looked_up, SILENT]))
    assert number(metrics.overall["team-b", 0.0].mat) == pytest.approx(40 / 22)


@pytest.mark.parametrize(
    ("drafts", "reason", "has_speedup"),
    [
        ((0, 0), "the server drafted nothing", True),  # a schedule may ask for it
        ((8, 0), "no drafts after request 2", False),
        ((8, 8), "", True),
    ],
)
def test_counters_of_blocks_show_if_answers_had_drafts(
    drafts: tuple[int, int], reason: str, has_speedup: bool
) -> None:
    counters = [
        {"num_drafts": float(num_drafts), "num_accepted": 1.5 * num_drafts, "num_tokens": 44.0}
        for num_drafts in drafts
    ]
    served_run = of_answers("eagle3", [{}] * 4, FOUR, counters)
    overall = measured(served_run).overall["eagle3", 0.0]
    if reason:
        assert overall.mat == Missing(reason)
    else:
        assert number(overall.mat) > 1
    assert isinstance(overall.speedup, Missing) is not has_speedup
    hidden_steps = sentences_of(served_run, "least_mat")
    assert not hidden_steps, "the counters have no answer with a hidden step"


@pytest.mark.parametrize("has_counters", [False, True])
def test_a_mat_of_only_some_answers_is_in_no_table(has_counters: bool) -> None:
    """Two of the four answers list five steps each.

    The counters, if there are any, count all steps.
    """
    counters = {"num_drafts": 20.0, "num_accepted": 20.0, "num_tokens": 44.0}
    counts = [{"num_drafts": 5, "num_accepted": 5}, {}] * 2
    served_run = of_answers("eagle3", counts, FOUR, [counters if has_counters else {}])
    records = tuple(
        replace(record, accept_lengths=(2,) * 5)
        if record.serving and record.serving.num_drafts
        else record
        for record in served_run.records
    )
    metrics = measured(replace(served_run, records=records))
    mats = [metrics.pooled("eagle3", 0.0).mat, metrics.overall["eagle3", 0.0].mat]
    if has_counters:
        assert [number(mat) for mat in mats] == [2.0, 2.0]
    else:
        assert mats == [Missing("only 2 of 4 answers have counts: at least 1.33")] * 2
    assert metrics.cost("eagle3", 0.0).mat == Missing("only 2 of 4 answers list their steps")
    assert not metrics.pooled("eagle3", 0.0).accept_histogram
    assert number(metrics.overall["eagle3", 0.0].speedup) == 2.0


def test_llama_cpp_leaves_out_the_counts_of_an_answer_without_drafts() -> None:
    """In answers without counts, a look-up method made no drafts. Their number is known: 0."""
    counts: list[dict[str, Any]] = [{"num_accepted": 5}, {}]
    looking_up = measured(of_answers("ngram", counts)).pooled("ngram", 0.0)
    assert number(looking_up.mat) == pytest.approx(20 / 15)
    always_drafting = measured(of_answers("sps", counts)).pooled("sps", 0.0)
    assert always_drafting.mat == Missing("no drafts after request 1")


def test_a_short_answer_may_have_no_drafts() -> None:
    served_run = by_states("eagle3", "10")
    records = tuple(
        replace(record, token_ids=record.token_ids[:8])
        if record.serving and record.serving.num_drafts == 0
        else record
        for record in served_run.records
    )
    metrics = measured(replace(served_run, records=records))
    assert number(metrics.overall["eagle3", 0.0].speedup) > 1


def after_prompts(method: str, lengths: Sequence[int], accepting: Sequence[bool]) -> list[str]:
    """The notes on prompt lengths in the report on a method.

    Its server lists 5 drafting steps for an answer that accepts drafts, and 19 for one that does
    not.
    """
    records = []
    for i, (length, is_accepting) in enumerate(zip(lengths, accepting, strict=True)):
        accept_lengths = (4,) * 5 if is_accepting else (1,) * 19
        num_steps, num_tokens = len(accept_lengths), sum(accept_lengths)
        counts = {"num_drafts": num_steps, "num_accepted": num_tokens - num_steps}
        records.append(
            replace(
                answer(method, i, ONE, wall_s=1.0, **counts),
                prompt_tokens=length,
                accept_lengths=accept_lengths,
                token_ids=tuple(range(1 + num_tokens)),
            )
        )
    served_run = run(records, [block(method, ONE, duration_s=2.0)], [ONE])
    notes = make_report(served_run, Bootstrap(50)).notes
    return [note.text for note in notes if "After" in note.text]


@pytest.mark.parametrize(
    ("method", "lengths", "accepting"),
    [
        ("sps", [90, 100, 70, 2100], [True, False, True, True]),  # a hard prompt among others
        ("sps", [90, 100, 70, 2100], [True, True, True, False]),  # one prompt proves nothing
        ("ngram", [90, 100, 1800, 2100], [True, True, False, False]),  # look-ups fail more often
        ("sps", [90, 100, 1800, 2100], [False] * 4),  # drafts fail after short prompts too
    ],
)
def test_a_few_prompts_without_accepted_drafts_are_usual(
    method: str, lengths: list[int], accepting: list[bool]
) -> None:
    assert after_prompts(method, lengths, accepting) == []


def test_drafts_that_fail_only_after_long_prompts_are_named() -> None:
    lengths = [700, 90, 4100, 100, 2300, 110]
    accepting = [length < 2000 for length in lengths]
    (sentence,) = after_prompts("eagle", lengths, accepting)
    assert_in(
        sentence,
        "more than 700 tokens, eagle accepted no draft token in 38 drafting steps",
        "in 2 answers (MAT 1.00). After shorter prompts, its MAT is 4.00.",
    )


def with_counters_of_vanilla(served_run: Run, counters: dict[str, float]) -> Run:
    """The run with these counters of vanilla's server, and with the servers' addresses."""
    blocks = values_of(served_run.header)["blocks"]
    blocks[0]["counters"] = counters
    return with_header(served_run, blocks=blocks, servers=SERVERS)


def test_a_vanilla_that_drafted_is_not_a_baseline() -> None:
    honest_run = by_states("ngram", "1111")
    honest_cell = measured(honest_run).cell("ngram", 0.0, "gsm8k")
    assert isinstance(honest_cell.speedup, Estimate)

    drafted_run = with_counters_of_vanilla(honest_run, {"num_tokens": 44.0, "num_drafts": 5.0})
    metrics = measured(drafted_run)
    cell = metrics.cell("ngram", 0.0, "gsm8k")
    comparisons_with_vanilla = {
        cell.speedup,
        cell.decode_speedup,
        metrics.serving["ngram", 0.0].throughput_ratio,
        metrics.cost("ngram", 0.0).relative,
    }
    assert comparisons_with_vanilla == {Missing("the server of vanilla drafted")}
    assert cell.mat == honest_cell.mat, "the counted tokens stay"

    sentences = sentences_of(drafted_run)
    assert any("Vanilla's server counted 5 drafts" in sentence for sentence in sentences)
    assert not any("unknown whether it drafts" in sentence for sentence in sentences)
    (check,) = check_sources_alone(tabled(drafted_run))
    assert check.status == "failed"


@pytest.mark.parametrize(("counters", "is_unseen"), [({}, True), ({"num_tokens": 44.0}, False)])
def test_a_report_says_if_drafts_of_vanilla_cannot_be_seen(
    counters: dict[str, float], is_unseen: bool
) -> None:
    served_run = with_counters_of_vanilla(by_states("ngram", "1111"), counters)
    sentences = sentences_of(served_run)
    assert any("unknown whether it drafts" in sentence for sentence in sentences) == is_unseen
