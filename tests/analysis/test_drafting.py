"""Speculation that is off, that stops, or that is not counted: what is said, what is left out."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from specbench.analysis.stats.bootstrap import Bootstrap
from specbench.analysis.stats.estimates import Estimate, Missing
from specbench.analysis.tables import tabled
from specbench.judge.sources import check_sources_alone
from specbench.log.run import Load, Run
from specbench.report.build import make_report
from tests.analysis.run_factory import number
from tests.analysis.test_serving import FOUR, ONE, answer, block, measured, run
from tests.judge.changing import values_of, with_header

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
    """Vanilla and a method with these counts of its answers, in a pass per dict of counters."""
    num_passes = len(counters)
    records, blocks = [], []
    for name, wall_s in (("vanilla", 1.0), (method, 0.5)):
        for repeat in range(num_passes):
            own_counters = counters[repeat] if name == method else {}
            blocks.append(block(name, load, duration_s=2.0, repeat=repeat, counters=own_counters))
        for i, figures in enumerate(counts):
            counts_of_answer = {} if name == "vanilla" else figures
            records.append(
                answer(name, i, load, wall_s=wall_s, repeat=i % num_passes, **counts_of_answer)
            )
    records = [
        replace(record, accept_lengths=(1,) * 10) if record.key.method == "vanilla" else record
        for record in sorted(records, key=lambda record: record.key.repeat)
    ]
    return run(records, blocks, [load])


@pytest.mark.parametrize("method", ["medusa", "draft_model:k=3", "glm-mtp", "eagle"])
@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ("0000", "the server drafted nothing"),
        ("1110", "no drafts from request 4 on"),
        ("1000", "no drafts from request 2 on"),
        ("1011", "no drafts in 1 of 4 answers"),
        ("0001", "no drafts in 3 of 4 answers"),
    ],
)
def test_answers_with_and_without_drafts_have_no_mean(
    method: str, states: str, reason: str
) -> None:
    served_run = of_answers(method, [DRAFTING if state == "1" else SILENT for state in states])
    metrics = measured(served_run)
    cell, overall = metrics.cell(method, 0.0, "gsm8k"), metrics.overall[method, 0.0]
    throughput_ratio = metrics.serving[method, 0.0].throughput_ratio
    numbers = [cell.mat, cell.mat_macro, cell.speedup, cell.decode_speedup, throughput_ratio]
    numbers += [overall.speedup, overall.mat, metrics.cost(method, 0.0).mat]
    assert set(numbers) == {Missing(reason)}
    assert number(cell.tokens_per_s) == 22.0, "what was measured stays"
    notes = [note.text for note in make_report(served_run, Bootstrap(50)).notes]
    assert any(reason in text.lower() for text in notes)


@pytest.mark.parametrize("states", ["0000", "1100", "1111"])
def test_a_method_that_drafts_when_it_finds_something_keeps_its_numbers(states: str) -> None:
    served_run = of_answers("suffix", [DRAFTING if state == "1" else SILENT for state in states])
    metrics = measured(served_run)
    num_drafting = states.count("1")
    num_steps = 4 * num_drafting + 10 * (4 - num_drafting)
    assert number(metrics.pooled("suffix", 0.0).mat) == pytest.approx(40 / num_steps)
    assert number(metrics.overall["suffix", 0.0].speedup) == 2.0
    share = metrics.serving["suffix", 0.0].drafting_share
    assert share is not None and share == pytest.approx(4 * num_drafting / num_steps)
    notes = {note.key: note.text for note in make_report(served_run, Bootstrap(50)).notes}
    assert f": suffix {100 * share:.1f} %." in notes["drafting"]


def test_a_schedule_may_ask_for_no_drafts() -> None:
    states = [DRAFTING, SILENT]
    schedule = '{"num_speculative_tokens_per_batch_size": [[1, 1, 3], [2, 64, 0]]}'
    server: dict[str, Any] = {"url": "http://a:1", "software": "", "model": "", "protocol": ""}
    server["command"] = ["vllm", "--speculative-config", schedule]
    metrics = measured(with_header(of_answers("eagle3", states), servers={"eagle3": server}))
    assert number(metrics.overall["eagle3", 0.0].speedup) == 2.0
    assert number(metrics.overall["eagle3", 0.0].mat) == pytest.approx(20 / 14)


@pytest.mark.parametrize(
    ("drafts", "reason", "has_speedup"),
    [
        ((0, 0), "the server drafted nothing", True),  # a schedule may ask for it
        ((8, 0), "no drafts from request 3 on", False),
        ((8, 8), "", True),
    ],
)
def test_counters_of_blocks_tell_the_state_of_answers_without_counts(
    drafts: tuple[int, int], reason: str, has_speedup: bool
) -> None:
    counters = [
        {"num_drafts": n, "num_accepted": 1.5 * n, "num_tokens": 44.0} for n in map(float, drafts)
    ]
    served_run = of_answers("eagle3", [{}] * 4, FOUR, counters)
    overall = measured(served_run).overall["eagle3", 0.0]
    assert overall.mat == Missing(reason) if reason else number(overall.mat) > 1
    assert isinstance(overall.speedup, Missing) is not has_speedup
    notes = {note.key for note in make_report(served_run, Bootstrap(50)).notes}
    assert "least_mat" not in notes, "the counters have no answer with a hidden step"


@pytest.mark.parametrize("has_counters", [False, True])
def test_a_mat_of_a_part_of_the_answers_is_in_no_table(has_counters: bool) -> None:
    """Two answers of four list five steps. The counters, if there are any, have all steps."""
    counters = {"num_drafts": 20.0, "num_accepted": 20.0, "num_tokens": 44.0}
    counts = [{"num_drafts": 5, "num_accepted": 5}, {}] * 2
    served_run = of_answers("eagle3", counts, FOUR, [counters if has_counters else {}])
    listed = [
        replace(record, accept_lengths=(2,) * 5)
        if record.serving and record.serving.num_drafts
        else record
        for record in served_run.records
    ]
    metrics = measured(replace(served_run, records=tuple(listed)))
    mats = [metrics.pooled("eagle3", 0.0).mat, metrics.overall["eagle3", 0.0].mat]
    if has_counters:
        assert [number(mat) for mat in mats] == [2.0, 2.0]
    else:
        assert mats == [Missing("counts in 2 of 4 answers: at least 1.33")] * 2
    assert metrics.cost("eagle3", 0.0).mat == Missing("steps are listed in 2 of 4 answers")
    assert not metrics.pooled("eagle3", 0.0).accept_histogram
    assert number(metrics.overall["eagle3", 0.0].speedup) == 2.0


def test_llama_cpp_leaves_out_the_counts_of_an_answer_without_drafts() -> None:
    """They are none, not unknown."""
    metrics = measured(of_answers("ngram", [{"num_accepted": 5}, {}]))
    assert number(metrics.pooled("ngram", 0.0).mat) == pytest.approx(20 / 15)
    reason = measured(of_answers("sps", [{"num_accepted": 5}, {}])).pooled("sps", 0.0).mat
    assert reason == Missing("no drafts from request 2 on")


def test_a_short_answer_may_have_no_drafts() -> None:
    served_run = of_answers("eagle3", [DRAFTING, SILENT])
    short = [
        replace(record, token_ids=record.token_ids[:8])
        if record.serving and record.serving.num_drafts == 0
        else record
        for record in served_run.records
    ]
    assert (
        number(measured(replace(served_run, records=tuple(short))).overall["eagle3", 0.0].speedup)
        > 1
    )


def after_prompts(method: str, lengths: Sequence[int], accepting: Sequence[bool]) -> list[str]:
    """The notes on a method whose server lists 5 or 19 drafting steps after prompts this long."""
    records = []
    for i, (length, is_accepting) in enumerate(zip(lengths, accepting, strict=True)):
        steps = (4,) * 5 if is_accepting else (1,) * 19
        counts = {"num_drafts": len(steps), "num_accepted": sum(steps) - len(steps)}
        record = answer(method, i, ONE, wall_s=1.0, **counts)
        token_ids = tuple(range(1 + sum(steps)))
        records.append(
            replace(record, prompt_tokens=length, accept_lengths=steps, token_ids=token_ids)
        )
    served_run = run(records, [block(method, ONE, duration_s=2.0)], [ONE])
    return [
        note.text for note in make_report(served_run, Bootstrap(50)).notes if "After" in note.text
    ]


@pytest.mark.parametrize(
    ("method", "lengths", "accepting"),
    [
        ("sps", [90, 100, 70, 2100], [True, False, True, True]),  # a hard prompt among others
        ("sps", [90, 100, 70, 2100], [True, True, True, False]),  # one prompt shows nothing
        ("ngram", [90, 100, 1800, 2100], [True, True, False, False]),  # look-ups fail more often
        ("sps", [90, 100, 1800, 2100], [False] * 4),  # not a matter of length
    ],
)
def test_a_few_prompts_without_accepted_drafts_are_usual(
    method: str, lengths: list[int], accepting: list[bool]
) -> None:
    assert after_prompts(method, lengths, accepting) == []


def test_drafts_that_fail_after_long_prompts_alone_are_named_with_both_means() -> None:
    lengths = [700, 90, 4100, 100, 2300, 110]
    (text,) = after_prompts("eagle", lengths, [True, True, False, True, False, True])
    assert "prompts of more than 700 tokens, eagle accepted nothing: 0 of 38 drafting" in text
    assert "in 2 answers, MAT 1.00. After the shorter ones, its MAT is 4.00." in text


def test_there_is_no_speedup_over_a_vanilla_that_drafted() -> None:
    honest = of_answers("ngram", [DRAFTING] * 4)
    blocks = values_of(honest.header)["blocks"]
    blocks[0]["counters"] = {"num_tokens": 44.0, "num_drafts": 5.0}  # vanilla's
    drafted = with_header(honest, blocks=blocks, servers=SERVERS)
    reason = Missing("the server of vanilla drafted")
    before, after = measured(honest), measured(drafted)
    assert isinstance(before.cell("ngram", 0.0, "gsm8k").speedup, Estimate)
    cell, cost = after.cell("ngram", 0.0, "gsm8k"), after.cost("ngram", 0.0)
    ratio = after.serving["ngram", 0.0].throughput_ratio
    assert {cell.speedup, cell.decode_speedup, ratio, cost.relative} == {reason}
    assert cell.mat == before.cell("ngram", 0.0, "gsm8k").mat, "what was counted stays"
    notes = [note.text for note in make_report(drafted, Bootstrap(50)).notes]
    assert any("The server of vanilla counted 5 drafts" in text for text in notes)
    assert not any("cannot be seen" in text for text in notes)
    checks = check_sources_alone(tabled(drafted))
    assert [check.status for check in checks] == ["failed"]


@pytest.mark.parametrize(("counters", "is_unseen"), [({}, True), ({"num_tokens": 44.0}, False)])
def test_a_report_says_if_drafts_of_vanilla_cannot_be_seen(
    counters: dict[str, float], is_unseen: bool
) -> None:
    silent = of_answers("ngram", [DRAFTING] * 4)
    blocks = values_of(silent.header)["blocks"]
    blocks[0]["counters"] = counters  # vanilla's
    report = make_report(with_header(silent, blocks=blocks, servers=SERVERS), Bootstrap(50))
    assert any("cannot be seen" in note.text for note in report.notes) == is_unseen
